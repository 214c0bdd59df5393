"""The parts a policy is made of: what growths, scores, gates, halts, stops and slot values ask of each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from hedgerow.core.parts import Received, View
from hedgerow.core.tree import ROOT, Growth


class Score(Protocol):
    """What an edge is worth: the log of the chance that a child is accepted after its parent."""

    @property
    def reads_tokens(self) -> bool:
        """Whether it looks at what a token is, not only at its probability."""

    def edges(self, growth: Growth, received: Received) -> Sequence[float]:
        """Log survival of the edge into every node of `received.ids`, ≤ 0, in that order."""


class Stop(Protocol):
    """When a tree is big enough."""

    @property
    def looks_ahead(self) -> bool:
        """Whether `cut` reads nodes beyond the cut: not for drawn trees."""

    def admits(self, survival: float, count: int, total: float) -> bool:
        """Whether a node of this survival may join `count` nodes whose survivals sum to `total`."""

    def cut(self, survival: Sequence[float]) -> int:
        """How many of the nodes, given in order of survival, are kept."""


@dataclass
class Layers:
    """What a gate or halt may know of a tree that grows by layers; `value` holds log survivals."""

    view: View
    nodes: int                                          # most nodes the tree may have
    depth: int = 0                                      # layers drafted
    beam: list[int] = field(default_factory=list)       # nodes expanded next, best first
    pool: list[int] = field(default_factory=list)       # all nodes that may be kept, in order of arrival
    value: dict[int, float] = field(default_factory=lambda: {ROOT: 0.0})
    heads: list[range] = field(default_factory=list)    # per layer: children of the best parent

    @property
    def growth(self) -> Growth:
        """The request's nodes."""
        return self.view.growth

    def ranked(self, ids: Sequence[int]) -> list[int]:
        """Nodes, given in order of arrival, by value; ties to the earlier, so that a parent stands before its child."""
        return sorted(ids, key=self.value.__getitem__, reverse=True)

    def expected(self, depth: int) -> float:
        """E(A) of the best `nodes` nodes no deeper than `depth`."""
        values = sorted((self.value[v] for v in self.pool if self.growth.depth[v] <= depth), reverse=True)
        return math.fsum(math.exp(x) for x in values[: self.nodes])

    def entropy(self, layers: int) -> float:
        """Σ over the first layers of −Σ q log q over the children of the best parent, in nats."""
        logs = (self.growth.log_q[v] for head in self.heads[:layers] for v in head)
        return -math.fsum(math.exp(x) * x for x in logs if x > -math.inf)


class Gate(Protocol):
    """Which nodes of a new layer are expanded."""

    @property
    def only(self) -> bool:
        """Whether nodes that do not pass are not kept either."""

    @property
    def reads_tokens(self) -> bool:
        """Whether it looks at what a token is, not only at its probability."""

    def choose(self, layers: Layers, ids: Sequence[int], room: int) -> list[int]:
        """Nodes of `ids` that pass, best first, at most `room`."""


class Keep(NamedTuple):
    """A halt's answer: draft no more, keep this many layers and at most this many nodes."""

    layers: int
    nodes: int | None = None


class Halt(Protocol):
    """When the last layer was drafted."""

    def keep(self, layers: Layers) -> Keep | None:
        """None to draft another layer."""


class SlotValue(Protocol):
    """What the next slot of a node is worth, relative to the node's own survival."""

    def value(self, drawn: Sequence[float], row: dict[str, Any]) -> float:
        """In [0, 1]: `drawn` are log q of the node's admitted children, `row` the aux values of its draft row."""
