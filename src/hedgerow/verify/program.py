"""Linear programs over transports, solved to rounding: HiGHS finds the optimum, this module proves how close it is.

HiGHS accepts reduced costs and residuals up to 1e-7. Here the support of its solution is solved again as a linear
system, for primal and dual, and the duality gap of the two bounds the error that is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from hedgerow.core.errors import InvariantError

_GAP = 1e-10                               # largest duality gap that is let pass
# HiGHS's tolerances are absolute while masses may be tiny, so masses are scaled up; presolve takes what is left of them
# for infeasible now and then, and a tight tolerance cannot always be met: (scale, tolerance, presolve), in this order
_TRIES = (
    (2.0**20, 1e-10, True), (2.0**20, 1e-10, False), (2.0**20, 1e-7, False), (1.0, 1e-10, False), (1.0, 1e-7, False),
)
_SECONDS = 20.0                            # for each of them


@dataclass(frozen=True)
class Optimum:
    """The value of a program, its solution, and a bound on the value's error."""

    value: float
    gap: float
    x: Float[np.ndarray, " columns"]


class Program:
    """max gain·x over x ≥ 0 with Σ over each group of x = mass and balance·x = total, built column by column.

    Every column lies in one group, and what it puts into the balance rows sums to 1, as mass and total do.

    >>> program = Program([1.0], [0.4, 0.6])
    >>> for row, gain in ((0, 1.0), (1, 0.0)):
    ...     program.column(0, gain, [row], [1.0])
    >>> round(program.solve().value, 12)
    0.4
    """

    def __init__(self, mass: Sequence[float], total: Sequence[float]) -> None:
        self.mass, self.total = list(mass), list(total)
        self.gain: list[float] = []
        self.group: list[int] = []
        self._rows: list[int] = []
        self._cols: list[int] = []
        self._vals: list[float] = []

    def column(self, group: int, gain: float, rows: list[int], values: list[float]) -> None:
        """One variable of a group: what it is worth and what it puts into which balance rows."""
        self._rows += [group, *(len(self.mass) + r for r in rows)]
        self._cols += [len(self.gain)] * (1 + len(rows))
        self._vals += [1.0, *values]
        self.gain.append(gain)
        self.group.append(group)

    def solve(self) -> Optimum:
        """The optimum.

        Raises: InvariantError where the solver fails, or its optimum cannot be certified to 1e-10.
        """
        gain, group = np.array(self.gain), np.array(self.group)
        right = np.array(self.mass + self.total)
        matrix = coo_array((self._vals, (self._rows, self._cols)), shape=(len(right), len(gain))).tocsr()
        implied = len(self.mass) + int(np.argmax(self.total))      # a row that follows from the others
        kept = np.delete(np.arange(len(right)), implied)
        tried: list[str] = []
        for scale, tolerance, presolve in _TRIES:
            found = linprog(
                -gain, A_eq=matrix[kept], b_eq=scale * right[kept], bounds=(0.0, None), method="highs-ds", options={
                    "presolve": presolve, "time_limit": _SECONDS, "primal_feasibility_tolerance": tolerance,
                    "dual_feasibility_tolerance": tolerance,
                },
            )
            if found.x is None:
                tried.append(str(found.message))
                continue
            y = np.zeros(len(right))
            y[kept] = -found.eqlin.marginals
            best = _certified(gain, group, matrix, right, found.x / scale, y)
            if best.gap <= _GAP:
                return best
            tried.append(f"duality gap {best.gap:.2g}, {_GAP:g} is allowed")
        raise InvariantError(
            f"the linear program of {len(right)} rows and {len(gain)} columns was not solved ({'; '.join(tried)}); use "
            "laws with larger probabilities, or fewer tokens and nodes"
        )


def _certified(
    gain: Float[np.ndarray, " columns"], group: Int[np.ndarray, " columns"], matrix: csr_array,
    right: Float[np.ndarray, " rows"], x: Float[np.ndarray, " columns"], y: Float[np.ndarray, " rows"],
) -> Optimum:
    """A solver's primal `x` and dual `y`, each corrected on the support of x, and the gap between their values."""
    on = x > 0.0
    basis = matrix[:, on].toarray()
    x = np.maximum(x, 0.0)
    for _ in range(2):                     # the second step takes out the first one's rounding
        x[on] += np.linalg.lstsq(basis, right - matrix @ x, rcond=1e-12)[0]
        y = y + np.linalg.lstsq(basis.T, gain[on] - basis.T @ y, rcond=1e-12)[0]
    short = gain - matrix.T @ y            # where positive, y is not feasible: each group pays its worst
    worst = np.zeros(len(right))
    np.maximum.at(worst, group, short)
    residual = float(np.abs(right - matrix @ x).sum() + np.maximum(-x, 0.0).sum())
    value = float(gain @ x)
    return Optimum(value, abs(float(right @ (y + worst)) - value) + residual, x)
