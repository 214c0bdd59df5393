"""Fixed shapes filled with tokens, level by level: one drafter call a level."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hedgerow.core.parts import Frontier, Grow, GrowSpec, Plan, Received, View
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import ROOT, Growth, Selection


@dataclass(frozen=True)
class Fixed:
    """Fill a shape: node i becomes the `rank[i]`-th child its parent got; subtrees of missing children are left out.

    The plan's caps shorten the shape before anything is drafted, so any selection may be used. A plan's template
    replaces the shape. `order` says what survival is: the shape's own estimates, or what the drafter's q says
    (`path`: product of q; for drawn nodes the value of their slot, known before the draw).

    Source: SpecInfer (2305.09781), Medusa (2401.10774), Sequoia (2402.12374), Token Recycling (2408.08696): a static
    tree, whatever the shape came from.
    """

    shape: TreeShape
    selection: Selection = Selection.TOP_K
    source: int = 0
    order: Literal["shape", "path"] = "shape"
    reads_tokens = False

    @property
    def selections(self) -> frozenset[Selection]:
        """The one selection of its nodes."""
        return frozenset({self.selection})

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier a level."""
        shape = capped(plan.template or self.shape, plan.nodes, plan.depth, plan.width)
        if self.selection is Selection.HUB:
            shape = paired(shape)
        source = self.source if plan.source is None else plan.source
        arrival = yield from fill(shape.parent.tolist(), shape.rank.tolist(), source, self.selection)
        nodes = list(arrival.values())
        if self.order == "path":
            return view.growth.tree(nodes, path_survival(view.growth, nodes))
        return view.growth.tree(nodes, [float(shape.survival[v]) for v in arrival])

    def spec(self) -> GrowSpec | None:
        """A fixed shape needs no decisions: its size says it all."""
        return GrowSpec("fixed", {"nodes": self.shape.nodes, "depth": self.shape.max_depth})


def fill(
    parent: Sequence[int], rank: Sequence[int], source: int, selection: Selection,
    known: dict[int, range] | None = None,
) -> Generator[Frontier, Received, dict[int, int]]:
    """Draft a shape (parents before children): shape index -> arrival index of every node that was answered.

    `known[arrival]` are children that were drafted before (of the root too, as -1); they are not asked for again.
    """
    below: dict[int, list[int]] = {}
    for v, p in enumerate(parent):
        below.setdefault(p, []).append(v)
    have = dict(known or {})
    arrival: dict[int, int] = {ROOT: ROOT}
    level = [ROOT]
    while level:
        parents = [v for v in level if v in below]
        asked = [v for v in parents if arrival[v] not in have]
        if asked:
            counts = [max(rank[c] for c in below[v]) + 1 for v in asked]
            received = yield Frontier([arrival[v] for v in asked], counts, source, selection)
            start = received.ids.start
            for v, c in zip(asked, received.children.count, strict=True):
                have[arrival[v]] = range(start, start + c)
                start += c
        level = []
        for v in parents:
            ids = have[arrival[v]]
            for child in below[v]:
                if rank[child] < len(ids):
                    arrival[child] = ids[rank[child]]
                    level.append(child)
    del arrival[ROOT]
    return arrival


def capped(shape: TreeShape, nodes: int, depth: int, width: int) -> TreeShape:
    """The first nodes of a shape, in its order, that fit the caps; what hangs below or after a node left out goes too.

    >>> from hedgerow.core.shape import TreeShape
    >>> capped(TreeShape.from_paths([(0,), (1,), (0, 0)]), nodes=9, depth=9, width=1).paths
    ((0,), (0, 0))
    """
    if nodes >= shape.nodes and depth >= shape.max_depth and width >= max(shape.level_sizes, default=0):
        return shape
    levels = shape.depth.tolist()
    kept: list[int] = []
    inside = {ROOT}
    used: dict[int, int] = {}
    siblings: dict[int, int] = {}                       # children kept so far, per parent
    for v, (p, r) in enumerate(zip(shape.parent.tolist(), shape.rank.tolist(), strict=True)):
        d = levels[v]
        if len(kept) == nodes:
            break
        if d > depth or p not in inside or used.get(d, 0) >= width or siblings.get(p, 0) != r:
            continue
        used[d] = used.get(d, 0) + 1
        siblings[p] = r + 1
        inside.add(v)
        kept.append(v)
    return _only(shape, kept)


def paired(shape: TreeShape) -> TreeShape:
    """A shape without only children and what hangs below them: hub draws come in pairs.

    >>> from hedgerow.core.shape import TreeShape
    >>> paired(TreeShape.from_paths([(0,), (1,), (0, 0)])).paths
    ((0,), (1,))
    """
    inside, kept = {ROOT}, []
    for v, p in enumerate(shape.parent.tolist()):
        if p in inside and shape.child_counts[p + 1] > 1:
            inside.add(v)
            kept.append(v)
    return _only(shape, kept)


def _only(shape: TreeShape, kept: list[int]) -> TreeShape:
    index = {v: i for i, v in enumerate(kept)} | {ROOT: ROOT}
    at = np.array(kept, np.int64)
    parents = np.array([index[int(p)] for p in shape.parent[at]], np.int64)
    return TreeShape(parents, shape.rank[at], shape.survival[at])


def path_survival(growth: Growth, nodes: Sequence[int]) -> list[float]:
    """Survival of each node of a closed set by the drafter's own q.

    Deterministic nodes: the product of q along the path. Drawn nodes: s(parent) × (1 − Σ q of earlier draws), the
    chance that the rule reaches the slot, known before its token; below it s = s(parent) × q of the token.

    Source: DySpec (2410.11744), slot values.
    """
    reach: dict[int, float] = {ROOT: 1.0}               # chance that a node is accepted, tokens known
    gone: dict[tuple[int, int], float] = {}             # mass already drawn below a parent
    out: dict[int, float] = {}
    for v in sorted(nodes):
        p, q = growth.parent[v], math.exp(growth.log_q[v])
        reach[v] = reach[p] * q
        if growth.selection[v] >= Selection.IID:
            key = (p, growth.source[v])
            used = gone.get(key, 0.0)
            out[v] = reach[p] * max(0.0, 1.0 - used)
            gone[key] = used + q
        else:
            out[v] = reach[v]
    return [out[v] for v in nodes]
