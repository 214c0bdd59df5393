"""Randomness as an argument (law 5): one keyed source per request, and the tape that enumerates it.

Every number is a pure function of (seed, choice index, absolute position, purpose, index): never of arrival, batch or
tree. A categorical draw is an exponential race, argmin_x E_x / w_x, whose noise E_x is keyed per token id as well; so a
drafter that races on the target's own noise tends to pick the token the target will pick (`Selection.COUPLED`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeVar

import numpy as np
from jaxtyping import Float, Int

T = TypeVar("T")
_GOLDEN, _M1, _M2, _MASK = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, (1 << 64) - 1


class Purpose(IntEnum):
    """What a random number is for; part of its key, so that no number serves twice."""

    TARGET = 0      # the token at a position, drawn from p: plain decoding's own draw
    DRAFT = 1       # tokens drawn from q
    ACCEPT = 2      # accept tests of q-aware rules
    RESIDUAL = 3    # the token drawn from what is left of p after rejections
    MODEL = 4       # anything a drafter wants for itself


class Source(Protocol):
    """What selection, policies and rules may ask of randomness; `Rng` answers with numbers, `Tape` with branches."""

    def at(self, root: int) -> Source:
        """The same source for the step whose root stands at position `root`."""

    def bernoulli(self, p: float, position: int, purpose: Purpose = Purpose.ACCEPT, index: int = 0) -> bool:
        """True with probability `p` (clipped to [0, 1])."""

    def categorical(
        self, w: Float[np.ndarray, " vocab"], position: int, purpose: Purpose = Purpose.TARGET, index: int = 0
    ) -> int:
        """An index drawn in proportion to the non-negative weights `w`, which need not sum to one."""

    def race(
        self, w: Float[np.ndarray, " vocab"], k: int, position: int, purpose: Purpose = Purpose.DRAFT, index: int = 0
    ) -> list[int]:
        """The first `k` indices to finish an exponential race with rates `w`: a draw without replacement, in order."""


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * _M1) & _MASK
    x = ((x ^ (x >> 27)) * _M2) & _MASK
    return x ^ (x >> 31)


@dataclass(frozen=True)
class Rng:
    """The keyed random numbers of one request.

    Uniforms come from splitmix64's finaliser over a chained key, so any of them is computed alone and in any order.

    `root`, the position of the step's root, is part of every key but the target's own: a step that looks at a position
    again after a rejection must not meet the numbers that led to the rejection (deep nodes are tested before shallow
    ones by some rules), while the target's draw at a position must not depend on where steps began.

    >>> Rng(seed=1).categorical(np.array([0.0, 1.0, 0.0]), position=5)
    1
    >>> Rng(seed=1).bernoulli(0.0, 3), Rng(seed=1).bernoulli(1.0, 3)
    (False, True)
    """

    seed: int
    choice: int = 0
    root: int = 0

    def at(self, root: int) -> Rng:
        """The same source for the step whose root stands at position `root`."""
        return Rng(self.seed, self.choice, root)

    def _key(self, position: int, purpose: int, index: int) -> int:
        key = _mix((self.seed + _GOLDEN) & _MASK)
        for part in (self.choice, position, purpose, index, 0 if purpose == Purpose.TARGET else self.root):
            key = _mix((key ^ ((part + 1) * _GOLDEN)) & _MASK)
        return key

    def uniform(self, position: int, purpose: Purpose, index: int = 0) -> float:
        """A number in [0, 1)."""
        return (_mix((self._key(position, purpose, index) + _GOLDEN) & _MASK) >> 11) * 2.0**-53

    def noise(
        self, ids: Int[np.ndarray, " ids"], position: int, purpose: Purpose, index: int = 0
    ) -> Float[np.ndarray, " ids"]:
        """Standard exponential noise for each token id; the noise of an id does not depend on the others asked for."""
        x = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(self._key(position, purpose, index))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(_M1)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(_M2)
        x ^= x >> np.uint64(31)
        u = ((x >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1): the log is finite
        return -np.log(u)

    def bernoulli(self, p: float, position: int, purpose: Purpose = Purpose.ACCEPT, index: int = 0) -> bool:
        """True with probability `p`; strict, so 0 never and 1 always."""
        return self.uniform(position, purpose, index) < p

    def categorical(
        self, w: Float[np.ndarray, " vocab"], position: int, purpose: Purpose = Purpose.TARGET, index: int = 0
    ) -> int:
        """The winner of the race: argmin E_x / w_x over the support, ties to the lowest id."""
        only: int | None = getattr(w, "token", None)        # of a `probs.OneHot`
        if only is not None:
            return only
        support = np.flatnonzero(w > 0)
        if len(support) <= 1:
            return int(support[0]) if len(support) else _no_mass(w)
        return int(support[np.argmin(self.noise(support, position, purpose, index) / w[support])])

    def race(
        self, w: Float[np.ndarray, " vocab"], k: int, position: int, purpose: Purpose = Purpose.DRAFT, index: int = 0
    ) -> list[int]:
        """The first `k` finishers, fewer if the support is smaller."""
        support = np.flatnonzero(w > 0)
        time = self.noise(support, position, purpose, index) / w[support]
        return support[np.argsort(time, kind="stable")[:k]].tolist()


def _no_mass(w: np.ndarray) -> int:
    raise ValueError(f"categorical over weights without mass (sum {float(np.sum(w))}, {len(w)} entries)")


class Tape:
    """A `Source` that replays a list of branches and extends it: the engine of exact enumeration.

    `weight` is the probability of the branches taken so far. `request(i)` gives each request of a batch its own keys.

    Raises: ValueError when a key is used twice: with `Rng` the two answers would be the same number, so the rule that
    asks twice is not the one being enumerated.
    """

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.taken: list[int] = []
        self.options: list[int] = []      # how many branches each decision has
        self.weight = 1.0
        self.used: set[tuple[int, ...]] = set()   # keys taken; a later tape of the same step may start from them

    def request(self, request: int, root: int = 0) -> TapeView:
        """The source of one request, for the step whose root stands at `root`."""
        return TapeView(self, request, root)

    def branch(self, weights: np.ndarray, key: tuple[int, ...] | None = None) -> int:
        """One decision: an index with mass, every one of them in turn."""
        if key is not None:
            if key in self.used:
                raise ValueError(f"random key {key} was used twice")
            self.used.add(key)
        mass = weights.tolist()           # a handful of numbers: plain floats are faster than arrays
        alive = [i for i, w in enumerate(mass) if w > 0.0]
        if not alive:
            return _no_mass(weights)
        if len(alive) == 1:
            return alive[0]
        at = len(self.taken)
        pick = self.script[at] if at < len(self.script) else 0
        self.taken.append(pick)
        self.options.append(len(alive))
        self.weight *= mass[alive[pick]] / sum(mass[i] for i in alive)
        return alive[pick]

    def bernoulli(self, p: float, position: int, purpose: Purpose = Purpose.ACCEPT, index: int = 0) -> bool:
        """Both answers, one after the other."""
        return self.request(0).bernoulli(p, position, purpose, index)

    def categorical(
        self, w: Float[np.ndarray, " vocab"], position: int, purpose: Purpose = Purpose.TARGET, index: int = 0
    ) -> int:
        """Every index with mass, one after the other."""
        return self.request(0).categorical(w, position, purpose, index)

    def race(
        self, w: Float[np.ndarray, " vocab"], k: int, position: int, purpose: Purpose = Purpose.DRAFT, index: int = 0
    ) -> list[int]:
        """Every order of the first `k` finishers."""
        return self.request(0).race(w, k, position, purpose, index)


@dataclass(frozen=True)
class TapeView:
    """One request's view of a shared `Tape`; keyed as `Rng` is."""

    tape: Tape
    number: int
    root: int = 0

    def at(self, root: int) -> TapeView:
        """The same source for the step whose root stands at position `root`."""
        return TapeView(self.tape, self.number, root)

    def _key(self, position: int, purpose: int, index: int) -> tuple[int, ...]:
        return (self.number, position, int(purpose), index, 0 if purpose == Purpose.TARGET else self.root)

    def bernoulli(self, p: float, position: int, purpose: Purpose = Purpose.ACCEPT, index: int = 0) -> bool:
        """Both answers, one after the other."""
        p = min(max(float(p), 0.0), 1.0)
        return bool(self.tape.branch(np.array([1.0 - p, p]), self._key(position, purpose, index)))

    def categorical(
        self, w: Float[np.ndarray, " vocab"], position: int, purpose: Purpose = Purpose.TARGET, index: int = 0
    ) -> int:
        """Every index with mass, one after the other."""
        return self.tape.branch(np.asarray(w, np.float64), self._key(position, purpose, index))

    def race(
        self, w: Float[np.ndarray, " vocab"], k: int, position: int, purpose: Purpose = Purpose.DRAFT, index: int = 0
    ) -> list[int]:
        """Every order of the first `k` finishers: successive draws without replacement (Plackett–Luce)."""
        left = np.array(w, np.float64)
        out: list[int] = []
        while len(out) < k and np.any(left > 0):
            out.append(self.tape.branch(left, None if out else self._key(position, purpose, index)))
            left[out[-1]] = 0.0
        return out


def enumerate_branches(run: Callable[[Tape], T]) -> Iterator[tuple[float, T]]:
    """Run `run` once for every path of random decisions and yield (probability, result); probabilities sum to one.

    >>> sorted(enumerate_branches(lambda t: t.bernoulli(0.25, 0)))
    [(0.25, True), (0.75, False)]
    """
    script: list[int] = []
    while True:
        tape = Tape(script)
        result = run(tape)
        yield tape.weight, result
        taken, options = tape.taken, tape.options
        while taken and taken[-1] + 1 >= options[-1]:
            taken.pop()
            options.pop()
        if not taken:
            return
        taken[-1] += 1
        script = taken
