"""Best-first trees: the most promising node anywhere is expanded next, several at a time.

Expanding more nodes at once only wastes drafting: the result is the best `nodes` nodes of the whole tree as soon as
all of them were expanded, whatever the batch, because a child never scores above its parent.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from hedgerow.core.parts import Frontier, Grow, GrowSpec, Plan, Received, View
from hedgerow.core.tree import ROOT, Growth, Selection
from hedgerow.policy.layerwise import refuse_drawn
from hedgerow.policy.order import admit
from hedgerow.policy.parts import Score, Stop
from hedgerow.policy.score import PathProbability
from hedgerow.policy.stop import ANY, Budget

Expansion = Generator[Frontier, Received, list[tuple[int, float]]]
Expand = Callable[[list[int]], Expansion]               # nodes -> their children with log survival of each edge


@dataclass(frozen=True)
class BestFirst:
    """Expand the `batch` best unexpanded nodes a round to `fanout` children each, until the best are all expanded.

    `rounds` caps the drafter calls. Deterministic selections only.

    Raises: RecipeError for a drawn selection.

    Source: SpecExec (2406.02532) Algorithm 2, with `batch=32, fanout=16, score=Decayed(0.95)`.
    """

    fanout: int = 8
    batch: int = 8
    stop: Stop = field(default_factory=Budget)
    score: Score = field(default_factory=PathProbability)
    rounds: int = ANY
    selection: Selection = Selection.TOP_K
    source: int = 0

    def __post_init__(self) -> None:
        refuse_drawn("best-first growth", self.selection)

    @property
    def selections(self) -> frozenset[Selection]:
        """The one selection of its nodes."""
        return frozenset({self.selection})

    @property
    def reads_tokens(self) -> bool:
        """Whether its score does."""
        return self.score.reads_tokens

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier a round."""
        growth = view.growth
        source = self.source if plan.source is None else plan.source
        fanout = min(self.fanout, plan.nodes, plan.width)

        def expand(nodes: list[int]) -> Expansion:
            received = yield Frontier(nodes, [fanout] * len(nodes), source, self.selection)
            return list(zip(received.ids, self.score.edges(growth, received), strict=True))

        chosen, survival = yield from search(growth, plan, expand, self.batch, self.stop, self.rounds)
        return growth.tree(chosen, survival)

    def spec(self) -> GrowSpec | None:
        """Not yet written as data."""
        return None


