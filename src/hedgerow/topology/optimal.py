"""Optimal shapes under the positional acceptance model: the exact dynamic programme, and the heap where it suffices.

The r-th child of a node can only be drafted with the r − 1 before it. If the rates fall with the rank, taking the most
probable node again and again is optimal (`positional_tree`); if not, only the programme is (`sequoia_dp`).

Source: Sequoia (2402.12374) section 4.1 and appendix on hardware-aware size.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from hedgerow.core.errors import UsageError
from hedgerow.core.shape import TreeShape
from hedgerow.topology.expected import Rates, by_depth, check_rates, rates, survivals

NONE = -np.inf


def shape_of(paths: Iterable[tuple[int, ...]], p: Rates) -> TreeShape:
    """A shape in order of survival under the rates; ties by depth, then rank path."""
    plain = TreeShape.from_paths(sorted(paths, key=lambda path: (len(path), path)))
    value = dict(zip(plain.paths, survivals(plain, p), strict=True))
    order = sorted(value, key=lambda path: (-value[path], len(path), path))
    return TreeShape.from_paths(order, [value[path] for path in order])


def positional_tree(p: Rates, nodes: int, max_depth: int | None = None, max_child: int | None = None) -> TreeShape:
    """The `nodes` most probable nodes, by a heap: optimal if every row of rates falls with the rank.

    `max_child` limits the children of a node. Fewer nodes come back where the limits leave fewer.

    >>> positional_tree([0.6, 0.3], 3).paths
    ((0,), (0, 0), (1,))
    """
    check_rates(p)
    heap: list[tuple[float, int, tuple[int, ...], float]] = []   # (−survival, depth, path, survival of the parent)

    def push(path: tuple[int, ...], above: float) -> None:
        row = rates(p, len(path))
        if path[-1] < min(len(row), max_child or len(row)) and len(path) <= (max_depth or len(path)):
            heapq.heappush(heap, (-above * row[path[-1]], len(path), path, above))

    push((0,), 1.0)
    paths: list[tuple[int, ...]] = []
    survival: list[float] = []
    while heap and len(paths) < nodes:
        minus, _, path, above = heapq.heappop(heap)
        paths.append(path)
        survival.append(-minus)
        push((*path[:-1], path[-1] + 1), above)
        push((*path, 0), -minus)
    return TreeShape.from_paths(paths, survival)


def sequoia_values(p: Rates, rows: int, levels: int) -> list[np.ndarray]:
    """best[l][n]: most expected tokens of a tree of exactly n rows in at most l levels (root included), −inf if none.

    With rates that depend on depth, l counts the levels left, the root of `best[levels]` standing at depth 0.
    """
    return [best for best, _ in _tables(p, rows, levels)]


def best_tokens(p: Sequence[float], rows: int) -> Float[np.ndarray, " sizes"]:
    """Entry n: most expected tokens F of a tree of at most n rows (entry 0 is 0), n up to `rows`.

    >>> best_tokens([0.6, 0.3], 3).round(3).tolist()
    [0.0, 1.0, 1.6, 1.96]
    """
    check_rates(p)
    best = _table(p, rows, None)[0]
    best[0] = 0.0
    return np.maximum.accumulate(best)


def sequoia_dp(p: Rates, rows: int, levels: int | None = None) -> tuple[float, TreeShape]:
    """The tree of at most `rows` rows and `levels` levels, root included in both, with the most expected tokens F.

    T(n, l, b) = max_y T(y, l, b − 1) + p_b · best(n − y, l − 1), where T(·, ·, b) has b children below its root.

    Raises: UsageError for rows or levels below 1, or rates that are no probabilities.

    Source: Sequoia (2402.12374) Algorithm 1 (rows and levels count the root as there). Differs from the paper in: rates
    may be a table p[depth][rank].

    >>> f, shape = sequoia_dp([0.6, 0.24], 4)
    >>> round(f, 12), shape.paths
    (2.2, ((0,), (0, 0), (1,)))
    """
    if rows < 1 or (levels is not None and levels < 1):
        raise UsageError(f"a tree of {rows} rows in {levels} levels; allowed: 1 or more of each, the root included")
    check_rates(p)
    if levels is None and by_depth(p):
        levels = len(p) + 1
    if levels is None:
        tables = [_table(rates(p, 1), rows, None)] * 2
        deep = 1
    else:
        tables = _tables(p, rows, levels)
        deep = levels
    best, _ = tables[deep]
    n = 1 + int(np.argmax(best[1:]))
    paths: list[tuple[int, ...]] = []

    def build(n: int, level: int, at: tuple[int, ...]) -> None:
        table = tables[level][1]
        b = int(np.argmax(table[n]))
        row = rates(p, len(at) + 1)
        below_level = level if levels is None else level - 1
        while b > 0:
            below = tables[below_level][0]
            y = np.arange(1, n)
            y0 = int(y[np.argmax(table[1:n, b - 1] + row[b - 1] * below[n - y])])
            paths.append((*at, b - 1))
            build(n - y0, below_level, (*at, b - 1))
            n, b = y0, b - 1

    build(n, deep, ())
    return float(best[n]), shape_of(paths, p)


def _tables(p: Rates, rows: int, levels: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tables for 0, 1, …, `levels` levels left."""
    none = np.full(rows + 1, NONE)
    tables = [(none, none[:, None])]
    for left in range(1, levels + 1):
        row = rates(p, levels - left + 1) if left > 1 else ()
        tables.append(_table(row, rows, tables[-1][0]))
    return tables


