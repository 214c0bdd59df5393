"""The step as `testing.law` enumerates it: requests, policies, every tree they can draft, what a rule makes of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hedgerow.core.parts import Frontier, Grow, GrowSpec, Plan, Policy, Rule, Sampling, View
from hedgerow.core.rng import Purpose, Source, Tape, enumerate_branches
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.testing.toy import BIG, Law, play
from hedgerow.verify.onenode import Drafted, merged, tree_key


@dataclass(frozen=True)
class Grown:
    """The simplest policy: every node gets `counts(path)` children, where the path is its tokens below the root.

    The shape may depend on tokens already revealed; no node is dropped or ranked for its own, and where the plan has
    fewer nodes than the shape, the last groups draw less. Survival falls with depth.

    >>> Grown.levels(2, 1).counts((0,)), Grown.levels(2, 1).counts((0, 1))
    (1, 0)
    """

    counts: Callable[[tuple[int, ...]], int]
    selection: Selection = Selection.IID
    sources: tuple[int, ...] = (0,)
    reads_tokens: bool = False

    @classmethod
    def levels(cls, *counts: int, selection: Selection = Selection.IID, sources: tuple[int, ...] = (0,)) -> Grown:
        """`counts[d]` children, from each source, of every node at depth d."""
        return cls(lambda path: counts[len(path)] if len(path) < len(counts) else 0, selection, sources)

    @property
    def selections(self) -> frozenset[Selection]:
        """Its one selection."""
        return frozenset({self.selection})

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier a level and source."""
        growth, level, chosen, left = view.growth, [ROOT], list[int](), plan.nodes
        while level:
            asks: list[tuple[int, list[int], list[int]]] = []
            for source in self.sources:
                nodes, counts = list[int](), list[int]()
                for node in level:
                    count = min(self.counts(growth.tokens_to(node)), left)
                    if count:
                        nodes.append(node)
                        counts.append(count)
                        left -= count
                asks.append((source, nodes, counts))
            level = []
            for source, nodes, counts in asks:
                if nodes:
                    level += (yield Frontier(nodes, counts, source, self.selection)).ids
            chosen += level
        return growth.tree(chosen, [2.0 ** -growth.depth[v] for v in chosen])

    def spec(self) -> GrowSpec | None:
        """No device form."""
        return None


@dataclass(frozen=True)
class Edited:
    """A policy whose finished tree is tampered with: for showing that a combination is biased."""

    policy: Policy
    edit: Callable[[TokenTree], TokenTree]

    @property
    def selections(self) -> frozenset[Selection]:
        """The policy's."""
        return self.policy.selections

    @property
    def reads_tokens(self) -> bool:
        """Tampering may."""
        return True

    def grow(self, view: View, plan: Plan) -> Grow:
        """The policy's tree, edited."""
        return self.edit((yield from self.policy.grow(view, plan)))

    def spec(self) -> GrowSpec | None:
        """No device form."""
        return None


@dataclass(frozen=True)
class Request:
    """One request of the step: how its tree grows, its target law and its draft law (one a source).

    `shown` replaces the draft law the rule is shown, to refute rules that get the wrong q. `nodes` is the plan where no
    controller makes one.
    """

    policy: Policy
    p: Law
    q: Law | Sequence[Law]
    nodes: int = BIG
    shown: Law | None = None
    position: int = 0

    def draft(self, source: int) -> Law:
        """The draft law of a source."""
        return self.q if callable(self.q) else self.q[source]

    def view(self, number: int, rng: Source) -> View:
        """A fresh view of it."""
        return View(
            number, number, root=0, position=self.position, room=BIG, sampling=Sampling(temperature=1.0), rng=rng
        )


@dataclass(frozen=True)
class Grew:
    """One tree that can be drafted: its probability, its view after drafting, the random keys it took."""

    weight: float
    tree: TokenTree
    view: View
    used: frozenset[tuple[int, ...]]


