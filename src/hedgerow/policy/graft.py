"""Graft: one ordered tree out of several sources, without duplicates.

Best-first over the union: a node worth expanding is expanded by every source; children of one parent that carry the
same token are one node, whose survival says what the sources together believe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Frontier, Grow, GrowSpec, Plan, Received, View
from hedgerow.core.tree import Selection
from hedgerow.policy.bestfirst import Expansion, search
from hedgerow.policy.layerwise import refuse_drawn
from hedgerow.policy.parts import Score, Stop
from hedgerow.policy.score import PathProbability
from hedgerow.policy.stop import ANY, Budget

Combine = Callable[[Sequence[float]], float]            # survival by source (0: did not propose) -> survival


def noisy_or(survival: Sequence[float]) -> float:
    """1 − Π (1 − s): right if at least one source is, sources being independent.

    >>> noisy_or([0.5, 0.5, 0.0])
    0.75
    """
    return 1.0 - math.prod(1.0 - s for s in survival)


@dataclass(frozen=True)
class Mixture:
    """Σ weight × s: sources as experts; weights sum to at most 1.

    Raises: UsageError for weights below 0 or of sum above 1.

    >>> Mixture((0.5, 0.25))([0.5, 1.0])
    0.5
    """

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if min(self.weights) < 0.0 or sum(self.weights) > 1.0 + 1e-9:
            raise UsageError(f"mixture weights are {self.weights}; allowed: 0 or more each, at most 1 in all")

    def __call__(self, survival: Sequence[float]) -> float:
        """The weighted sum."""
        return sum(w * s for w, s in zip(self.weights, survival, strict=True))


@dataclass(frozen=True)
class Graft:
    """Best-first growth in which every source expands every chosen node and equal children are merged.

    `fanout` children are asked of each source for each node. Sources may have their own score and selection (one for
    all, or one each). Deterministic selections only: merging looks at tokens.

    Raises: RecipeError for a drawn selection.

    Source: Graft (2605.20104), TreeGraft (2608.26112): trees of several drafters united. Differs from the papers in:
    the sources grow one tree together instead of being merged afterwards.
    """

    sources: tuple[int, ...]
    fanout: int = 4
    batch: int = 8
    combine: Combine = max
    stop: Stop = field(default_factory=Budget)
    scores: tuple[Score, ...] = (PathProbability(),)
    selection: Selection | tuple[Selection, ...] = Selection.RETRIEVED
    rounds: int = ANY
    reads_tokens = True

    def __post_init__(self) -> None:
        if not self.sources or len(self.scores) not in (1, len(self.sources)):
            raise UsageError(f"{len(self.scores)} scores for {len(self.sources)} sources; allowed: one, or one each")
        if isinstance(self.selection, tuple) and len(self.selection) != len(self.sources):
            raise UsageError(
                f"{len(self.selection)} selections for {len(self.sources)} sources; allowed: one, or one each"
            )
        for selection in self.selections:
            refuse_drawn("grafting", selection)

    @property
    def selections(self) -> frozenset[Selection]:
        """Every selection a source may answer with."""
        return frozenset(self.selection if isinstance(self.selection, tuple) else (self.selection,))

    def _selection(self, i: int) -> Selection:
        return self.selection[i] if isinstance(self.selection, tuple) else self.selection

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier a source and round."""
        growth = view.growth
        wanted = [i for i, s in enumerate(self.sources) if plan.source in (None, s)]
        fanout = min(self.fanout, plan.nodes, plan.width)

        def expand(nodes: list[int]) -> Expansion:
            answers = []
            for i in wanted:
                received = yield Frontier(nodes, [fanout] * len(nodes), self.sources[i], self._selection(i))
                answers.append((i, received, self.scores[i if len(self.scores) > 1 else 0].edges(growth, received)))
            return merge(growth.parent, growth.token, answers, len(self.sources), self.combine)

        chosen, survival = yield from search(growth, plan, expand, self.batch, self.stop, self.rounds)
        return growth.tree(chosen, survival)

    def spec(self) -> GrowSpec | None:
        """Retrieval has no device form."""
        return None


def merge(
    parent: Sequence[int], token: Sequence[int], answers: Sequence[tuple[int, Received, Sequence[float]]],
    sources: int, combine: Combine,
) -> list[tuple[int, float]]:
    """One (node, log survival) for every (parent, token): the arrival its strongest source gave, survivals combined."""
    seen: dict[tuple[int, int], tuple[int, float, list[float]]] = {}
    for i, received, edges in answers:
        for v, edge in zip(received.ids, edges, strict=True):
            key = (parent[v], token[v])
            held = seen.get(key)
            if held is None:
                each = [0.0] * sources
                each[i] = math.exp(edge)
                seen[key] = (v, edge, each)
            else:
                each = held[2]
                each[i] = max(each[i], math.exp(edge))
                if edge > held[1]:
                    seen[key] = (v, edge, each)
    return [(v, _log(combine(each))) for v, _, each in seen.values()]


def _log(survival: float) -> float:
    return math.log(min(survival, 1.0)) if survival > 0.0 else -math.inf
