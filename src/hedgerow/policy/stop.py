"""Stops: how many nodes of an ordered list are worth having.

Every stop answers two questions. `admits` is asked while a tree grows, one node after the other, and looks at nothing
later; `cut` is asked about a finished list. They are one rule in several clothes: buy a node while its survival is at
least its price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hedgerow.core.errors import UsageError
from hedgerow.policy.parts import Stop

ANY = 1 << 30


def first_refusal(stop: Stop, survival: Sequence[float]) -> int:
    """Nodes admitted one by one until the first refusal."""
    total = 0.0
    for count, s in enumerate(survival):
        if not stop.admits(s, count, total):
            return count
        total += s
    return len(survival)


@dataclass(frozen=True)
class Budget:
    """At most `nodes` nodes; the plan's cap holds besides.

    >>> Budget(2).cut([0.9, 0.5, 0.4])
    2
    """

    nodes: int = ANY
    looks_ahead = False

    def admits(self, survival: float, count: int, total: float) -> bool:
        """While there are fewer."""
        return count < self.nodes

    def cut(self, survival: Sequence[float]) -> int:
        """The first `nodes`."""
        return min(self.nodes, len(survival))


@dataclass(frozen=True)
class Threshold:
    """Nodes of survival ≥ theta, at most `nodes`: theta is the price of one verified node in accepted tokens.

    theta 0 is a budget; a theta above every edge leaves nothing.

    Source: TreeSpark (2609.22098); DySpec (2410.11744) threshold form.

    >>> Threshold(0.5).cut([0.9, 0.5, 0.4])
    2
    """

    theta: float
    nodes: int = ANY
    looks_ahead = False

    def admits(self, survival: float, count: int, total: float) -> bool:
        """While the node is worth its price."""
        return count < self.nodes and survival >= self.theta

    def cut(self, survival: Sequence[float]) -> int:
        """All before the first below theta."""
        return first_refusal(self, survival)


@dataclass(frozen=True)
class Price:
    """Nodes with survival × saved_s ≥ node_s: the expected gain of a node in seconds must pay for the node.

    `saved_s` is what an accepted token saves, `node_s` what one more node costs to verify (and to draft).

    Source: Pruned Candidate Tree (ACL 2025, long 486). Differs from the paper in: one cost for all nodes.

    >>> Price(saved_s=0.02, node_s=0.004).cut([0.9, 0.2, 0.1])
    2
    """

    saved_s: float
    node_s: float
    looks_ahead = False

    def admits(self, survival: float, count: int, total: float) -> bool:
        """While the gain is not negative."""
        return survival * self.saved_s >= self.node_s

    def cut(self, survival: Sequence[float]) -> int:
        """All before the first that loses time."""
        return first_refusal(self, survival)


@dataclass(frozen=True)
class Throughput:
    """The size that maximises tokens a second, θ(n) = (1 + Σ survival) / (draft_s + step_s(n + 1)).

    `step_s(rows)` is the target's time. `greedy` stops at the first node that does not raise θ: exact on a convex
    non-decreasing cost only, looks at nothing later; otherwise all sizes are scanned. `edges` restricts a scan to rows
    at which the cost jumps (and the end of the list).

    Source: CaDDTree (2606.01813) Algorithm 1. Differs from the paper in: rows are counted with the root, and the
    default scans instead of fitting a convex curve first.
    """

    step_s: Callable[[int], float]
    draft_s: float = 0.0
    greedy: bool = False
    edges: tuple[int, ...] | None = None

    @property
    def looks_ahead(self) -> bool:
        """A scan reads the whole list."""
        return not self.greedy

    def admits(self, survival: float, count: int, total: float) -> bool:
        """Greedy: while θ rises. A scan admits everything and decides in `cut`."""
        if not self.greedy:
            return True
        before = (1.0 + total) / (self.draft_s + self.step_s(count + 1))
        return (1.0 + total + survival) / (self.draft_s + self.step_s(count + 2)) > before

    def cut(self, survival: Sequence[float]) -> int:
        """The best size; among equals the smallest."""
        if self.greedy:
            return first_refusal(self, survival)
        return best_size(survival, self.step_s, self.draft_s, self.edges)[0]


def best_size(
    survival: Sequence[float], step_s: Callable[[int], float], draft_s: float = 0.0, edges: Sequence[int] | None = None,
) -> tuple[int, float]:
    """The number of nodes that maximises θ(n), and θ there, in tokens a second.

    >>> best_size([0.9, 0.4, 0.1], lambda rows: 1.0 + 0.3 * rows)[0]
    2
    """
    if edges is None:
        sizes = range(len(survival) + 1)
    else:
        sizes = sorted({0, len(survival)} | {e - 1 for e in edges if 0 < e <= len(survival)})  # type: ignore[assignment]
    best, best_theta, total, done = 0, -1.0, 1.0, 0
    for n in sizes:
        total += sum(survival[done:n])
        done = n
        cost = draft_s + step_s(n + 1)
        if cost <= 0.0:
            raise UsageError(f"a step of {n + 1} rows costs {cost} s; allowed: more than 0")
        if total / cost > best_theta:
            best, best_theta = n, total / cost
    return best, best_theta
