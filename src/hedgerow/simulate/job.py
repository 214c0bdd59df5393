"""One request of a play: what is asked, on whose random numbers, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from hedgerow.core.rng import Purpose, Rng, Source
from hedgerow.engine.finish import Finisher
from hedgerow.engine.request import Request

if TYPE_CHECKING:
    from hedgerow.simulate.recorded import Recording


@dataclass(frozen=True)
class Job:
    """A request to play. `context` fixes the tokens its steps are priced at; None: those it really stands behind."""

    request: Request
    rng: Source
    context: int | None = None
    recording: Recording | None = None


@dataclass(frozen=True)
class Decided:
    """A source whose target draws are known: the token at a position is the recorded one, while there is one.

    Everything else — a drafter's draws, a race on the target's noise — is the inner source's, as when it was recorded.

    >>> from hedgerow.core.rng import Rng
    >>> Decided(Rng(0), (7, 8)).categorical(np.array([0.5, 0.5]), position=1)
    8
    """

    inner: Source
    text: Sequence[int]

    def at(self, root: int) -> Decided:
        """The same source for the step whose root stands at position `root`."""
        return Decided(self.inner.at(root), self.text)

    def bernoulli(self, p: float, position: int, purpose: Purpose = Purpose.ACCEPT, index: int = 0) -> bool:
        """The inner source's answer."""
        return self.inner.bernoulli(p, position, purpose, index)

    def categorical(
        self, w: Float[np.ndarray, " vocab"], position: int, purpose: Purpose = Purpose.TARGET, index: int = 0
    ) -> int:
        """The recorded token for a target draw, else the inner source's answer."""
        if purpose is Purpose.TARGET and position < len(self.text):
            return self.text[position]
        return self.inner.categorical(w, position, purpose, index)

    def race(
        self, w: Float[np.ndarray, " vocab"], k: int, position: int, purpose: Purpose = Purpose.DRAFT, index: int = 0
    ) -> list[int]:
        """The inner source's answer."""
        return self.inner.race(w, k, position, purpose, index)


@dataclass(frozen=True)
class Inverted:
    """A source that draws the target's tokens by inversion: one uniform a draw, cheaper than a race, the same law.

    >>> from hedgerow.core.rng import Rng
    >>> Inverted(Rng(1)).categorical(np.array([0.0, 1.0, 0.0]), position=5)
    1
    """

    inner: Rng

    def at(self, root: int) -> Inverted:
        """The same source for the step whose root stands at position `root`."""
        return Inverted(self.inner.at(root))

    def bernoulli(self, p: float, position: int, purpose: Purpose = Purpose.ACCEPT, index: int = 0) -> bool:
        """The inner source's answer."""
        return self.inner.bernoulli(p, position, purpose, index)

    def categorical(
        self, w: Float[np.ndarray, " vocab"], position: int, purpose: Purpose = Purpose.TARGET, index: int = 0
    ) -> int:
        """The index in which a uniform share of the total weight falls."""
        sums = np.cumsum(w)
        at = int(np.searchsorted(sums, self.inner.uniform(position, purpose, index) * sums[-1], side="right"))
        return min(at, len(sums) - 1)

    def race(
        self, w: Float[np.ndarray, " vocab"], k: int, position: int, purpose: Purpose = Purpose.DRAFT, index: int = 0
    ) -> list[int]:
        """The inner source's answer."""
        return self.inner.race(w, k, position, purpose, index)


@dataclass
class Ending(Finisher):
    """A finisher that ends after as many tokens as the recorded request had, whatever ended that one.

    Until then it leaves the room that the recorded request had.
    """

    after: int = 0
    why: str = "length"

    def take(self, tokens: Sequence[int]) -> int:
        """Accept tokens in order up to the recorded end; returns how many were kept. Mutates the state."""
        kept = super().take(tokens[: self.after - len(self.ids)])
        if len(self.ids) >= self.after:
            self.reason = self.why
        return kept
