"""What the target call of a step costs, as a curve over rows and context: a measured table, or a fitted roofline.

    Table      seconds by rows × context; between two row counts a line, or a staircase of classes
    Roofline   T = max(H, t0 + a·R + b·C + g·R·C/batch + q·R²), fitted with `fit`

Everything is in seconds, rows (root included) and tokens of context. `cost/profiles.py` makes a machine's profile of
curves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import StepShape


@dataclass(frozen=True)
class Table:
    """Measured seconds: `cells_s[i][j]` at context `contexts[i]` and `rows[j]` rows.

    With `steps` each row count is the upper edge of a class of equal cost, whatever its neighbours cost: tiles and
    inversions stay as they were measured. Without, cost runs on straight lines between the row counts. Below the first
    row count and the first context the first one counts. Between contexts cost runs on lines, beyond the last it goes
    on rising (never falling) as between the last two.

    Rows beyond the last: a line goes on, at least as steep as the whole curve was; classes begin again, as if the rows
    ran in passes of at most the last class.

    A batch is charged its total rows at the mean context of a row, and for every request after the first what its
    context costs a single row.

    Raises: UsageError unless rows and contexts rise and every entry is a positive number of seconds.

    >>> t = Table(rows=(8, 16), contexts=(0, 1000), cells_s=((1.0, 2.0), (1.5, 3.0)), steps=True)
    >>> t.seconds(9, 0), t.seconds(8, 500), t.seconds(17, 0)
    (2.0, 1.25, 3.0)
    """

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    cells_s: tuple[tuple[float, ...], ...]
    steps: bool = False

    def __post_init__(self) -> None:
        for name, axis in (("rows", self.rows), ("contexts", self.contexts)):
            if not axis or any(b <= a for a, b in pairwise(axis)) or axis[0] < (name == "rows"):
                raise UsageError(f"a cost table's {name} are {list(axis)}; allowed: rising numbers, at least one")
        if len(self.cells_s) != len(self.contexts) or any(len(row) != len(self.rows) for row in self.cells_s):
            raise UsageError(
                f"a cost table has {[len(row) for row in self.cells_s]} entries by context; "
                f"needed: {len(self.contexts)} lists of {len(self.rows)}"
            )
        bad = [s for row in self.cells_s for s in row if not 0.0 < s < np.inf]
        if bad:
            raise UsageError(f"a cost table has the entry {bad[0]}; allowed: positive seconds")

    def seconds(self, rows: int, context: float) -> float:
        """Seconds of one request's step."""
        i = min(bisect_right(self.contexts, context) - 1, len(self.contexts) - 2)
        if i < 0:
            return self._at(self.cells_s[0], rows)
        near, far = self._at(self.cells_s[i], rows), self._at(self.cells_s[i + 1], rows)
        w = (context - self.contexts[i]) / (self.contexts[i + 1] - self.contexts[i])
        return near + w * (far - near) if w <= 1.0 else far + (w - 1.0) * max(far - near, 0.0)

    def _at(self, cells: Sequence[float], rows: int) -> float:
        edges = self.rows
        if self.steps:
            passes, last = divmod(max(rows, 1) - 1, edges[-1])
            return passes * cells[-1] + cells[bisect_left(edges, last + 1)]
        j = bisect_left(edges, rows)
        if j < len(edges):
            if j == 0 or edges[j] == rows:
                return cells[j]
            return cells[j - 1] + (rows - edges[j - 1]) * (cells[j] - cells[j - 1]) / (edges[j] - edges[j - 1])
        if j == 1:
            return cells[0]
        last_slope = (cells[-1] - cells[-2]) / (edges[-1] - edges[-2])
        whole_slope = (cells[-1] - cells[0]) / (edges[-1] - edges[0])
        return cells[-1] + (rows - edges[-1]) * max(last_slope, whole_slope, 0.0)

    def step_s(self, shape: StepShape) -> float:
        """Seconds of a whole batch's step."""
        if len(shape.rows) == 1:
            return self.seconds(shape.rows[0], shape.contexts[0])
        total = sum(shape.rows)
        mean = sum(r * c for r, c in zip(shape.rows, shape.contexts, strict=True)) / total
        one = self.seconds(1, self.contexts[0])
        alone = {c: self.seconds(1, c) - one for c in set(shape.contexts)}
        others = sum(alone[c] for c in shape.contexts) - (self.seconds(1, mean) - one)
        return self.seconds(total, mean) + max(others, 0.0)

    def edges(self) -> tuple[int, ...]:
        """The classes' upper edges; empty for lines, which never jump."""
        return self.rows if self.steps else ()