@dataclass(frozen=True)
class EqualGrowth:
    """`steps` drafting steps, each of which adds exactly `width` nodes, so that every tensor shape is known in advance.

    A step expands the nodes the last one added and adds the best child of the deepest level and the best others
    anywhere; the depth is `steps`, width 1 is a chain. The best of all are verified.

    Raises: RecipeError for a drawn selection.

    Source: Yggdrasil (2512.23858): width 8, 8 steps, 64 verified rows. Differs from the paper in: where new nodes may
    attach is not stated there; here anywhere, with one kept for the deepest level.
    """

    width: int = 8
    steps: int = 8
    stop: Stop = field(default_factory=Budget)
    score: Score = field(default_factory=PathProbability)
    selection: Selection = Selection.TOP_K
    source: int = 0

    def __post_init__(self) -> None:
        refuse_drawn("equal growth", self.selection)

    @property
    def selections(self) -> frozenset[Selection]:
        """The one selection of its nodes."""
        return frozenset({self.selection})

    @property
    def reads_tokens(self) -> bool:
        """Whether its score does."""
        return self.score.reads_tokens

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier a step, of the same size after the first."""
        growth = view.growth
        source = self.source if plan.source is None else plan.source
        width = min(self.width, plan.width)
        value: dict[int, float] = {ROOT: 0.0}
        added: list[int] = []
        offers: list[tuple[float, int, int]] = []       # (−log survival, depth, node), sorted
        frontier = [ROOT]
        for step in range(1, min(self.steps, plan.depth) + 1):
            received = yield Frontier(frontier, [width] * len(frontier), source, self.selection)
            for v, edge in zip(received.ids, self.score.edges(growth, received), strict=True):
                value[v] = value[growth.parent[v]] + edge
                insort(offers, (-value[v], growth.depth[v], v))
            deepest = next((item for item in offers if item[1] == step), None)
            if deepest is None:
                break
            offers.remove(deepest)
            frontier = [deepest[2], *(v for _, _, v in offers[: width - 1])]
            del offers[: width - 1]
            added += frontier
        ranked = sorted(added, key=lambda v: (-value[v], growth.depth[v], v))
        chosen = admit(growth, ranked, plan.nodes, plan.width)
        survival = [math.exp(value[v]) for v in chosen]
        n = self.stop.cut(survival)
        return growth.tree(chosen[:n], survival[:n])

    def spec(self) -> GrowSpec | None:
        """Shapes are fixed, decisions are two numbers."""
        return GrowSpec("equal_growth", {"width": self.width, "steps": self.steps})


def search(
    growth: Growth, plan: Plan, expand: Expand, batch: int, stop: Stop, rounds: int = ANY,
) -> Generator[Frontier, Received, tuple[list[int], list[float]]]:
    """The best-first loop: grows until every node that would be kept was expanded; returns the kept nodes, ordered."""
    pool: list[tuple[float, int, int]] = []             # (−log survival, depth, node), sorted
    value: dict[int, float] = {ROOT: 0.0}
    expanded: set[int] = set()
    frontier = [ROOT]
    nodes, depth, width = plan.nodes, plan.depth, plan.width
    wide = width >= nodes
    kept: list[tuple[float, int, int]] = []
    end = 0
    while frontier and rounds > 0 and depth > 0:
        rounds -= 1
        children = yield from expand(frontier)
        expanded.update(frontier)
        for v, edge in children:
            value[v] = score = value[growth.parent[v]] + edge
            insort(pool, (-score, growth.depth[v], v))
        if wide:
            del pool[nodes:]                            # never among the best again
        kept = _kept(growth, pool, nodes, width, stop)
        frontier, end = _next(plan, kept, expanded, batch)
    del kept[max(end, 1) :]
    survival = [math.exp(-minus) for minus, _, _ in kept]
    n = stop.cut(survival)
    return [v for _, _, v in kept[:n]], survival[:n]


def _next(
    plan: Plan, kept: list[tuple[float, int, int]], expanded: set[int], batch: int
) -> tuple[list[int], int]:
    """The best nodes not yet expanded, at most `batch`, and how many stand before the first no cut will keep.

    What stands before the first that is not expanded is final: its children can only come behind it.
    """
    out: list[int] = []
    total = 0.0
    for count, (minus, d, v) in enumerate(kept):
        s = math.exp(-minus)
        if v not in expanded:
            if len(out) == batch:
                break
            if plan.worth is not None and not plan.worth(s, count, total):
                return out, count
            if d < plan.depth:
                out.append(v)
        total += s
    return out, len(kept)


def _kept(
    growth: Growth, pool: list[tuple[float, int, int]], nodes: int, width: int, stop: Stop
) -> list[tuple[float, int, int]]:
    """The longest admitted head of a sorted pool, at most `width` nodes a depth, orphans passed over."""
    if width >= nodes and isinstance(stop, Budget):
        return pool[: min(nodes, stop.nodes)]           # a parent stands before its children
    parent = growth.parent
    out: list[tuple[float, int, int]] = []
    inside = {ROOT}
    used: dict[int, int] = {}
    total = 0.0
    for item in pool:
        minus, d, v = item
        if len(out) >= nodes:
            break
        if parent[v] not in inside or used.get(d, 0) >= width:
            continue
        s = math.exp(-minus)
        if not stop.admits(s, len(out), total):
            break
        total += s
        used[d] = used.get(d, 0) + 1
        inside.add(v)
        out.append(item)
    return out