def drafted(request: Request, number: int = 0, plan: Plan | None = None) -> tuple[list[Grew], int]:
    """Every tree the policy can grow, equal trees merged, and how many branches there were."""
    plan = plan if plan is not None else Plan(request.nodes)
    laws = [request.q] if callable(request.q) else list(request.q)

    def grow(tape: Tape) -> tuple[TokenTree, View, frozenset[tuple[int, ...]]]:
        view = request.view(number, tape.request(number, request.position))
        tree = play(request.policy, laws, plan.nodes, view=view, plan=plan).tree if plan.nodes else TokenTree.empty()
        return tree, view, frozenset(tape.used)

    out: dict[tuple[bytes, ...], Grew] = {}
    leaves = 0
    for weight, (tree, view, used) in enumerate_branches(grow):
        key, leaves = tree_key(tree), leaves + 1
        old = out.get(key)
        out[key] = Grew(weight, tree, view, used) if old is None else Grew(
            old.weight + weight, tree, view, old.used | used
        )
    return list(out.values()), leaves


class Judged:
    """The law of one request's output given its tree, remembered per tree."""

    def __init__(self, rule: Rule, request: Request, number: int, horizon: int) -> None:
        self.rule, self.request, self.number, self.horizon = rule, request, number, horizon
        self.vocab = len(request.p(()))
        self.leaves = 0
        self._known: dict[tuple[bytes, ...], tuple[np.ndarray, float]] = {}
        self._after: dict[tuple[int, ...], np.ndarray] = {}

    def after(self, path: tuple[int, ...]) -> np.ndarray:
        """Target law of the tokens that follow `path` up to the horizon."""
        if path not in self._after:
            if len(path) == self.horizon:
                self._after[path] = np.ones(1)
            else:
                row = np.asarray(self.request.p(path), np.float64)
                self._after[path] = np.concatenate([row[t] * self.after((*path, t)) for t in range(self.vocab)])
        return self._after[path]

    def __call__(self, grew: Grew, nodes: int) -> tuple[np.ndarray, float]:
        """(law of the next tokens, expected accepted) for the first `nodes` nodes of a drafted tree."""
        tree = grew.tree.prefix(nodes)
        key = tree_key(tree)
        if key not in self._known:
            self._known[key] = self._judge(tree, grew.used)
        return self._known[key]

    def _judge(self, tree: TokenTree, used: frozenset[tuple[int, ...]]) -> tuple[np.ndarray, float]:
        request = self.request
        paths = {v: tuple(int(tree.tokens[i]) for i in tree.path(v)) for v in range(-1, tree.nodes)}

        def p(node: int) -> np.ndarray:
            return request.p(paths[node])

        def q(node: int, source: int) -> np.ndarray:
            return (request.shown or request.draft(source))(paths[node])

        def run(tape: Tape) -> tuple[int, ...]:
            tape.used |= used
            rng = tape.request(self.number, request.position)
            verdict = self.rule.verify(tree, p, q, rng, request.position)
            outcomes.append(len(verdict.path))
            return tuple(verdict.committed(tree))

        law, expected = np.zeros(self.vocab**self.horizon), 0.0
        outcomes: list[int] = []
        for weight, tokens in enumerate_branches(run):
            self.leaves += 1
            after = self.after(tokens)
            start = len(after) * int(np.ravel_multi_index(tokens, (self.vocab,) * len(tokens)))
            law[start : start + len(after)] += weight * after
            expected += weight * outcomes[-1]
        return law, expected


def separate(counts: Callable[[tuple[int, ...]], int], q: Law) -> Drafted:
    """Every tree of i.i.d. draws in which a repeated draw stays a node of its own, with children of its own.

    >>> [(round(w, 2), t.tokens.tolist()) for w, t in separate(lambda path: 2 * (not path), lambda path: np.ones(1))]
    [(1.0, [0, 0])]
    """

    def draw(tape: Tape) -> TokenTree:
        tokens, parent, paths = list[int](), list[int](), list[tuple[int, ...]]([()])
        for node, path in enumerate(paths):            # grows while it is read
            for _ in range(counts(path)):
                tokens.append(tape.categorical(q(path), len(path), Purpose.DRAFT, len(tokens)))
                parent.append(node - 1)
                paths.append((*path, tokens[-1]))
        return TokenTree.of(tokens, parent, selection=Selection.IID)

    return merged(enumerate_branches(draw))


def trees(request: Request, number: int = 0, plan: Plan | None = None) -> Drafted:
    """Every tree a request can draft, with its probability, as the oracles of `verify.offline` take it."""
    return [(g.weight, g.tree) for g in drafted(request, number, plan)[0]]