def _table(p: Sequence[float], rows: int, below: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """best[n] and T[n, b] for one number of levels left; `below` None means no limit: the table feeds itself."""
    rate = np.asarray(p, np.float64)
    wide = min(len(rate), rows - 1)
    rate = rate[:wide]
    table = np.full((rows + 1, wide + 1), NONE)
    best = np.full(rows + 1, NONE)
    table[1, 0] = best[1] = 1.0
    under = best if below is None else below
    for n in range(2, rows + 1):
        if wide:
            tail = under[n - 1 : 0 : -1]                # rows of the last child's subtree, for y = 1 … n − 1
            with np.errstate(invalid="ignore"):         # 0 × −inf where a rate is 0 and no tree fits
                gain = np.where(np.isfinite(tail)[:, None], rate * tail[:, None], NONE)
            table[n, 1:] = np.max(table[1:n, :wide] + gain, axis=0)
        best[n] = np.max(table[n])
    return best, table


@dataclass(frozen=True)
class Choice:
    """A size chosen for a machine: rows and levels count the root; times are in the unit the tables came in."""

    rows: int
    levels: int
    tokens: float
    time_per_token: float
    speedup: float


def sequoia_choice(
    p: Rates, draft_time: float, verify_time: Mapping[int, float], max_levels: int = 32, calls_at_one: int = 0
) -> Choice:
    """The (rows, levels) with the least ((levels − 1 + calls_at_one) · draft + verify[rows]) / F(rows, levels).

    `verify_time[rows]` must hold 1 row, plain decoding, which the speed-up refers to. `calls_at_one=1` charges as many
    draft calls as there are levels, as the paper's public search does.

    Source: Sequoia (2402.12374) section 4.3.
    """
    if 1 not in verify_time:
        raise UsageError("verify_time has no entry for 1 row; the time of plain decoding is needed")
    most = max(verify_time)
    best: Choice | None = None
    shared = None if by_depth(p) else sequoia_values(p, most, max_levels)
    for levels in range(1, max_levels + 1):
        values = (shared or sequoia_values(p, most, levels))[levels]
        for rows, seconds in sorted(verify_time.items()):
            tokens = float(np.max(values[1 : rows + 1]))
            per_token = ((levels - 1 + calls_at_one) * draft_time + seconds) / tokens
            if best is None or per_token < best.time_per_token:
                best = Choice(rows, levels, tokens, per_token, verify_time[1] / per_token)
    assert best is not None
    return best
