"""A toy drafter, and a driver that plays a policy against it without an engine.

A *law* is a function from the token path below the root (a tuple) to the draft law of the next token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from hedgerow.core.parts import Children, Frontier, Plan, Policy, Received, Sampling, View
from hedgerow.core.probs import entropy
from hedgerow.core.rng import Rng, Source
from hedgerow.core.select import pick, top_ids
from hedgerow.core.tree import Growth, Selection, TokenTree

Law = Callable[[tuple[int, ...]], Float[np.ndarray, " vocab"]]

BIG = 1 << 30


def markov(root: Sequence[float], table: Sequence[Sequence[float]], max_depth: int = BIG) -> Law:
    """A law that looks at the last token only: `root` after the root, `table[t]` after token t, nothing at `max_depth`.

    >>> markov([0.5, 0.5], [[1.0, 0.0], [0.2, 0.8]])((0, 1)).tolist()
    [0.2, 0.8]
    """
    first, rows = np.asarray(root, np.float64), np.asarray(table, np.float64)
    none = np.zeros_like(first)

    def law(path: tuple[int, ...]) -> np.ndarray:
        return none if len(path) >= max_depth else rows[path[-1]] if path else first

    return law


def marginals(rows: Sequence[Sequence[float]]) -> Law:
    """A block drafter's law: position d has `rows[d]`, whatever the parent; nothing beyond the block."""
    laws = [np.asarray(r, np.float64) for r in rows]

    def law(path: tuple[int, ...]) -> np.ndarray:
        return laws[len(path)] if len(path) < len(laws) else np.zeros(1)

    return law


def positional(p: Sequence[float], max_depth: int = BIG) -> Law:
    """A law whose r-th token has probability p[r] everywhere: the positional acceptance model as a drafter."""
    return markov(p, [p] * len(p), max_depth)


def random_law(seed: int, vocab: int = 3, max_depth: int = BIG, concentration: float = 0.7) -> Law:
    """A law drawn once per path (Dirichlet): the same seed gives the same law, whatever is asked first.

    >>> law = random_law(3)
    >>> bool(abs(law((1, 2)).sum() - 1.0) < 1e-12), bool(np.array_equal(law((1,)), random_law(3)((1,))))
    (True, True)
    """
    rows: dict[tuple[int, ...], np.ndarray] = {}

    def law(path: tuple[int, ...]) -> np.ndarray:
        if len(path) >= max_depth:
            return np.zeros(vocab)
        if path not in rows:
            rows[path] = np.random.default_rng([seed, *path]).dirichlet(np.full(vocab, concentration))
        return rows[path]

    return law


@dataclass
class Played:
    """What a driven policy did: its tree, every frontier it yielded in order, and all nodes that arrived."""

    tree: TokenTree
    frontiers: list[Frontier]
    growth: Growth
    paths: list[tuple[int, ...]] = field(default_factory=list)   # token path of every tree node, in tree order

    @property
    def calls(self) -> int:
        """Drafter calls."""
        return len(self.frontiers)

    @property
    def expected(self) -> float:
        """E(A): the sum of the tree's survivals."""
        return math.fsum(self.tree.survival.tolist())


def children_of(law: Law, frontier: Frontier, view: View) -> Children:
    """A toy drafter's answer to one frontier: drawn by `core.select` from the law after each node's path."""
    count: list[int] = []
    token: list[int] = []
    log_q: list[float] = []
    origin: list[int] = []
    mult: list[int] = []
    aux: dict[str, list[float]] = {"entropy": [], "margin": [], "confidence": []}
    tops: list[list[float]] = []
    selection = Selection.TOP_K if frontier.selection is Selection.RETRIEVED else frontier.selection
    for node, k in zip(frontier.nodes, frontier.counts, strict=True):
        q = np.asarray(law(view.growth.tokens_to(node)), np.float64)
        best = [float(q[i]) for i in top_ids(q, 9) if q[i] > 0]
        aux["entropy"].append(entropy(q))
        aux["margin"].append(math.log(best[0] / best[1]) if len(best) > 1 else math.inf)
        aux["confidence"].append(best[0] if best else 0.0)
        tops.append([math.log(x) for x in best])
        if not best:
            count.append(0)
            continue
        position = view.position + (view.growth.depth[node] if node >= 0 else 0) + 1
        got = pick(q, k, selection, view.rng, position, node + 1, frontier.source)
        count.append(len(got.token))
        token += got.token
        log_q += got.log_q
        origin += [node + 1] * len(got.token)
        mult += got.mult
    return Children(count, token, log_q, origin, mult, {**aux, "top": tops})  # type: ignore[dict-item]


def play(
    policy: Policy, laws: Law | Sequence[Law], nodes: int, depth: int = BIG, width: int = BIG,
    rng: Source | None = None, source: int | None = None, view: View | None = None, plan: Plan | None = None,
) -> Played:
    """Drive a policy against toy drafters, one law a source, and return its tree.

    `view` and `plan` replace the neutral ones.

    >>> from hedgerow.policy.bestfirst import BestFirst
    >>> play(BestFirst(), positional([0.6, 0.4]), nodes=3).paths
    [(0,), (1,), (0, 0)]
    """
    sources = [laws] if callable(laws) else list(laws)
    if view is None:
        view = View(0, 0, root=0, position=0, room=BIG, sampling=Sampling(), rng=rng if rng is not None else Rng(0))
    if plan is None:
        plan = Plan(nodes, depth, width, source)
    frontiers: list[Frontier] = []
    growing = policy.grow(view, plan)
    received: Received | None = None
    while True:
        try:
            frontier = next(growing) if received is None else growing.send(received)
        except StopIteration as end:
            tree = end.value
            break
        frontiers.append(frontier)
        answer = children_of(sources[frontier.source], frontier, view)
        ids = view.growth.add(
            frontier.nodes, answer.count, answer.token, answer.log_q, answer.origin, answer.mult, frontier.source,
            frontier.selection,
        )
        received = Received(answer, ids)
    paths = [tuple(int(tree.tokens[i]) for i in tree.path(v)) for v in range(tree.nodes)]
    return Played(tree, frontiers, view.growth, paths)
