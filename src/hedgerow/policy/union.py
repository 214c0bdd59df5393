"""Two sources one after the other: prune and refill, or draft cheaply and let a stronger drafter rescore."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Frontier, Grow, GrowSpec, Plan, Received, View
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import ROOT, Selection
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import Confidence, confidence
from hedgerow.policy.layerwise import refuse_drawn
from hedgerow.policy.order import admit
from hedgerow.policy.parts import Layers, Score, Stop
from hedgerow.policy.score import PathProbability
from hedgerow.policy.stop import Budget

CHECKPOINTS = {1: 0.35, 2: 0.25, 6: 0.15}
SHARES = {1: 0.13, 2: 0.40, 6: 0.67}


@dataclass(frozen=True)
class PruneGraft:
    """Draft by layers; at a doubtful checkpoint stop, keep a share of the budget, and fill the rest by retrieval.

    `thresholds[layer]` is the least best-path probability after that layer, `shares[layer]` the part of the budget
    kept when it is missed: round(share · nodes). The freed nodes follow `template` from the root, drafted by
    `retrieval`; a retrieved node that is there already is not counted and is built upon. Without a miss, or with a
    retrieval source that knows nothing, it is layer-wise growth.

    Raises: UsageError where thresholds and shares name different layers; RecipeError for a drawn selection.

    Source: Graft (2605.20104): layers 1, 2, 6 (there counted from 0), shares .13, .40, .67, successors k = 9.
    """

    template: TreeShape
    k: int = 10
    layers: int = 8
    thresholds: Mapping[int, float] = field(default_factory=lambda: dict(CHECKPOINTS))
    shares: Mapping[int, float] = field(default_factory=lambda: dict(SHARES))
    selection: Selection = Selection.TOP_K
    retrieval_score: Score = field(default_factory=PathProbability)
    source: int = 0
    retrieval: int = 1
    reads_tokens = True

    def __post_init__(self) -> None:
        refuse_drawn("grafting", self.selection)
        if set(self.thresholds) != set(self.shares):
            raise UsageError(
                f"checkpoints {sorted(self.thresholds)} have thresholds, {sorted(self.shares)} have shares; "
                "give both for the same layers"
            )

    @property
    def selections(self) -> frozenset[Selection]:
        """The drafter's selection and the retrieval's."""
        return frozenset({self.selection, Selection.RETRIEVED})

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier a layer, then one a template level."""
        growth = view.growth
        state = Layers(view, plan.nodes, beam=[ROOT])
        halt, gate = Confidence(self.thresholds, min(self.layers, plan.depth)), Beam(self.k)
        kept = plan.nodes
        while state.beam:
            fanout = min(self.k, plan.width)
            received = yield Frontier(state.beam, [fanout] * len(state.beam), self.source, self.selection)
            for v in received.ids:
                state.value[v] = growth.log_q[v] + state.value[growth.parent[v]]
            state.depth += 1
            state.pool += received.ids
            state.beam = gate.choose(state, received.ids, plan.width)
            if halt.keep(state) is not None:
                if confidence(state) < self.thresholds.get(state.depth, 0.0):
                    kept = kept_nodes(self.shares[state.depth], plan.nodes)
                break
        chosen = admit(growth, state.ranked(state.pool), kept, plan.width)
        if kept < plan.nodes:
            chosen += yield from self._refill(state, chosen, plan)
        return growth.tree(chosen, [math.exp(state.value[v]) for v in chosen])

    def _refill(
        self, state: Layers, chosen: list[int], plan: Plan
    ) -> Generator[Frontier, Received, list[int]]:
        growth = state.growth
        at = {(growth.parent[v], growth.token[v]): v for v in chosen}
        used: dict[int, int] = {}
        for v in chosen:
            used[growth.depth[v]] = used.get(growth.depth[v], 0) + 1
        below: dict[int, list[int]] = {}
        for v, p in enumerate(self.template.parent.tolist()):
            below.setdefault(p, []).append(v)
        rank = self.template.rank.tolist()
        new: list[int] = []
        level, free = {ROOT: ROOT}, plan.nodes - len(chosen)    # template node -> arrival
        for depth in range(1, plan.depth + 1):
            asked = [t for t in level if t in below]
            if not asked or free <= 0:
                break
            counts = [max(rank[c] for c in below[t]) + 1 for t in asked]
            received = yield Frontier([level[t] for t in asked], counts, self.retrieval, Selection.RETRIEVED)
            edge = dict(zip(received.ids, self.retrieval_score.edges(growth, received), strict=True))
            start, reached = received.ids.start, {}
            for t, count in zip(asked, received.children.count, strict=True):
                for c in below[t]:
                    if rank[c] >= count:
                        continue
                    v = start + rank[c]
                    key = (growth.parent[v], growth.token[v])
                    if key not in at and free > 0 and used.get(depth, 0) < plan.width:
                        at[key] = v
                        state.value[v] = edge[v] + state.value[growth.parent[v]]
                        new.append(v)
                        used[depth] = used.get(depth, 0) + 1
                        free -= 1
                    if key in at:
                        reached[c] = at[key]
                start += count
            level = reached
        return new

    def spec(self) -> GrowSpec | None:
        """Retrieval has no device form."""
        return None


