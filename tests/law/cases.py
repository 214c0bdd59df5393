"""The laws and trees of the law tests: three tokens, p above q on two of them, trees of four to six drawn nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hedgerow.core.parts import Frontier, Grow, GrowSpec, Observation, Plan, View
from hedgerow.core.rng import Purpose
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.testing.law import Grown, Request
from hedgerow.testing.toy import Law, markov

IID, WITHOUT = Selection.IID, Selection.WITHOUT_REPLACEMENT
HUB, GREEDY = Selection.HUB, Selection.GREEDY_PLUS_ONE

P = markov([0.45, 0.40, 0.15], [[0.45, 0.45, 0.10], [0.30, 0.10, 0.60], [0.20, 0.50, 0.30]])
Q = markov([0.20, 0.30, 0.50], [[0.20, 0.30, 0.50], [0.50, 0.30, 0.20], [0.60, 0.25, 0.15]])
OTHER = markov([0.50, 0.15, 0.35], [[0.10, 0.60, 0.30], [0.25, 0.35, 0.40], [0.30, 0.10, 0.60]])
BENT_P = markov([0.10, 0.50, 0.40], [[0.20, 0.60, 0.20], [0.30, 0.50, 0.20], [0.25, 0.50, 0.25]])
BENT_Q = markov([0.30, 0.45, 0.25], [[0.30, 0.40, 0.30], [0.35, 0.40, 0.25], [0.15, 0.45, 0.40]])
FLAT = markov([1 / 3] * 3, [[1 / 3] * 3] * 3)


def penalised(path: tuple[int, ...]) -> np.ndarray:
    """P with a repetition penalty and a filter: it depends on the whole path, and has zeros."""
    row = P(path) * np.where(np.isin(np.arange(3), path), 0.5, 1.0)
    row = np.where(row < 0.15 * row.max(), 0.0, row)
    return row / row.sum()


def colder(law: Law, temperature: float) -> Law:
    """The law at another temperature."""

    def row(path: tuple[int, ...]) -> np.ndarray:
        weights = law(path) ** (1.0 / temperature)
        return weights / weights.sum()

    return row


def levels(
    *counts: int, selection: Selection = WITHOUT, q: Law = Q, p: Law = P, sources: tuple[int, ...] = (0,)
) -> Request:
    """A request whose every node at depth d gets `counts[d]` children."""
    laws = [q, OTHER] if len(sources) > 1 else q
    return Request(Grown.levels(*counts, selection=selection, sources=sources), p, laws)


@dataclass(frozen=True)
class Mixed:
    """Two sources with selections of their own: one child of each for every node of the first levels."""

    selection: tuple[Selection, Selection] = (IID, WITHOUT)
    depth: int = 2
    count: int = 1
    reads_tokens: bool = False

    @property
    def selections(self) -> frozenset[Selection]:
        return frozenset(self.selection)

    def grow(self, view: View, plan: Plan) -> Grow:
        level, chosen = [ROOT], list[int]()
        for _ in range(self.depth):
            new = list[int]()
            for source, selection in enumerate(self.selection):
                new += (yield Frontier(level, [self.count] * len(level), source, selection)).ids
            level = new
            chosen += new
        return view.growth.tree(chosen, [2.0 ** -view.growth.depth[v] for v in chosen])

    def spec(self) -> GrowSpec | None:
        return None


@dataclass(frozen=True)
class Given:
    """A tree that is a function of the context, whatever the drafter says."""

    tree: TokenTree
    reads_tokens: bool = False

    @property
    def selections(self) -> frozenset[Selection]:
        return frozenset(Selection(int(s)) for s in self.tree.selection)

    def grow(self, view: View, plan: Plan) -> Grow:
        yield from ()
        return self.tree.prefix(plan.nodes)

    def spec(self) -> GrowSpec | None:
        return None


@dataclass(frozen=True)
class SharedRace:
    """Coupled drafting by a q that looks at depth only: one race a level, every parent gets the same children."""

    width: int = 2
    depth: int = 2
    said: Selection = Selection.COUPLED
    reads_tokens: bool = False

    @property
    def selections(self) -> frozenset[Selection]:
        return frozenset({self.said})

    def grow(self, view: View, plan: Plan) -> Grow:
        yield from ()
        level, tokens, parents = [ROOT], list[int](), list[int]()
        q = Q(())
        for depth in range(1, self.depth + 1):
            order = view.rng.race(q, self.width, view.position + depth, Purpose.DRAFT)
            below = list[int]()
            for parent in level:
                for token in order:
                    below.append(len(tokens))
                    tokens.append(token)
                    parents.append(parent)
            level = below
        return TokenTree.of(tokens, parents, selection=self.said)

    def spec(self) -> GrowSpec | None:
        return None


# ------------------------------------------------------------------------------------------------ controllers

@dataclass
class Controlled:
    """What test controllers share: caps of `each` nodes before drafting, `choose` after it."""

    each: int
    choose: Callable[[Sequence[TokenTree]], list[int]]
    looks_ahead: bool = False
    cuts: bool = True
    seen: list[Observation] = field(default_factory=list)

    def plan(self, batch: Sequence[View]) -> list[Plan]:
        return [Plan(self.each) for _ in batch]

    def cut(self, trees: Sequence[TokenTree], batch: Sequence[View]) -> list[int]:
        return self.choose(trees)

    def observe(self, step: Sequence[Observation]) -> None:
        self.seen += step


def shared(total: int, each: int = 64) -> Controlled:
    """A fixed total over the batch, given to the nodes of largest survival: it ranks and does not look ahead."""

    def choose(trees: Sequence[TokenTree]) -> list[int]:
        ranked = sorted((-s, r, i) for r, tree in enumerate(trees) for i, s in enumerate(tree.survival.tolist()))
        return [sum(1 for _, r, _ in ranked[:total] if r == request) for request in range(len(trees))]

    return Controlled(each, choose)


def cut_to(*nodes: int) -> Controlled:
    """The first `nodes[r]` nodes of request r."""
    return Controlled(64, lambda trees: list(nodes[: len(trees)]))


def scanning(law: Law, floor: float) -> Controlled:
    """A cut that looks ahead: it stops before the first node whose own token is unlikely under the draft."""

    def stop(tree: TokenTree) -> int:
        for node in range(tree.nodes):
            path = tuple(int(tree.tokens[i]) for i in tree.path(node))
            if law(path[:-1])[path[-1]] < floor:
                return node
        return tree.nodes

    return Controlled(64, lambda trees: [stop(t) for t in trees], looks_ahead=True)
