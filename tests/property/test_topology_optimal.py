"""The optimal shapes against brute force and against each other."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.topology.expected import expected_tokens
from hedgerow.topology.optimal import best_tokens, positional_tree, sequoia_dp


@cache
def all_shapes(rows: int, ranks: int) -> list[frozenset[tuple[int, ...]]]:
    """Every set of `rows` − 1 rank paths that is a tree, siblings without gaps."""
    if rows == 1:
        return [frozenset()]
    out = set()
    for shape in all_shapes(rows - 1, ranks):
        for path in (*shape, ()):
            used = sum(1 for p in shape if p[:-1] == path and p)
            if used < ranks:
                out.add(shape | {(*path, used)})
    return sorted(out, key=sorted)


def value(paths: frozenset[tuple[int, ...]], p: list[float]) -> float:
    return 1.0 + sum(float(np.prod([p[r] for r in path])) for path in paths)


rate_rows = st.lists(st.integers(0, 100), min_size=1, max_size=3).filter(any).map(
    lambda xs: [x / (sum(xs) + 20) for x in xs]
)


@given(rate_rows, st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_the_programme_is_brute_force(p: list[float], rows: int) -> None:
    best = max(value(s, p) for n in range(1, rows + 1) for s in all_shapes(n, len(p)))
    f, shape = sequoia_dp(p, rows)
    assert abs(f - best) < 1e-12
    assert abs(expected_tokens(shape, p) - f) < 1e-12 and shape.nodes < rows


@given(rate_rows, st.integers(1, 8), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_the_programme_with_few_levels_is_brute_force(p: list[float], rows: int, levels: int) -> None:
    fits = [s for n in range(1, rows + 1) for s in all_shapes(n, len(p)) if all(len(path) < levels for path in s)]
    f, shape = sequoia_dp(p, rows, levels)
    assert abs(f - max(value(s, p) for s in fits)) < 1e-12 and shape.max_depth < levels


@given(rate_rows, st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_the_heap_is_the_programme_where_rates_fall(p: list[float], rows: int) -> None:
    p = sorted(p, reverse=True)
    heap = positional_tree(p, rows - 1)
    assert abs(1.0 + heap.survival.sum() - sequoia_dp(p, rows)[0]) < 1e-9
    assert list(heap.survival) == sorted(heap.survival, reverse=True)


@given(rate_rows, st.integers(2, 40))
@settings(max_examples=40, deadline=None)
def test_expected_tokens_rise_and_bend_down_with_size(p: list[float], rows: int) -> None:
    curve = best_tokens(sorted(p, reverse=True), rows)[1:]
    gains = np.diff(curve)
    assert np.all(gains >= -1e-12) and np.all(np.diff(gains) <= 1e-9)


@given(rate_rows, st.integers(2, 40))
@settings(max_examples=40, deadline=None)
def test_every_prefix_is_the_smaller_tree(p: list[float], nodes: int) -> None:
    p = sorted(p, reverse=True)
    whole = positional_tree(p, nodes)
    for n in range(nodes + 1):
        assert set(positional_tree(p, n).paths) == set(whole.prefix(n).paths)
