"""Halts of layer-wise growth: when the last layer was drafted."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hedgerow.core.errors import UsageError
from hedgerow.policy.parts import Keep, Layers


@dataclass(frozen=True)
class Depth:
    """Draft `layers` layers."""

    layers: int

    def keep(self, layers: Layers) -> Keep | None:
        """At the given depth."""
        return Keep(layers.depth) if layers.depth >= self.layers else None


@dataclass(frozen=True)
class Gain:
    """Draft on while a layer adds more than `delta` expected tokens; the layer that does not is left out.

    The gain of layer d is E_d − E_(d−1), with E_d the expected accepted tokens of the best `nodes` nodes down to d.
    delta −∞ never stops.

    Source: OPT-Tree (2406.17276) section 3.3: delta between the draft-to-target time ratio and 1.
    """

    delta: float

    def keep(self, layers: Layers) -> Keep | None:
        """At the first layer that gains too little; the first layer is always kept."""
        gain = layers.expected(layers.depth) - layers.expected(layers.depth - 1)
        return None if gain > self.delta else Keep(max(1, layers.depth - 1))


@dataclass(frozen=True)
class BreakEven:
    """Draft on while a layer's gain pays for the next call: gain > F · draft_s / (depth · draft_s + step_s(rows)).

    What was drafted is kept. `step_s(rows)` is the target's time, `draft_s` one draft call's.

    Source: OPT-Tree (2406.17276) with its constant delta replaced by the break-even point.
    """

    draft_s: float
    step_s: Callable[[int], float]

    def keep(self, layers: Layers) -> Keep | None:
        """At the first layer that does not pay."""
        now = layers.expected(layers.depth)
        rows = 1 + min(layers.nodes, len(layers.pool))
        spent = layers.depth * self.draft_s + self.step_s(rows)
        pays = now - layers.expected(layers.depth - 1) > (1.0 + now) * self.draft_s / spent
        return None if pays else Keep(layers.depth)


@dataclass(frozen=True)
class BeamMass:
    """Stop when H = log Σ exp(log survival of the beam) falls below `threshold`, looked at after the layers `checks`.

    threshold −∞ never stops; `layers` is the most drafted.

    Source: Dynamic Depth Decoding (2409.00142). Differs from the paper in: threshold and checks are not printed there.
    """

    threshold: float
    checks: tuple[int, ...] = (5, 7, 9)
    layers: int = 11

    def keep(self, layers: Layers) -> Keep | None:
        """At a check with too little mass, or at the last layer."""
        thin = layers.depth in self.checks and beam_mass([layers.value[v] for v in layers.beam]) < self.threshold
        return Keep(layers.depth) if thin or layers.depth >= self.layers else None


def beam_mass(values: list[float]) -> float:
    """log Σ exp(value), −∞ for an empty beam.

    >>> round(beam_mass([math.log(0.5), math.log(0.25)]), 12) == round(math.log(0.75), 12)
    True
    """
    top = max(values, default=-math.inf)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(v - top) for v in values))


@dataclass(frozen=True)
class Confidence:
    """Stop after a layer whose best path probability is below that layer's threshold; `layers` is the most drafted.

    Source: the checkpoints of Graft (2605.20104), counted from 1 here.
    """

    thresholds: Mapping[int, float]
    layers: int

    def keep(self, layers: Layers) -> Keep | None:
        """At the first doubtful checkpoint, or at the last layer."""
        doubtful = confidence(layers) < self.thresholds.get(layers.depth, 0.0)
        return Keep(layers.depth) if doubtful or layers.depth >= self.layers else None


def confidence(layers: Layers) -> float:
    """exp of the best log path probability of the newest layer, 0 for an empty one."""
    return math.exp(layers.value[layers.beam[0]]) if layers.beam else 0.0


@dataclass(frozen=True)
class Bins:
    """After `after` layers, the entropy met along the best path picks a bin; the bin says how much deeper and how many.

    Bin b holds sums of entropy in [edges[b − 1], edges[b]); `extra[b]` more layers are drafted, `nodes[b]` verified.

    Source: HeteroSpec (2505.13254). Differs from the paper in: its bin edges are per model and not printed; `learned`
    fits them from traces.
    """

    after: int
    edges: tuple[float, ...]
    extra: tuple[int, ...]
    nodes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.edges) + 1 == len(self.extra) == len(self.nodes):
            raise UsageError(
                f"{len(self.edges)} edges, {len(self.extra)} extra depths and {len(self.nodes)} sizes; "
                "allowed: one more of the latter two than edges"
            )

    def keep(self, layers: Layers) -> Keep | None:
        """When the bin's depth is reached."""
        if layers.depth < self.after:
            return None
        b = bisect_right(self.edges, layers.entropy(self.after))
        return Keep(layers.depth, self.nodes[b]) if layers.depth >= self.after + self.extra[b] else None
