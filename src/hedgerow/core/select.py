"""Picking children from draft rows: the one place where drafts are drawn (law 3).

Each function takes one row `q` (a law over the vocabulary) and returns tokens in draw order. A drawn sibling is never
dropped or reordered afterwards; `mult` counts i.i.d. draws that fell on the same token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from hedgerow.core.errors import UsageError
from hedgerow.core.rng import Purpose, Source
from hedgerow.core.tree import Selection


@dataclass(frozen=True)
class Picked:
    """Children of one node: tokens in draw order, log q of each, and how many draws fell on each."""

    token: list[int]
    log_q: list[float]
    mult: list[int]


def top_ids(row: Float[np.ndarray, " vocab"], k: int) -> np.ndarray:
    """Indices of the `k` largest entries, largest first, ties to the lowest id.

    >>> top_ids(np.array([1.0, 3.0, 3.0, 0.0]), 3).tolist()
    [1, 2, 0]
    """
    k = min(k, len(row))
    if k <= 0:
        return np.empty(0, np.int64)
    if k < len(row) // 8:
        floor = np.partition(row, len(row) - k)[len(row) - k]
        near = np.flatnonzero(row >= floor)
        return near[np.lexsort((near, -row[near]))[:k]]
    return np.lexsort((np.arange(len(row)), -row))[:k]


def pick(
    q: Float[np.ndarray, " vocab"], k: int, selection: Selection, rng: Source, position: int, index: int = 0,
    source: int = 0,
) -> Picked:
    """Pick up to `k` children of one node from its draft law `q`.

    `position` is the absolute position of the children, `index` the arrival index of the parent plus one (0 = root),
    `source` the drafter: together they key the draw, so that two drafters below one node draw independently.
    `top_k`: the k most likely. `coupled`: the k first in the race that uses the target's own noise. `iid`: k draws,
    repeats merged into `mult`. `without_replacement`: the k first of a race of our own, in order. `greedy_plus_one`:
    the k − 1 most likely, then one draw from the rest. `hub`: SpecHub's pair — draw x; with a = argmax q, the pair is
    (x, a), or (a, y ~ q without a) if x = a.

    Raises: UsageError for `retrieved`, which no row answers, and for `hub` with k ≠ 2.

    >>> pick(np.array([0.2, 0.5, 0.3]), 2, Selection.TOP_K, None, 0).token
    [1, 2]
    """
    key = (source << 40) + index * 1024    # up to 1024 draws a node
    if selection is Selection.TOP_K:
        ids = [i for i in top_ids(q, k).tolist() if q[i] > 0]
        return _picked(q, ids)
    if selection is Selection.COUPLED:
        return _picked(q, rng.race(q, k, position, Purpose.TARGET))
    if selection is Selection.WITHOUT_REPLACEMENT:
        return _picked(q, rng.race(q, k, position, Purpose.DRAFT, key))
    if selection is Selection.IID:
        draws = [rng.categorical(q, position, Purpose.DRAFT, key + j) for j in range(k)]
        ids = list(dict.fromkeys(draws))
        return _picked(q, ids, [draws.count(i) for i in ids])
    if selection is Selection.GREEDY_PLUS_ONE:
        ids = [i for i in top_ids(q, k - 1).tolist() if q[i] > 0]
        rest = np.array(q, np.float64)
        rest[ids] = 0.0
        if np.any(rest > 0) and k > 0:
            ids.append(rng.categorical(rest, position, Purpose.DRAFT, key))
        return _picked(q, ids)
    if selection is Selection.HUB:
        if k != 2:
            raise UsageError(f"selection 'hub' draws pairs; {k} children were asked for, 2 are allowed")
        hub = int(top_ids(q, 1)[0])
        first = rng.categorical(q, position, Purpose.DRAFT, key)
        rest = np.array(q, np.float64)
        rest[hub] = 0.0
        if first != hub:
            return _picked(q, [first, hub])
        if not np.any(rest > 0):
            return _picked(q, [hub])
        return _picked(q, [hub, rng.categorical(rest, position, Purpose.DRAFT, key + 1)])
    raise UsageError(f"selection {selection.label!r} is not drawn from a row: a retrieval drafter answers it itself")


def _picked(q: np.ndarray, ids: list[int], mult: list[int] | None = None) -> Picked:
    with np.errstate(divide="ignore"):
        log_q = np.log(q[ids]).tolist() if ids else []
    return Picked(ids, log_q, mult if mult is not None else [1] * len(ids))