@dataclass(frozen=True)
class Roofline:
    """T = max(H, t0 + a·R + b·C + g·R·C/batch + q·R²): a floor, then work that grows with rows and context.

    R: total rows; C: total context in tokens; R·C/batch stands for Σ rows·context over the requests, which it equals
    when they are alike. `floor_s` = H, `base_s` = t0, `row_s` = a, `context_s` = b (per token), `row_context_s` = g,
    `row2_s` = q.
    A finite `sharpness` p rounds the corner: T = (H^p + L^p)^(1/p).

    Raises: UsageError for a negative value.

    >>> Roofline(floor_s=2.0, row_s=0.1).step_s(StepShape([10, 20], [0, 0]))
    3.0
    """

    floor_s: float = 0.0
    base_s: float = 0.0
    row_s: float = 0.0
    context_s: float = 0.0
    row_context_s: float = 0.0
    row2_s: float = 0.0
    sharpness: float = np.inf

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0.0:
                raise UsageError(f"a roofline's {name} is {value}; allowed: 0 or more")

    def seconds(self, rows: int, context: float) -> float:
        """Seconds of one request's step."""
        return self._corner(self._work(rows, context, rows * context))

    def step_s(self, shape: StepShape) -> float:
        """Seconds of a whole batch's step."""
        crossed = sum(r * c for r, c in zip(shape.rows, shape.contexts, strict=True))
        return self._corner(self._work(sum(shape.rows), sum(shape.contexts), crossed))

    def edges(self) -> tuple[int, ...]:
        """Empty: it never jumps."""
        return ()

    def _work(self, rows: float, context: float, crossed: float) -> float:
        return (
            self.base_s + self.row_s * rows + self.context_s * context + self.row_context_s * crossed
            + self.row2_s * rows * rows
        )

    def _corner(self, work: float) -> float:
        high, low = max(self.floor_s, work), min(self.floor_s, work)
        if self.sharpness == np.inf or low <= 0.0:
            return high
        return float(high * (1.0 + (low / high) ** self.sharpness) ** (1.0 / self.sharpness))


Curve = Table | Roofline


@dataclass(frozen=True)
class Errors:
    """Relative errors of a curve on measured points, |T / measured − 1|: mean and largest."""

    mean: float
    worst: float


def errors(curve: Curve, rows: Sequence[int], contexts: Sequence[float], seconds: Sequence[float]) -> Errors:
    """How far a curve is from measured steps of single requests.

    >>> errors(Roofline(base_s=1.0), rows=[1, 2], contexts=[0, 0], seconds=[1.0, 0.8])
    Errors(mean=0.125, worst=0.25)
    """
    off = [abs(curve.seconds(r, c) / t - 1.0) for r, c, t in zip(rows, contexts, seconds, strict=True)]
    return Errors(round(sum(off) / len(off), 12), round(max(off), 12))


def fit(
    rows: Sequence[int], contexts: Sequence[float], seconds: Sequence[float], *, floor: bool = True,
    product: bool = True, square: bool = False, rounded: bool = False, scale: float = 0.05,
) -> Roofline:
    """The roofline that fits measured steps of single requests: least squares of the relative error, soft-L1.

    `floor`, `product` (rows × context), `square` (rows²) and `rounded` (a free sharpness) choose the terms; every one
    is kept at or above 0. Errors beyond `scale` count linearly, so that one disturbed measurement does not bend the
    curve. Leave out steps of one row, a class of its own on most machines.

    Raises: UsageError for fewer points than terms, or seconds that are not positive.

    >>> r = fit([4, 8, 16, 32, 64], [0] * 5, [1.0, 1.0, 1.0, 2.0, 4.0], product=False)
    >>> round(r.floor_s, 3), round(r.seconds(48, 0), 3)
    (1.0, 3.0)
    """
    from scipy.optimize import least_squares

    measured = np.asarray(seconds, np.float64)
    r, c = np.asarray(rows, np.float64), np.asarray(contexts, np.float64)
    columns = [np.ones_like(r), r, c, *([r * c] if product else []), *([r * r] if square else [])]
    terms = len(columns) + floor + rounded
    if len(measured) < terms or not np.all(measured > 0.0):
        raise UsageError(
            f"{len(measured)} measurements, the least {float(measured.min(initial=np.inf))} s, for a curve of {terms} "
            f"terms; needed: at least {terms}, all positive"
        )
    size = np.maximum([column.max() for column in columns], 1.0)
    scaled = np.stack(columns, axis=1) / size

    def predict(x: Float[np.ndarray, " terms"]) -> Float[np.ndarray, " points"]:
        work = scaled @ x[: len(columns)]
        if not floor:
            return work
        height = x[len(columns)]
        if not rounded:
            return np.maximum(height, work)
        high, low = np.maximum(height, work), np.minimum(height, work)
        return high * (1.0 + (np.maximum(low, 0.0) / high) ** x[-1]) ** (1.0 / x[-1])

    best = None
    for above in (1.0, 1.05, 1.2):      # a start from all points, and from those that may have left the floor
        start = [
            *_start(scaled, measured, above), *([measured.min()] if floor else []), *([5.0] if rounded else []),
        ]
        lowest = [0.0] * len(columns) + [measured.min() * 1e-3] * floor + [1.0] * rounded
        found = least_squares(
            lambda x: predict(x) / measured - 1.0, np.maximum(start, lowest), bounds=(lowest, np.inf),
            loss="soft_l1", f_scale=scale,
        )
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    values = (best.x[: len(columns)] / size).tolist()
    base, row, context, *rest = values
    return Roofline(
        floor_s=float(best.x[len(columns)]) if floor else 0.0, base_s=base, row_s=row, context_s=context,
        row_context_s=rest.pop(0) if product else 0.0, row2_s=rest.pop(0) if square else 0.0,
        sharpness=float(best.x[-1]) if rounded else np.inf,
    )


def _start(
    scaled: Float[np.ndarray, "points terms"], measured: Float[np.ndarray, " points"], above: float
) -> Float[np.ndarray, " terms"]:
    """Non-negative least squares of the relative error over the points at least `above` × the least."""
    from scipy.optimize import nnls

    chosen = measured >= measured.min() * above
    if chosen.sum() < scaled.shape[1]:
        chosen[:] = True
    weights, _ = nnls(scaled[chosen] / measured[chosen, None], np.ones(int(chosen.sum())))
    return np.asarray(weights)
