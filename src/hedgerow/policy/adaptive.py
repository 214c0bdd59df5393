"""Policies that pick their setting before they draft: by the target's last entropy, or by recent acceptance."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Frontier, Grow, GrowSpec, Plan, Policy, View
from hedgerow.core.tree import ROOT, Selection
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import Depth
from hedgerow.policy.layerwise import Layerwise, refuse_drawn
from hedgerow.policy.stop import Budget


@dataclass(frozen=True)
class ByEntropy:
    """One policy per range of the entropy of the target's law that chose the root: policies[b] up to edges[b], in nats.

    Low entropy suits deep and narrow, high entropy shallow and wide, at equal size. Where the entropy is unknown the
    middle policy serves.

    Raises: UsageError unless there is one policy more than edges and edges rise.

    Source: SAGE (2602.00523). Differs from the paper in: its map is not printed; edges come from a trace's quantiles.
    """

    edges: tuple[float, ...]
    policies: tuple[Policy, ...]
    reads_entropy = True

    def __post_init__(self) -> None:
        if len(self.policies) != len(self.edges) + 1 or list(self.edges) != sorted(self.edges):
            raise UsageError(
                f"{len(self.policies)} policies for entropy edges {self.edges}; allowed: rising edges, one policy more"
            )

    @property
    def selections(self) -> frozenset[Selection]:
        """What any of its policies may yield."""
        return frozenset().union(*(p.selections for p in self.policies))

    @property
    def reads_tokens(self) -> bool:
        """Whether any of its policies does."""
        return any(p.reads_tokens for p in self.policies)

    def grow(self, view: View, plan: Plan) -> Grow:
        """The chosen policy's growth."""
        at = len(self.policies) // 2 if view.entropy is None else bisect_right(self.edges, view.entropy)
        return (yield from self.policies[at].grow(view, plan))

    def spec(self) -> GrowSpec | None:
        """Not yet written as data."""
        return None


class Setting(NamedTuple):
    """Layers drafted, children a node, nodes verified (root excluded)."""

    depth: int
    top_k: int
    nodes: int


def interpolate(low: Setting, high: Setting, x: float) -> Setting:
    """The setting between `low` (x = 0) and `high` (x = 1), each number rounded, halves up.

    >>> interpolate(Setting(3, 4, 3), Setting(7, 1, 7), 0.5)
    Setting(depth=5, top_k=3, nodes=5)
    """
    x = min(max(x, 0.0), 1.0)
    return Setting(*(math.floor(a + x * (b - a) + 0.5) for a, b in zip(low, high, strict=True)))


WIDE, CHAIN = Setting(3, 4, 3), Setting(7, 1, 7)


@dataclass
class Regime:
    """Recent acceptance of every request: an average with factor `alpha`, and a breaker after `patience` empty steps.

    Whoever sees the verdicts calls `observe`; the policy reads `rate`. Mutated by `observe` and `forget`.

    Source: AdaptiveSpec (2609.02897), draft confidence score: alpha 0.3, breaker after 5 steps.
    """

    alpha: float = 0.3
    patience: int = 5
    _rate: dict[int, float] = field(default_factory=dict)
    _empty: dict[int, int] = field(default_factory=dict)

    def rate(self, request: int) -> float:
        """Recent accepted / drafted, 1 before anything was seen, 0 while the breaker is open."""
        return 0.0 if self._empty.get(request, 0) >= self.patience else self._rate.get(request, 1.0)

    def observe(self, request: int, accepted: int, drafted: int) -> None:
        """Record a step; steps without drafts teach nothing. An accepted token closes the breaker."""
        if drafted <= 0:
            return
        now = accepted / drafted
        before = self._rate.get(request)
        self._rate[request] = now if before is None else (1.0 - self.alpha) * before + self.alpha * now
        self._empty[request] = self._empty.get(request, 0) + 1 if accepted == 0 else 0

    def forget(self, request: int) -> None:
        """Drop a finished request."""
        self._rate.pop(request, None)
        self._empty.pop(request, None)


@dataclass(frozen=True)
class Adaptive:
    """Layer-wise growth whose (depth, top_k, nodes) follows confidence × recent acceptance.

    x = min(1, q(best child of the root) · rate / knee) moves the setting from `low` (wide) to `high` (a chain).

    Raises: RecipeError for a drawn selection.

    Source: AdaptiveSpec (2609.02897), tree axis, which is lossless: (3, 4, 4) to (7, 1, 8) with the root counted, knee
    0.5. Differs from the paper in: acceptance is accepted over drafted on the verified depth.
    """

    regime: Regime = field(default_factory=Regime)
    low: Setting = WIDE
    high: Setting = CHAIN
    knee: float = 0.5
    selection: Selection = Selection.TOP_K
    source: int = 0
    reads_tokens = False

    def __post_init__(self) -> None:
        refuse_drawn("layer-wise growth", self.selection)

    @property
    def selections(self) -> frozenset[Selection]:
        """The one selection of its nodes."""
        return frozenset({self.selection})

    def grow(self, view: View, plan: Plan) -> Grow:
        """The root's children first; they decide the setting of the rest."""
        source = self.source if plan.source is None else plan.source
        most = min(max(self.low.top_k, self.high.top_k), plan.width)
        received = yield Frontier([ROOT], [most], source, self.selection)
        top = math.exp(max((view.growth.log_q[v] for v in received.ids), default=-math.inf))
        setting = interpolate(self.low, self.high, top * self.regime.rate(view.request) / self.knee)
        rest = Layerwise(
            setting.top_k, Beam(setting.top_k), Depth(setting.depth), Budget(setting.nodes),
            selection=self.selection, source=source,
        )
        return (yield from rest.resume(view, plan, received))

    def spec(self) -> GrowSpec | None:
        """Not yet written as data."""
        return None
