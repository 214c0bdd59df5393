"""Dividing verified rows among the requests of a batch, and older rules that pick one length for all."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hedgerow.core.errors import UsageError
from hedgerow.core.shape import TreeShape
from hedgerow.policy.price import discrete_marginal
from hedgerow.topology.basic import chain
from hedgerow.topology.expected import expected_tokens
from hedgerow.topology.optimal import best_tokens, sequoia_dp

__all__ = [
    "Allocation", "Collapse", "EmaChain", "batch_prefix_allocation", "batch_tree_allocation", "cast_hong",
    "collapse_under_load", "ema_chain_controller",
]

cast_hong = discrete_marginal


class Allocation(NamedTuple):
    """Draft nodes in all, prefix length of each request, expected tokens per unit of time."""

    nodes: int
    lengths: tuple[int, ...]
    throughput: float


def batch_prefix_allocation(
    survival: Sequence[Sequence[float]], step_s: Callable[[int], float], draft_s: float = 0.0, early_stop: bool = False,
    edges: Sequence[int] | None = None, weights: Sequence[float] | None = None,
) -> Allocation:
    """The prefix of each request's ordered list that maximises (Σ weight + Σ survival · weight) / (draft_s + T(rows)).

    `survival[r]` falls along request r's list; rows are one root a request and the admitted nodes; `step_s(rows)` may
    have steps and falls: every total is tried, or those whose rows are in `edges`. `early_stop` ends at the first total
    that is no better, which is exact on a convex cost only. Ties go to fewer nodes, then to the earlier request.

    Raises: UsageError for a list that rises: its prefixes would not be the best nodes.

    Source: DSpark (2607.05147) section 4; TETRIS (2502.15197) for a fixed total.

    >>> batch_prefix_allocation([[0.9, 0.2], [0.6]], lambda rows: 2.0 + rows).lengths
    (1, 1)
    """
    weight = list(weights) if weights is not None else [1.0] * len(survival)
    for r, row in enumerate(survival):
        if any(b > a for a, b in pairwise(row)):
            raise UsageError(f"survivals of request {r} rise along its list; order them by survival first")
    heap = [(-row[0] * weight[r], r, 0) for r, row in enumerate(survival) if len(row)]
    heapq.heapify(heap)
    batch = len(survival)
    tokens = sum(weight)
    lengths = [0] * batch
    best = Allocation(0, tuple(lengths), tokens / (draft_s + step_s(batch)))
    allowed = None if edges is None else {e - batch for e in edges} | {sum(map(len, survival))}
    total = 0
    while heap:
        minus, r, i = heapq.heappop(heap)
        tokens -= minus
        total += 1
        lengths[r] += 1
        if i + 1 < len(survival[r]):
            heapq.heappush(heap, (-survival[r][i + 1] * weight[r], r, i + 1))
        if allowed is not None and total not in allowed:
            continue
        now = tokens / (draft_s + step_s(batch + total))
        if now > best.throughput:
            best = Allocation(total, tuple(lengths), now)
        elif early_stop:
            break
    return best


def batch_tree_allocation(rates: Sequence[Sequence[float]], nodes: int) -> tuple[float, tuple[int, ...]]:
    """Most expected tokens Σ F of a batch with `nodes` draft nodes in all, and the nodes each request gets.

    `rates[r]` are request r's positional acceptances. Exact for any rates: best trees of every size, split by a
    knapsack; where rates fall with the rank it is the global best-first order. Ties go to the later request.

    >>> batch_tree_allocation([[0.8, 0.1], [0.45, 0.25]], 2)[1]
    (2, 0)
    """
    total = np.zeros(nodes + 1)
    choices = []
    for p in rates:
        curve = best_tokens(p, nodes + 1)[1:]           # by draft nodes
        split = np.array([[total[m - n] + curve[n] if n <= m else -np.inf for n in range(nodes + 1)]
                          for m in range(nodes + 1)])
        choices.append(np.argmax(split, axis=1))
        total = np.max(split, axis=1)
    left, lengths = nodes, []
    for choice in reversed(choices):
        lengths.append(int(choice[left]))
        left -= lengths[-1]
    return float(total[nodes]), tuple(reversed(lengths))


@dataclass(frozen=True)
class Collapse:
    """The best tree of every request at one batch size: rows with the root, F, tokens per unit of time, comparisons."""

    rows: int
    shape: TreeShape
    tokens: float
    throughput: float
    speedup: float                        # over plain decoding of the same batch
    chain_speedup: float                  # of the best chain
    fixed_speedup: float                  # of the largest tree

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """Rows at depth 0, 1, …"""
        return (1, *self.shape.level_sizes)

    @property
    def is_chain(self) -> bool:
        """Whether no level has two nodes; plain decoding counts."""
        return max(self.level_sizes) == 1


def collapse_under_load(
    p: Sequence[float], batch: int, step_s: Callable[[int], float], max_rows: int = 64
) -> Collapse:
    """Size of the best positional tree when `batch` requests use the same one and a step costs step_s(all rows).

    Source: Sequoia's size choice (2402.12374) at batch > 1: small trees, then a chain, then nothing as load grows.
    """
    plain = 1.0 / step_s(batch)
    tokens = best_tokens(p, max_rows)[1:].tolist()      # by draft nodes

    def speed(tokens: float, rows: int) -> float:
        return tokens / step_s(batch * rows) / plain

    rows = max(range(1, len(tokens) + 1), key=lambda n: (speed(tokens[n - 1], n), -n))
    chains = max(speed(expected_tokens(chain(n - 1), p), n) for n in range(1, max_rows + 1))
    f = tokens[rows - 1]
    return Collapse(
        rows, sequoia_dp(p, rows)[1], f, batch * f / step_s(batch * rows), speed(f, rows), chains,
        speed(tokens[-1], max_rows),
    )


@dataclass
class EmaChain:
    """A chain length for the whole batch that follows a moving average of accepted drafts; mutated by `update`.

    Every `interval` updates after `warmup` the length moves along `candidates`: down while the average is at most
    previous − 0.5 + down (0.5 + down where the previous is 0), else up while it is above current − 0.5 + up; from 0 one
    step up, as a probe. The average starts at start − 1.

    Source: SGLang's adaptive speculative parameters (public code).
    """

    candidates: Sequence[int] = (1, 3, 5, 7)
    start: int = 3
    alpha: float = 0.2
    interval: int = 5
    warmup: int = 10
    down: float = -0.25
    up: float = 0.0

    def __post_init__(self) -> None:
        if self.start not in self.candidates or list(self.candidates) != sorted(self.candidates):
            raise UsageError(f"chain lengths {list(self.candidates)} must rise and hold the first one, {self.start}")
        self.at = list(self.candidates).index(self.start)
        self.average = float(self.start - 1)
        self.seen = 0

    @property
    def steps(self) -> int:
        """Draft tokens a request."""
        return self.candidates[self.at]

    @staticmethod
    def _floor(previous: int) -> float:
        return previous - 0.5 if previous else 0.5

    def update(self, accepted: float) -> int:
        """Record a batch's mean of accepted drafts and return the length for the next."""
        self.average += self.alpha * (accepted - self.average)
        self.seen += 1
        if self.seen <= self.warmup or (self.seen - self.warmup) % self.interval:
            return self.steps
        before = self.at
        if self.steps == 0:
            self.at = min(1, len(self.candidates) - 1)
            return self.steps
        while self.at > 0 and self.average <= self._floor(self.candidates[self.at - 1]) + self.down:
            self.at -= 1
        if self.at == before:
            while self.at + 1 < len(self.candidates) and self.average > self.steps - 0.5 + self.up:
                self.at += 1
        return self.steps


def ema_chain_controller(
    accepted: Sequence[float], candidates: Sequence[int] = (1, 3, 5, 7), start: int = 3, alpha: float = 0.2,
    interval: int = 5, warmup: int = 10, down: float = -0.25, up: float = 0.0,
) -> tuple[list[int], float]:
    """Replay a series of mean accepted drafts: the length after each batch, and the final average."""
    controller = EmaChain(candidates, start, alpha, interval, warmup, down, up)
    return [controller.update(a) for a in accepted], controller.average
