"""What is left of the target's law after refusals: the arithmetic every q-aware rule shares.

Rows stay unnormalised with their mass beside them; nothing is divided by a probability that can be zero.
"""

from __future__ import annotations

import numpy as np

from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Row

_TINY = 1e-12                              # times the vocabulary: mass below is rounding, not law


def checked(row: Row, what: str) -> Row:
    """The row itself, if it is a law up to its total.

    Raises: InvariantError for NaN, infinite or negative entries, or a total of zero.
    """
    if getattr(row, "token", None) is not None:         # of a `probs.OneHot`: a law by construction
        return row
    total, least = float(row.sum()), float(row.min())
    if not (0.0 < total < np.inf and least >= 0.0):
        raise InvariantError(
            f"{what} is no law: total {total}, smallest entry {least}; entries must be finite and non-negative, "
            "with some mass"
        )
    return row


def unit(row: Row) -> Row:
    """The row in float64 with total 1. Raises InvariantError if it is no law."""
    wide: Row = checked(np.asarray(row, np.float64), "the row")
    return wide / wide.sum()


def spare(row: Row, p: Row, tried: list[int]) -> Row:
    """`row` if it has mass beyond rounding, else p without the refused tokens, else p.

    The exact residual always has mass where it is asked for; this is what keeps rounding from ever making a NaN.
    """
    if float(row.sum()) > _TINY * len(row):
        return row
    left = np.array(p, np.float64)
    left[tried] = 0.0
    return left if left.sum() > 0.0 else p


class Proposal:
    """The law a source draws its next sibling from, given the siblings it drew before."""

    __slots__ = ("mass", "row")

    def __init__(self, q: Row) -> None:
        self.row: Row = np.asarray(q, np.float64)
        self.mass = float(self.row.sum())

    def remove(self, token: int) -> None:
        """The token was drawn without replacement: it cannot come again."""
        self.row = self.row.copy()
        self.row[token] = 0.0
        self.mass = float(self.row.sum())


class Residual:
    """The part of a target row that refusals have left: `row / mass` is the law still to be followed.

    `row` always has mass, but on the scale of the last proposal's: what a draft row has left after its favourite was
    drawn without replacement may weigh 1e-13 and still be a law.

    >>> import numpy as np
    >>> r = Residual(np.array([0.5, 0.5, 0.0]))
    >>> q = Proposal(np.array([0.25, 0.25, 0.5]))
    >>> r.ratio(0, q), r.ratio(2, q)
    (2.0, 0.0)
    >>> r.refuse(2, q), (r.row / r.mass).tolist()
    (0.5, [0.5, 0.5, 0.0])
    """

    __slots__ = ("mass", "p", "row", "tried")

    def __init__(self, p: Row) -> None:
        self.p: Row = np.asarray(p, np.float64)
        self.row = self.p
        self.mass = float(self.p.sum())
        self.tried: list[int] = []

    def ratio(self, token: int, q: Proposal) -> float:
        """r(token) / q(token), both normalised; 0 where the proposal has no mass left on it."""
        drawn = float(q.row[token])
        return float(self.row[token]) * q.mass / (drawn * self.mass) if drawn > 0.0 else 0.0

    def refuse(self, token: int, q: Proposal, share: float = 1.0) -> float:
        """Take out what the refused proposal covered: r ← (share·r − q)₊; the mass that is left, before normalising.

        Where nothing beyond rounding is left, p without the refused tokens takes its place and 0 is returned.
        """
        self.tried.append(token)
        if q.mass <= 0.0:
            return share
        left = self.row * (share * q.mass / self.mass)
        left -= q.row
        np.maximum(left, 0.0, out=left)
        mass = float(left.sum())
        if mass <= _TINY * len(left) * q.mass:
            self.row = spare(np.zeros(len(left)), self.p, self.tried)
            self.mass = float(self.row.sum())
            return 0.0
        self.row, self.mass = left, mass
        return mass / q.mass
