"""Sizes from costs: marginal rules, convex fits of a measured cost, and the width one deployment can afford."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from hedgerow.core.errors import UsageError
from hedgerow.policy.parts import Keep, Layers

TIE = 1e-12                                             # a gain equal to its price within rounding is bought


def discrete_marginal(gain: Sequence[float], cost: Sequence[float], threshold: float) -> int:
    """How many to take: the last k whose gain over the last one taken is at least `threshold` per unit of cost.

    `gain[k − 1]` and `cost[k − 1]` are cumulative for k = 1 … K; the result is between 1 and K, 0 for empty lists. It
    looks past single bad steps. Where the cost falls, it is first replaced by the least cost of any larger k.

    Source: CAST (2510.26577) Algorithm 1. Differs from the paper in: a tie is taken, inversions are levelled.

    >>> discrete_marginal([0.3, 0.55, 0.75, 0.85, 0.93], [1, 2, 3, 4, 5], 0.1)
    4
    """
    level = np.minimum.accumulate(np.asarray(cost, np.float64)[::-1])[::-1]
    best = 0
    for k in range(1, len(gain)):
        step = max(float(level[k] - level[best]), TIE)
        if gain[k] - gain[best] >= threshold * step - TIE:
            best = k
    return best + 1 if len(gain) else 0


@dataclass(frozen=True)
class MarginalBeam:
    """A gate that expands as many of a layer's best nodes as their draft cost is worth.

    u_k = Σ of the k best survivals, c_k = draft_s(k) / plain_s; k by `discrete_marginal`, at most `most`. All nodes
    stay in the pool.

    Source: CAST (2510.26577), breadth; threshold C_1 = 4. Differs from the paper in: one request, not the batch's mean.
    """

    draft_s: Callable[[int], float]
    plain_s: float
    threshold: float = 4.0
    most: int = 32
    only = False
    reads_tokens = False

    def choose(self, layers: Layers, ids: Sequence[int], room: int) -> list[int]:
        """The best k, at least one."""
        ranked = layers.ranked(ids)[: min(self.most, room)]
        gain = np.cumsum([math.exp(layers.value[v]) for v in ranked]).tolist()
        cost = [self.draft_s(k) / self.plain_s for k in range(1, len(ranked) + 1)]
        return ranked[: discrete_marginal(gain, cost, self.threshold)]


@dataclass
class Ratios:
    """The last `size` ratios of one layer's mass to the layer's before, per depth, 1 where none was seen.

    Mutated by `add`, from step to step.

    Source: CAST (2510.26577), depth. Differs from the paper in: the window's length is not printed; 32 here.
    """

    size: int = 32
    _seen: dict[int, deque[float]] = field(default_factory=dict)

    def add(self, depth: int, ratio: float) -> None:
        """Record mass(depth + 1) / mass(depth)."""
        self._seen.setdefault(depth, deque([1.0] * self.size, maxlen=self.size)).append(ratio)

    def mean(self, depth: int) -> float:
        """Average of the window."""
        seen = self._seen.get(depth)
        return sum(seen) / self.size if seen else 1.0


@dataclass(frozen=True)
class MarginalDepth:
    """A halt that drafts layer i + 1 iff the mass it is expected to add, mean ratio × u_i, is worth its cost.

    u_i is the beam's mass, c_i = draft_s(width of the beam) / plain_s; go on iff ratio · u_i / c_i ≥ threshold.

    Source: CAST (2510.26577), depth; threshold C_2 = 3.
    """

    draft_s: Callable[[int], float]
    plain_s: float
    threshold: float = 3.0
    layers: int = 16
    ratios: Ratios = field(default_factory=Ratios)

    def keep(self, layers: Layers) -> Keep | None:
        """When the next layer does not pay, or at the last."""
        depth, beam = layers.depth, layers.beam
        mass = math.fsum(math.exp(layers.value[v]) for v in beam)
        if depth > 1:
            above = [v for v in layers.pool if layers.growth.depth[v] == depth - 1]
            parents = {layers.growth.parent[v] for v in layers.pool if layers.growth.depth[v] == depth}
            before = math.fsum(math.exp(layers.value[v]) for v in above if v in parents)
            self.ratios.add(depth - 1, mass / before if before > 0.0 else 0.0)
        if depth >= self.layers or not beam:
            return Keep(depth)
        worth = self.ratios.mean(depth) * mass * self.plain_s / self.draft_s(len(beam))
        return None if worth >= self.threshold else Keep(depth)


@dataclass(frozen=True)
class MarginalSize:
    """A stop that keeps as many nodes as their verification is worth.

    u_k = Σ of the k best survivals, c_k = step_s(k + 1) / step_s(1); k by `discrete_marginal`.

    Source: CAST (2510.26577), reranking; threshold C_3 = 2.5.
    """

    step_s: Callable[[int], float]
    threshold: float = 2.5
    looks_ahead = True

    def admits(self, survival: float, count: int, total: float) -> bool:
        """Everything: the rule reads the whole list."""
        return True

    def cut(self, survival: Sequence[float]) -> int:
        """Nodes worth verifying."""
        plain = self.step_s(1)
        cost = [self.step_s(k + 1) / plain for k in range(1, len(survival) + 1)]
        return discrete_marginal(np.cumsum(survival).tolist(), cost, self.threshold)


# ---------------------------------------------------------------------------------------------- costs as curves

def convex_fit(x: Sequence[float], y: Sequence[float]) -> Float[np.ndarray, " points"]:
    """Values at `x` of the convex non-decreasing curve nearest to `y` in slope: neighbouring slopes are pooled.

    Slopes are averaged over runs, weighted by Δx, until they rise (pool adjacent violators) and cut at 0; the level is
    the one of least squared error. `x` must rise.

    Source: CaDDTree (2606.01813) section 4.2. Differs from the paper in: slopes are fitted instead of values.

    >>> convex_fit([1, 2, 3], [10.0, 11.0, 10.0]).round(3).tolist()
    [10.333, 10.333, 10.333]
    """
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(xs) != len(ys) or not len(xs) or np.any(np.diff(xs) <= 0):
        raise UsageError(f"a cost curve needs rising sizes and one time each; got {len(xs)} sizes, {len(ys)} times")
    runs: list[list[float]] = []                        # (sum of rise, sum of run, number of segments)
    for rise, run in zip(np.diff(ys), np.diff(xs), strict=True):
        runs.append([float(rise), float(run), 1])
        while len(runs) > 1 and runs[-2][0] / runs[-2][1] >= runs[-1][0] / runs[-1][1]:
            last = runs.pop()
            runs[-1] = [a + b for a, b in zip(runs[-1], last, strict=True)]
    slopes = [max(0.0, rise / run) for rise, run, count in runs for _ in range(int(count))]
    curve = np.concatenate([[0.0], np.cumsum(np.asarray(slopes) * np.diff(xs))])
    return curve + float(np.mean(ys - curve))


def curve(x: Sequence[float], y: Sequence[float]) -> Callable[[int], float]:
    """A cost function through points: linear between them, the end slopes continued beyond.

    >>> curve([1, 3], [10.0, 12.0])(4)
    13.0
    """
    xs, ys = [float(v) for v in x], [float(v) for v in y]

    def at(rows: int) -> float:
        if len(xs) == 1:
            return ys[0]
        i = min(max(int(np.searchsorted(xs, rows)) - 1, 0), len(xs) - 2)
        return ys[i] + (rows - xs[i]) * (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i])

    return at


class Width(NamedTuple):
    """A width for one deployment: fitted line, where the rule stops, the size deployed (nodes, root excluded)."""

    base: float
    slope: float
    stop: int
    nodes: int


def cast_width(
    mass: Sequence[float], rows: Sequence[float], step: Sequence[float], draft: float = 0.0,
    sizes: Sequence[int] = (15, 31, 47, 63, 95, 127),
) -> Width:
    """One number of nodes for a deployment: buy node N + 1 while its mean survival is worth its share of a step.

    `mass[i]` is the mean survival of the (i + 1)-th best node over recorded steps; `step[j]` the time of a step of
    `rows[j]` rows (root counted), fitted by base + slope · rows; time units are free, `draft` in the same. With
    l(N) = draft + base + slope (N + 1) and g the sum of mass, node N + 1 is bought iff mass ≥ (1 + g) · slope / l(N).
    The first of `sizes` at or above the stop is deployed, else the largest.

    Source: CAST (2610.00321), offline width.
    """
    slope, base = (float(v) for v in np.polyfit(np.asarray(rows, np.float64), np.asarray(step, np.float64), 1))
    total, stop = 0.0, 0
    for n, m in enumerate(mass):
        if m < (1.0 + total) * slope / (draft + base + slope * (n + 1)):
            break
        total += m
        stop = n + 1
    return Width(base, slope, stop, next((s for s in sorted(sizes) if s >= stop), max(sizes)))
