"""Graph merging: a hypothesis that repeats another's ending is not drafted again but borrows its continuation."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from hedgerow.core.parts import Frontier, Grow, GrowSpec, Plan, View
from hedgerow.core.tree import ROOT, Growth, Selection
from hedgerow.policy.layerwise import refuse_drawn
from hedgerow.policy.parts import Layers


@dataclass(frozen=True)
class Merged:
    """Layer-wise growth that expands a node once per context of its last `match` + 1 tokens.

    A node repeats another, which stands off its own path and was expanded before, if both end in the same
    `match` + 1 tokens; it is linked instead of expanded. Nodes below `floor` are not expanded. At the end the graph is
    unrolled, best nodes first: the continuation of a link is copied under it as a proposal of its own.

    Raises: RecipeError for a drawn selection.

    Source: GSD (2407.16207) section 3. Differs from the paper in: the target gets the unrolled tree, cut to the budget.
    """

    k: int = 8
    layers: int = 8
    match: int = 1
    floor: float = 0.0
    selection: Selection = Selection.TOP_K
    source: int = 0
    reads_tokens = True

    def __post_init__(self) -> None:
        refuse_drawn("graph merging", self.selection)

    @property
    def selections(self) -> frozenset[Selection]:
        """The drafted nodes' selection; copies count as retrieved."""
        return frozenset({self.selection, Selection.RETRIEVED})

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier a layer."""
        growth = view.growth
        source = self.source if plan.source is None else plan.source
        state = Layers(view, plan.nodes, beam=[ROOT])
        k = min(self.k, plan.width)
        kids: dict[int, list[int]] = {}
        twin: dict[int, int] = {}                       # node -> the node whose continuation it borrows
        seen: dict[tuple[int, ...], list[int]] = {}     # last tokens -> expanded nodes
        while state.beam and state.depth < min(self.layers, plan.depth):
            received = yield Frontier(state.beam, [k] * len(state.beam), source, self.selection)
            for v in received.ids:
                state.value[v] = growth.log_q[v] + state.value[growth.parent[v]]
                kids.setdefault(growth.parent[v], []).append(v)
            state.depth += 1
            state.beam = []
            for v in state.ranked(received.ids):
                if math.exp(state.value[v]) < self.floor:
                    break
                ending = growth.tokens_to(v)[-self.match - 1 :]
                other = next((u for u in seen.get(ending, ()) if not _above(growth, u, v)), None)
                if len(ending) == self.match + 1 and other is not None:
                    twin[v] = other
                elif len(state.beam) < k:
                    seen.setdefault(ending, []).append(v)
                    state.beam.append(v)
        chosen, survival = unroll(growth, state.value, kids, twin, plan)
        return growth.tree(chosen, survival)

    def spec(self) -> GrowSpec | None:
        """Not yet written as data."""
        return None


def _above(growth: Growth, u: int, v: int) -> bool:
    """Whether u is v or one of its ancestors."""
    while v > u:
        v = growth.parent[v]
    return v == u


def unroll(
    growth: Growth, value: dict[int, float], kids: dict[int, list[int]], twin: dict[int, int], plan: Plan
) -> tuple[list[int], list[float]]:
    """The best nodes of the graph as a tree: nodes and survivals; copies are appended to `growth` (mutated)."""
    heap = [(-value[v], 1, v, ROOT) for v in kids.get(ROOT, [])]   # (−log survival, depth, drafted node, parent)
    heapq.heapify(heap)
    used: dict[int, int] = {}
    chosen: list[int] = []
    survival: list[float] = []
    while heap and len(chosen) < plan.nodes:
        minus, depth, drafted, parent = heapq.heappop(heap)
        if used.get(depth, 0) >= plan.width:
            continue
        used[depth] = used.get(depth, 0) + 1
        v = drafted
        if growth.parent[drafted] != parent:
            v = growth.add(
                [parent], [1], [growth.token[drafted]], [growth.log_q[drafted]], [growth.origin[drafted]],
                source=growth.source[drafted], selection=Selection.RETRIEVED,
            )[0]
        chosen.append(v)
        survival.append(math.exp(-minus))
        if depth < plan.depth:
            for child in kids.get(twin.get(drafted, drafted), ()):
                heapq.heappush(heap, (minus - growth.log_q[child], depth + 1, child, v))
    return chosen, survival
