"""The noise the target will draw with, known before it draws: for drafters under a match rule, and only there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from hedgerow.core.rng import Purpose

Noise = Callable[[Int[np.ndarray, " ids"], int, Purpose], Float[np.ndarray, " ids"]]


@dataclass
class Luck:
    """G_t = −log E_t of every token t at the positions below one root; E_t: the token's time in the target's race.

    The target's draw is argmax_t log p(t) + G_t, so a token is likelier to be drawn the higher its G. Numbers asked for
    are kept until the object goes.

    >>> from hedgerow.core.rng import Rng
    >>> luck = Luck(Rng(3).noise, position=5)
    >>> best = max(range(4), key=lambda t: luck.of(1, [t])[0])
    >>> best == Rng(3).categorical(np.full(4, 0.25), position=6)
    True
    """

    noise: Noise                           # `Rng.noise`: the time of an id in the race at a position
    position: int                          # of the root
    _known: dict[int, dict[int, float]] = field(default_factory=dict)

    def of(self, depth: int, tokens: Sequence[int]) -> list[float]:
        """G of some tokens for the node they would be at `depth` below the root."""
        known = self._known.setdefault(depth, {})
        new = [t for t in tokens if t not in known]
        if new:
            known.update(zip(new, self.rows([depth], np.array([new]))[0].tolist(), strict=True))
        return [known[t] for t in tokens]

    def rows(self, depths: Sequence[int], tokens: Int[np.ndarray, "rows tokens"]) -> Float[np.ndarray, "rows tokens"]:
        """The same for rows of tokens, each at a depth of its own; not kept."""
        noise, at = self.noise, self.position
        return -np.log(np.stack([noise(t, at + d, Purpose.TARGET) for d, t in zip(depths, tokens, strict=True)]))
