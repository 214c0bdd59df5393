"""Fixed shapes: their sizes, their order, what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.core.errors import UnknownName, UsageError
from hedgerow.core.shape import TreeShape
from hedgerow.topology.basic import chain, chains, expansion, k_ary
from hedgerow.topology.delayed import delayed, delayed_tokens
from hedgerow.topology.equal_growth import choose_growth, equal_growth
from hedgerow.topology.expected import (
    chain_limit,
    chain_speedup,
    chain_tokens,
    chains_limit,
    expansion_tokens,
    expected_tokens,
    k_ary_limit,
    rates,
)
from hedgerow.topology.optimal import best_tokens, positional_tree, sequoia_choice, sequoia_dp, sequoia_values
from hedgerow.topology.sparse import (
    EAGLE1,
    FALCON_LEVELS,
    draft_calls,
    eagle1_tree,
    falcon_tree,
    fastest_prefix,
    graft_tree,
    hydra_tree,
    level_tree,
    medusa_accuracy,
    medusa_tree,
    recycling_tree,
)

GEOM = [0.6, 0.24, 0.096, 0.0384]


def is_valid(shape: TreeShape) -> bool:
    """Unique paths, parents and earlier siblings before, survival falling where it says anything."""
    seen: set[tuple[int, ...]] = set()
    for path in shape.paths:
        if path in seen or (path[:-1] and path[:-1] not in seen):
            return False
        if path[-1] > 0 and (*path[:-1], path[-1] - 1) not in seen:
            return False
        seen.add(path)
    return True


def test_basic_shapes() -> None:
    assert chain(0).nodes == 0 and chain(4).paths == ((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0))
    assert chains(3, 2).paths == ((0,), (1,), (2,), (0, 0), (1, 0), (2, 0)) and chains(3, 0).nodes == 0
    assert k_ary(3, 2).level_sizes == (3, 9) and expansion([]).nodes == 0
    assert expansion([1, 1, 3, 1, 1, 1, 1, 1]).nodes + 1 == 21
    with pytest.raises(UsageError, match="expansion vector"):
        expansion([2, 0])


def test_expected_tokens_of_tables_by_depth() -> None:
    table = [[0.6, 0.2], [0.5]]
    assert list(rates(table, 1)) == [0.6, 0.2] and list(rates(table, 3)) == []
    shape = expansion([2, 2, 1])                              # it has ranks and depths the table has not
    assert expected_tokens(shape, table) == pytest.approx(1 + 0.8 + 0.8 * 0.5)
    assert expansion_tokens([2, 2, 1], table) == pytest.approx(expected_tokens(shape, table))
    assert expected_tokens(chain(0), GEOM) == 1.0


def test_closed_forms() -> None:
    assert chain_tokens(1.0, 5) == 6.0
    assert chain_tokens(0.7, 3) == pytest.approx(expected_tokens(chain(3), [0.7]))
    assert chain_speedup(0.8, 4, 0.05) == pytest.approx(chain_tokens(0.8, 4) / 1.2)
    assert chain_limit(GEOM) == pytest.approx(chain_tokens(0.6, 200))
    assert chains_limit(GEOM, 2) == pytest.approx(1 + sum(0.84 * 0.6**d for d in range(200)))
    assert k_ary_limit([0.5, 0.5], 2) == float("inf")
    assert k_ary_limit(GEOM, 2) == pytest.approx(sum(0.84**d for d in range(300)))


@pytest.mark.parametrize("p", [[0.5, -0.1], [0.7, 0.4], [[0.5], [0.9, 0.2]]])
def test_rates_that_are_no_probabilities_are_refused(p: list) -> None:
    with pytest.raises(UsageError, match="acceptance rates"):
        positional_tree(p, 3)


def test_sequoia_limits() -> None:
    assert sequoia_dp(GEOM, 1)[0] == 1.0 and sequoia_dp(GEOM, 1)[1].nodes == 0
    assert sequoia_dp(GEOM, 9, 1)[1].nodes == 0
    f, shape = sequoia_dp([0.5], 9, 3)                        # one child a node and two edges: no room for more
    assert shape.paths == ((0,), (0, 0)) and f == pytest.approx(1.75)
    assert sequoia_dp([], 4)[0] == 1.0
    assert sequoia_dp([0.0, 0.5], 3)[1].level_sizes == (2,)    # a rank worth nothing opens the next
    for rows, levels in ((0, None), (3, 0)):
        with pytest.raises(UsageError, match="1 or more"):
            sequoia_dp(GEOM, rows, levels)


def test_sequoia_with_rates_by_depth() -> None:
    table = [[0.3, 0.3], [0.9, 0.05], [0.1]]
    f, shape = sequoia_dp(table, 6)
    assert f == pytest.approx(expected_tokens(shape, table))
    heap = positional_tree(table, 5)
    assert f == pytest.approx(1 + heap.survival.sum())        # the rates fall with the rank: the heap is exact too
    assert shape.level_sizes == (2, 2, 1)
    values = sequoia_values(table, 6, 4)
    assert values[4][6] == pytest.approx(f) and values[0][1] == -np.inf
    choice = sequoia_choice(table, 0.0, {1: 1.0, 6: 1.0}, max_levels=4)
    assert choice.tokens == pytest.approx(f) and choice.levels == 4


def test_best_tokens_is_the_curve_of_the_programme() -> None:
    curve = best_tokens([0.3, 0.35, 0.05, 0.2], 10)
    assert curve[1:] == pytest.approx([sequoia_dp([0.3, 0.35, 0.05, 0.2], n)[0] for n in range(1, 11)])
    assert np.all(np.diff(curve) >= 0)


def test_choice_needs_the_time_of_plain_decoding() -> None:
    with pytest.raises(UsageError, match="1 row"):
        sequoia_choice(GEOM, 0.1, {8: 1.0})


def test_medusa_from_measured_accuracies() -> None:
    for model in ("7b", "13b", "33b"):
        acc = medusa_accuracy(model)
        assert len(acc) == 5 and all(len(row) == 5 and row == sorted(row, reverse=True) for row in acc)
        shape = medusa_tree(acc)
        assert shape.nodes == 63 and is_valid(shape) and shape.max_depth <= 5
        assert shape.level_sizes[0] == 5 and shape.level_sizes == {
            "7b": (5, 22, 29, 7), "13b": (5, 22, 28, 8), "33b": (5, 20, 29, 9)
        }[model]
        f, _ = sequoia_dp(acc, 64)
        assert f == pytest.approx(1 + shape.survival.sum())    # greedy is optimal: accuracies fall with the rank
    assert medusa_tree(acc, 63, max_depth=2, max_child=3).level_sizes == (3, 9)
    with pytest.raises(UnknownName, match="70b"):
        medusa_accuracy("70b")


def test_shipped_lists() -> None:
    shape = eagle1_tree()
    assert shape.nodes == 25 == len(EAGLE1.split()) and is_valid(shape) and draft_calls(shape) == 5
    recycle = recycling_tree()
    assert recycle.level_sizes == (8, 21, 25, 15, 8, 3) and recycle.nodes == 80 and is_valid(recycle)
    assert max(int(r) for r in recycle.rank) < 8


def test_falcon_blocks() -> None:
    p = [[0.5 * 0.6**r for r in range(20)] if d % 2 == 0 else [0.35 * 0.7**r for r in range(20)] for d in range(8)]
    p = [[x / max(1.0, sum(row)) for x in row] for row in p]
    shape = falcon_tree(p)
    assert shape.level_sizes == FALCON_LEVELS and shape.nodes == 116 and is_valid(shape)
    assert draft_calls(shape, block=2) == 4 and draft_calls(chain(5), block=2) == 3
    with pytest.raises(UsageError, match="twice"):            # two shipped lists repeat paths
        TreeShape.from_paths([(0,), (0, 0), (0,)])
    with pytest.raises(UsageError, match="level 2 cannot hold 3"):
        level_tree([1, 3], [0.5, 0.2])


def test_hydra_grows_by_what_was_accepted() -> None:
    steps = [(0, 0, 0)] * 5 + [(0, 2)] * 4 + [(3,)] * 2 + [()]
    shape = hydra_tree(steps, nodes=100)
    assert shape.paths[:2] == ((0,), (0, 0))
    assert set(shape.paths) == {(0,), (0, 0), (0, 0, 0), (0, 1), (0, 2), (1,), (2,), (3,)}   # earlier siblings too
    value = dict(zip(shape.paths, shape.survival, strict=True))
    assert value[(0,)] == pytest.approx(9 / 12) and value[(0, 2)] == pytest.approx(4 / 12) and value[(1,)] == 0.0
    assert hydra_tree([], 4).nodes == 0 and hydra_tree(steps, 3).nodes == 3


def test_fastest_prefix_times_every_size() -> None:
    shape = positional_tree(GEOM, 40)
    n, rate = fastest_prefix(shape, lambda rows: 1.0 if rows <= 8 else 2.0)
    assert n == 7 and rate == pytest.approx(1 + shape.survival[:7].sum())
    assert fastest_prefix(shape, lambda rows: float(rows))[0] == 0
    fewer, _ = fastest_prefix(shape, lambda rows: 1.0 if rows <= 8 else 2.0, draft_call_s=0.4)
    assert fewer > 0 and int(shape.depth[:fewer].max()) < int(shape.depth[:7].max())


def test_graft_template() -> None:
    for nodes in (1, 5, 20, 36, 52, 200):
        shape = graft_tree(nodes)
        assert is_valid(shape) and shape.nodes <= nodes and max(shape.rank.tolist()) < 9
    sizes = graft_tree(52).level_sizes
    assert sum(sizes) == 52 and sizes[0] == 9 and list(sizes[1:]) == sorted(sizes[1:], reverse=True)
    assert tuple([0] * len(sizes)) in graft_tree(52).paths     # the rank-0 chain reaches the bottom
    assert graft_tree(60, max_depth=1).level_sizes == (9,)
    assert graft_tree(3).nodes == 3


def test_equal_growth() -> None:
    shape = equal_growth(GEOM, width=3, steps=5)
    assert shape.nodes == 15 and shape.max_depth == 5 and is_valid(shape)
    assert equal_growth(GEOM, 1, 4).paths == chain(4).paths
    assert expected_tokens(shape, GEOM) == pytest.approx(1 + shape.survival.sum())
    with pytest.raises(UsageError, match="open nodes"):
        equal_growth([0.5], width=2, steps=2)


def test_choose_growth() -> None:
    best = choose_growth(
        lambda w, d, r: expected_tokens(equal_growth(GEOM, w, d).prefix(r - 1), GEOM),
        lambda w: 0.05, lambda r: 1.0 if r <= 8 else 3.0, widths=[1, 2, 3], depths=[2, 4, 6], rows=[8, 16],
    )
    assert best.rows == 8
    every = [
        expected_tokens(equal_growth(GEOM, w, d).prefix(r - 1), GEOM) / (d * 0.05 + (1.0 if r <= 8 else 3.0))
        for w in (1, 2, 3) for d in (2, 4, 6) for r in (8, 16)
    ]
    assert best.speedup == pytest.approx(max(every))
    with pytest.raises(UsageError, match="no setting"):
        choose_growth(lambda w, d, r: 1.0, lambda w: 1.0, lambda r: 1.0, [], [1], [1])


def test_delayed() -> None:
    assert delayed(2, 3, 2).level_sizes == (1, 1, 3, 3) and delayed(3, 4, 0).level_sizes == (1, 1, 1)
    assert delayed(0, 3, 2).paths == chains(3, 2).paths
    assert delayed_tokens(2, 3, 2, GEOM) == pytest.approx(expected_tokens(delayed(2, 3, 2), GEOM))
    alpha = 0.6
    trunk = sum(alpha**i for i in range(3))
    assert delayed_tokens(2, 3, 1, GEOM) == pytest.approx(trunk + alpha**2 * sum(GEOM[:3]))
    for bad in ((-1, 1, 1), (1, 0, 1), (1, 1, -1)):
        with pytest.raises(UsageError, match="L1"):
            delayed(*bad)
