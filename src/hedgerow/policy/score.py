"""Scores: what a policy believes an edge is worth, the log of the chance that a child is accepted after its parent.

A score never makes a child likelier than its parent (log ≤ 0), so that the best nodes are always a tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Received
from hedgerow.core.tree import Growth


@dataclass(frozen=True)
class PathProbability:
    """log q(child | parent): the draft probability taken at its word.

    Source: EAGLE-2 (2406.16858) section 4.1; OPT-Tree (2406.17276) section 3.
    """

    reads_tokens = False

    def edges(self, growth: Growth, received: Received) -> Sequence[float]:
        """log q of every child."""
        return growth.log_q[received.ids.start : received.ids.stop]


@dataclass(frozen=True)
class Calibrated:
    """σ(slope · logit q + offset): draft probability corrected by a fit on edges whose ancestors were accepted.

    Source: TreeSpark (2609.22098), its fit for Qwen3-4B as default.

    >>> round(math.exp(platt(math.log(0.5), 1.0, 0.0)), 12)
    0.5
    """

    slope: float = 0.6684
    offset: float = -0.4587
    reads_tokens = False

    def edges(self, growth: Growth, received: Received) -> Sequence[float]:
        """Calibrated log survival of every child."""
        return [platt(growth.log_q[i], self.slope, self.offset) for i in received.ids]


@dataclass(frozen=True)
class Confident:
    """What a drafter's confidence head says of the row a child was picked from; log q where it has none.

    It is the chance that a child of that row is accepted, not which one: for chains.

    Source: DSpark (2607.05147), whose scheduler takes the product of confidences for the survival.
    """

    reads_tokens = False

    def edges(self, growth: Growth, received: Received) -> Sequence[float]:
        """log of the parent row's confidence, for every child."""
        said = received.children.aux.get("confidence")
        if said is None:
            return growth.log_q[received.ids.start : received.ids.stop]
        logs = [math.log(x) if x > 0.0 else -math.inf for x in said]
        return [min(0.0, x) for x, c in zip(logs, received.children.count, strict=True) for _ in range(c)]


@dataclass(frozen=True)
class Decayed:
    """log q + log decay: every level is trusted a little less.

    Source: SpecExec (2406.02532), public code, decay 0.95.
    """

    decay: float = 0.95
    reads_tokens = False

    def edges(self, growth: Growth, received: Received) -> Sequence[float]:
        """log q + log decay of every child."""
        less = math.log(self.decay)
        return [growth.log_q[i] + less for i in received.ids]


@dataclass(frozen=True)
class ByRank:
    """log p_r for the r-th child: a positional acceptance model, blind to q.

    `p[r]` is the probability that the accepted child is the r-th (0-based), given that its parent was accepted; a child
    beyond the list gets the last entry. It suits `coupled` children, whose own q says little about their chance.

    Raises: UsageError for an entry outside (0, 1].
    """

    p: tuple[float, ...]
    reads_tokens = False

    def __post_init__(self) -> None:
        if not self.p or not all(0.0 < x <= 1.0 for x in self.p):
            raise UsageError(f"rank acceptances are {self.p}; allowed: at least one, each in (0, 1]")

    def edges(self, growth: Growth, received: Received) -> Sequence[float]:
        """log p of every child's rank."""
        logs = [math.log(x) for x in self.p]
        return [logs[min(r, len(logs) - 1)] for c in received.children.count for r in range(c)]


@dataclass(frozen=True)
class PathScorer:
    """A function of the token path: `log_edge(path) ≤ 0`, the log survival of the path's last token after the others.

    The seat of correction heads that run on the host and of any score that knows tokens.

    Source: DARTree (2608.13524), DominoTree (2607.08642), PCTree (2608.02123): path-conditional scores.
    """

    log_edge: Callable[[tuple[int, ...]], float]
    reads_tokens = True

    def edges(self, growth: Growth, received: Received) -> Sequence[float]:
        """The function's value for every child, at most 0."""
        return [min(0.0, self.log_edge(growth.tokens_to(i))) for i in received.ids]


def platt(log_q: float, slope: float, offset: float) -> float:
    """log σ(slope · logit q + offset) for slope > 0; q = 1 stays 1 and q = 0 stays 0."""
    if log_q >= 0.0:
        return 0.0
    if log_q == -math.inf:
        return -math.inf
    x = slope * (log_q - math.log(-math.expm1(log_q))) + offset
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))
