"""Layer-wise trees: expand the best of a layer, keep a pool, rank it at the end; drafter calls = depth.

A policy of this family is a composition: a *gate* chooses which new nodes are expanded, a *halt* says when the last
layer was drafted, a *score* ranks, a *stop* cuts. Gates are in `gate`, halts in `halt`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hedgerow.core.errors import RecipeError
from hedgerow.core.parts import Frontier, Grow, GrowSpec, Plan, Received, View
from hedgerow.core.tree import ROOT, Selection
from hedgerow.policy.order import admit
from hedgerow.policy.parts import Gate, Halt, Keep, Layers, Score, Stop
from hedgerow.policy.score import PathProbability
from hedgerow.policy.stop import Budget


@dataclass(frozen=True)
class Layerwise:
    """Expand the root to `first` children and every gated node to `fanout`, layer by layer; then rank and cut.

    Deterministic selections only: ranking drops siblings for what they are.

    Raises: RecipeError for a drawn selection.

    Source: EAGLE-2 (2406.16858) sections 4.1-4.2 with `fanout=10, gate=Beam(10), halt=Depth(6), stop=Budget(59)`.
    """

    fanout: int
    gate: Gate
    halt: Halt
    stop: Stop = field(default_factory=Budget)
    score: Score = field(default_factory=PathProbability)
    first: int | None = None
    selection: Selection = Selection.TOP_K
    source: int = 0

    def __post_init__(self) -> None:
        refuse_drawn("layer-wise growth", self.selection)

    @property
    def selections(self) -> frozenset[Selection]:
        """The one selection of its nodes."""
        return frozenset({self.selection})

    @property
    def reads_tokens(self) -> bool:
        """Whether its gate or score does."""
        return self.gate.reads_tokens or self.score.reads_tokens

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier a layer."""
        return (yield from self.resume(view, plan, None))

    def resume(self, view: View, plan: Plan, received: Received | None) -> Grow:
        """The same, with the root's children already drafted if `received` is given."""
        growth = view.growth
        source = self.source if plan.source is None else plan.source
        nodes = plan.nodes
        layers = Layers(view, nodes, beam=[ROOT])
        end: Keep | None = None
        while end is None and layers.beam and layers.depth < plan.depth:
            fanout = min(self.fanout if layers.depth or self.first is None else self.first, plan.width)
            if received is None:
                received = yield Frontier(layers.beam, [fanout] * len(layers.beam), source, self.selection)
            ids, value, parent = received.ids, layers.value, growth.parent
            for v, edge in zip(ids, self.score.edges(growth, received), strict=True):
                value[v] = value[parent[v]] + edge
            layers.heads.append(ids[: received.children.count[0]])
            layers.depth += 1
            if layers.depth == 1:
                ids = ids[:fanout]
            received = None
            room = min(plan.width, nodes - len(layers.pool)) if self.gate.only else plan.width
            layers.beam = self.gate.choose(layers, ids, room)
            layers.pool += sorted(layers.beam) if self.gate.only else ids
            end = self.halt.keep(layers)
        if end is not None:
            if end.layers < layers.depth:
                layers.pool = [v for v in layers.pool if growth.depth[v] <= end.layers]
            nodes = nodes if end.nodes is None else min(nodes, end.nodes)
        chosen = admit(growth, layers.ranked(layers.pool), nodes, plan.width)
        survival = [math.exp(layers.value[v]) for v in chosen]
        n = self.stop.cut(survival)
        return growth.tree(chosen[:n], survival[:n])

    def spec(self) -> GrowSpec | None:
        """Not yet written as data."""
        return None


def refuse_drawn(what: str, selection: Selection) -> None:
    """Raise RecipeError if `selection` is drawn: `what` ranks siblings and would drop draws for what they are."""
    if selection.drawn:
        raise RecipeError(
            f"{what} ranks siblings by what was drawn, which selection {selection.label!r} does not allow; "
            "use top_k, retrieved or coupled here, or policy Fixed or Slots for drawn children"
        )