def kept_nodes(share: float, nodes: int) -> int:
    """Draft nodes kept of a budget: round(share · nodes).

    >>> [kept_nodes(f, 60) for f in (0.13, 0.40, 0.67)]
    [8, 24, 40]
    """
    return round(share * nodes)


@dataclass(frozen=True)
class Rescored:
    """A weak drafter grows a tree by layers; a stronger one expands all of it in one call, rescores it and adds to it.

    The strong drafter's word counts where it gave one. A weak child it does not list keeps its own survival, but at
    most what the strong drafter left: 1 − Σ q of those listed. Then the union is ranked and cut.

    Raises: RecipeError for a drawn selection.

    Source: TreeGraft (2608.26112). Differs from the paper in: its scheduler is distilled; here `weak_nodes` and a stop.
    """

    k: int = 8
    layers: int = 6
    weak_nodes: int = 32
    stop: Stop = field(default_factory=Budget)
    selection: Selection = Selection.TOP_K
    weak: int = 0
    strong: int = 1
    reads_tokens = True

    def __post_init__(self) -> None:
        refuse_drawn("grafting", self.selection)

    @property
    def selections(self) -> frozenset[Selection]:
        """The one selection of both."""
        return frozenset({self.selection})

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier a weak layer, then one strong frontier."""
        growth = view.growth
        state = Layers(view, plan.nodes, beam=[ROOT])
        k = min(self.k, plan.width)
        while state.beam and state.depth < min(self.layers, plan.depth):
            received = yield Frontier(state.beam, [k] * len(state.beam), self.weak, self.selection)
            for v in received.ids:
                state.value[v] = growth.log_q[v] + state.value[growth.parent[v]]
            state.depth += 1
            state.pool += received.ids
            state.beam = state.ranked(received.ids)[:k]
        drafted = admit(growth, state.ranked(state.pool), self.weak_nodes, plan.width)
        inner = [ROOT, *(v for v in drafted if growth.depth[v] < plan.depth)]
        received = yield Frontier(inner, [k] * len(inner), self.strong, self.selection)
        strong = {(growth.parent[v], growth.token[v]): growth.log_q[v] for v in received.ids}
        listed = dict.fromkeys(inner, 0.0)
        for v in received.ids:
            listed[growth.parent[v]] += math.exp(growth.log_q[v])
        edge: dict[tuple[int, int], tuple[int, float]] = {}
        for v in drafted:
            p = growth.parent[v]
            left = max(0.0, 1.0 - listed.get(p, 0.0))
            capped = min(growth.log_q[v], math.log(left)) if left > 0.0 else -math.inf
            edge[p, growth.token[v]] = (v, strong.get((p, growth.token[v]), capped))
        for v in received.ids:
            edge.setdefault((growth.parent[v], growth.token[v]), (v, growth.log_q[v]))
        state.value = {ROOT: 0.0}
        for v, log_edge in sorted(edge.values()):       # arrivals come parent first
            state.value[v] = state.value[growth.parent[v]] + log_edge
        ranked = [v for v in state.ranked([v for v in state.value if v != ROOT]) if state.value[v] > -math.inf]
        chosen = admit(growth, ranked, plan.nodes, plan.width)
        survival = [math.exp(state.value[v]) for v in chosen]
        n = self.stop.cut(survival)
        return growth.tree(chosen[:n], survival[:n])

    def spec(self) -> GrowSpec | None:
        """Not yet written as data."""
        return None
