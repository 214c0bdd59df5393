"""Gates of layer-wise growth: which nodes of a new layer are expanded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hedgerow.policy.parts import Layers


@dataclass(frozen=True)
class Beam:
    """The `k` best nodes of a layer are expanded; the others stay in the pool.

    Source: EAGLE-2 (2406.16858) section 4.2.
    """

    k: int
    only = False
    reads_tokens = False

    def choose(self, layers: Layers, ids: Sequence[int], room: int) -> list[int]:
        """The k best."""
        return layers.ranked(ids)[: min(self.k, room)]


@dataclass(frozen=True)
class Lanes:
    """The `k` best nodes of a layer are expanded, and only they can be kept: a supertree of fixed width.

    Source: DARTree (2608.13524), candidate supertree.
    """

    k: int
    only = True
    reads_tokens = False

    def choose(self, layers: Layers, ids: Sequence[int], room: int) -> list[int]:
        """The k best, whatever room the verified tree has: the supertree is cut afterwards."""
        return layers.ranked(ids)[: self.k]


@dataclass(frozen=True)
class RelativeGate:
    """Nodes whose survival is at least `mu` times the layer's best are kept and expanded; the first layer whole.

    mu 0 is full breadth, mu 1 a chain below the first layer.

    Source: TALON (2601.07353) section 4.
    """

    mu: float
    only = True
    reads_tokens = False

    def choose(self, layers: Layers, ids: Sequence[int], room: int) -> list[int]:
        """The layer's nodes above the gate, cut to the room left."""
        ranked = layers.ranked(ids)
        if layers.depth > 1 and ranked and self.mu > 0.0:
            floor = math.exp(layers.value[ranked[0]]) * self.mu
            ranked = [v for v in ranked if math.exp(layers.value[v]) >= floor]
        return ranked[: max(0, room)]
