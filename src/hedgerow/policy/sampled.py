"""Sampled trees whose shape is fixed by counts alone: rollouts, and stochastic beams."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hedgerow.core.parts import Frontier, Grow, GrowSpec, Plan, View
from hedgerow.core.rng import Purpose
from hedgerow.core.tree import ROOT, Selection
from hedgerow.policy.fixed import path_survival

INTERLEAVE = 1 << 40                                    # keys of the beam's own draws, far from any drafter's


@dataclass(frozen=True)
class Rollouts:
    """One drawn path of `trunk` nodes, then `branches` independent rollouts of `length` tokens from its end, merged.

    Rollouts that agree share nodes; `mult` counts them. The plan's cap takes away rollouts, then length, before
    anything is drawn.

    Source: Dynamic Delayed Tree Expansion (2602.16994): (L1, K, L2); trunk 0 are SpecTr's rollouts (2310.15141).
    Differs from the paper in: its selector of (L1, K, L2) is a network; here they are given.
    """

    trunk: int
    branches: int
    length: int
    source: int = 0
    reads_tokens = False
    selections = frozenset({Selection.IID})

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier a level."""
        growth = view.growth
        source = self.source if plan.source is None else plan.source
        trunk = min(self.trunk, plan.nodes, plan.depth)
        length = min(self.length, plan.nodes - trunk, plan.depth - trunk)
        branches = min(self.branches, plan.width, (plan.nodes - trunk) // length) if length else 0
        level, chosen = [ROOT], []
        for depth in range(trunk + length):
            counts = [branches if depth == trunk else 1 if v == ROOT else growth.mult[v] for v in level]
            received = yield Frontier(level, counts, source, Selection.IID)
            level = list(received.ids)
            chosen += level
            if not level:
                break
        return growth.tree(chosen, path_survival(growth, chosen))

    def spec(self) -> GrowSpec | None:
        """Not yet written as data."""
        return None


@dataclass(frozen=True)
class StochasticBeam:
    """The `width` nodes a level that come first in an exponential race of all paths: drawing paths without replacement.

    A path of probability Q arrives after a time Exp(Q), a node with the first path through it. So a node's first child
    arrives with it, and its other children race on with the mass left. Children are the drafter's own draws; which node
    has the next arrival depends on the masses left alone, and is drawn from them: a level's beam is an interleaving of
    its nodes' draws. The time between two arrivals of a level is Exp(rate), and the rates are carried to the next.

    Source: RSD-S (2402.14160) section 4.2; stochastic beam search (Kool et al., ICML 2019). Differs from the papers in:
    arrivals are drawn one after the other instead of as perturbed log-probabilities; the law is the same.
    """

    width: int
    depth: int
    source: int = 0
    reads_tokens = False
    selections = frozenset({Selection.WITHOUT_REPLACEMENT})

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier a level."""
        growth = view.growth
        source = self.source if plan.source is None else plan.source
        beam, gaps = [ROOT], [0.0]                      # gaps[i]: rate of the time between arrivals i and i + 1
        chosen: list[int] = []
        reach = {ROOT: 1.0}
        for depth in range(1, min(self.depth, plan.depth) + 1):
            width = min(self.width, plan.width, plan.nodes - len(chosen))
            if width <= 0 or not beam:
                break
            received = yield Frontier(beam, [width] * len(beam), source, Selection.WITHOUT_REPLACEMENT)
            draws, start = [], received.ids.start
            for count in received.children.count:
                draws.append(range(start, start + count))
                start += count
            if not all(draws):                          # a path ended: times below it are not defined
                break
            taken, arrived = [0] * len(beam), 0
            order: list[int] = []
            next_gaps: list[float] = []
            while len(order) < width:
                masses = [_left(growth.log_q, draws[i], taken[i]) * reach[beam[i]] for i in range(arrived)]
                coming = gaps[arrived - 1] if 0 < arrived < len(beam) else float(arrived == 0)
                rates = np.array([coming, *masses])
                if not np.any(rates > 0.0):
                    break
                if order:
                    next_gaps.append(float(rates.sum()))
                index = INTERLEAVE + len(order)
                who = view.rng.categorical(rates, view.position + depth, Purpose.MODEL, index) - 1
                if who < 0:
                    who, arrived = arrived, arrived + 1
                order.append(draws[who][taken[who]])
                taken[who] += 1
            for v in order:
                reach[v] = reach[growth.parent[v]] * math.exp(growth.log_q[v])
            chosen += order
            beam, gaps = order, [*next_gaps, 0.0]
        return growth.tree(chosen, path_survival(growth, chosen))

    def spec(self) -> GrowSpec | None:
        """Not yet written as data."""
        return None


def _left(log_q: list[float], ids: range, taken: int) -> float:
    """Mass of a node's draft law not yet drawn, 0 where nothing is left to take."""
    if taken >= len(ids):
        return 0.0
    return max(0.0, 1.0 - math.fsum(math.exp(log_q[v]) for v in ids[:taken]))
