"""Drive a drafter without a target: prompts, rows and steps made by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from hedgerow.core.parts import Ask, Drafter, Feats, Frontier, Plan, Sampling, Step, Verdict, View
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Growth, Selection, TokenTree
from hedgerow.engine.lockstep import lockstep
from hedgerow.policy.bestfirst import BestFirst

Said = dict[int, float]                   # token -> probability
Says = Callable[[tuple[int, ...]], Said]  # whole text -> what the target says next


def feats(rows: Sequence[Said], k: int = 8) -> Feats:
    """The rows of a target that says this, likeliest first, padded with impossible tokens."""
    ids = np.zeros((len(rows), k), np.int64)
    logits = np.full((len(rows), k), -np.inf)
    for i, said in enumerate(rows):
        for j, (token, p) in enumerate(sorted(said.items(), key=lambda item: (-item[1], item[0]))[:k]):
            ids[i, j], logits[i, j] = token, math.log(p)
    return Feats(top_ids=ids, top_logits=logits)


def view(root: int, position: int = 5, slot: int = 0, room: int = 64, growth: Growth | None = None) -> View:
    """A greedy request's view."""
    return View(0, slot, root, position, room, Sampling(), Rng(0).at(position), growth=growth or Growth())


def chain(path: Sequence[int]) -> tuple[Growth, int]:
    """A growth that holds one path, and its last node."""
    growth, node = Growth(), -1
    for token in path:
        node = growth.add([node], [1], [token], [0.0])[0]
    return growth, node


def ask(drafter: Drafter, path: Sequence[int] = (), k: int = 8, slot: int = 0) -> dict[int, float]:
    """Children of the node at the end of a path, with their probabilities, in the drafter's order."""
    growth, node = chain(path)
    frontier = Frontier([node], [k], selection=Selection.RETRIEVED)
    got = drafter.children([Ask(slot, frontier, view(0, slot=slot, growth=growth))])
    assert list(got.count) == [len(got.token)] and len(got.token) == len(got.log_q) <= k
    return {t: math.exp(v) for t, v in zip(got.token, got.log_q, strict=True)}


def step(
    root: int, committed: Sequence[int], paths: Sequence[tuple[int, ...]] = (), rows: Sequence[Said] | None = None
) -> Step:
    """A finished step whose tree has these paths (parents first); `rows` are the root's and each path's."""
    at = {(): -1, **{path: i for i, path in enumerate(paths)}}
    tree = TokenTree.of([p[-1] for p in paths], [at[p[:-1]] for p in paths], selection=Selection.RETRIEVED)
    accepted = tuple(at[tuple(committed[:d])] for d in range(1, len(committed)))
    verdict = Verdict(accepted, committed[-1], "bonus")
    return Step(tree, verdict, feats(rows) if rows is not None else Feats(), root, 0, 0.0)


def generate(
    drafter: Drafter, prompt: Sequence[int], says: Says, tokens: int = 40, nodes: int = 15, slot: int = 0,
    tenant: str = "", width: int = 1 << 30,
) -> float:
    """Greedy decoding of `tokens` tokens with a best-first tree; returns tokens per step. Releases the slot."""
    def best(text: tuple[int, ...]) -> int:
        return min(says(text).items(), key=lambda item: (-item[1], item[0]))[0]

    text = (*prompt, best(tuple(prompt)))
    drafter.begin(slot, text, feats([says(text[: i + 1]) for i in range(len(prompt))]), tenant)
    steps = 0
    while len(text) - len(prompt) < tokens:
        seen = view(text[-1], len(text) - 1, slot)
        [tree] = lockstep(BestFirst(selection=Selection.RETRIEVED), [drafter], [seen], [Plan(nodes, width=width)])
        paths = [tuple(int(tree.tokens[i]) for i in tree.path(v)) for v in range(tree.nodes)]
        path: list[int] = []
        committed = [best(text)]
        while (node := tree.child(path[-1] if path else -1, committed[-1])) is not None:
            path.append(node)
            committed.append(best((*text, *committed)))
        rows = feats([says((*text, *p)) for p in [(), *paths]])
        verdict = Verdict(tuple(path), committed[-1], "bonus")
        drafter.commit(slot, Step(tree, verdict, rows, text[-1], len(text) - 1, 0.0))
        text = (*text, *committed)
        steps += 1
    drafter.release(slot)
    return (len(text) - len(prompt) - 1) / steps
