"""Allocation over a batch and older chain controllers, beyond the golden cases."""

from __future__ import annotations

import pytest

from hedgerow.control.allocate import (
    EmaChain,
    batch_prefix_allocation,
    batch_tree_allocation,
    collapse_under_load,
    ema_chain_controller,
)
from hedgerow.core.errors import UsageError
from hedgerow.cost.experts import distinct_experts, marginal_experts
from hedgerow.topology.optimal import best_tokens

GEOM = [0.6, 0.24, 0.096, 0.0384]


def test_only_bucket_edges_and_the_end_are_tried() -> None:
    survival = [[0.9, 0.8], [0.7]]
    every = batch_prefix_allocation(survival, lambda rows: 1.0 + 0.2 * rows)
    edges = batch_prefix_allocation(survival, lambda rows: 1.0 + 0.2 * rows, edges=(4, 16))
    assert every.nodes == 3 and edges.nodes == 3
    cliff = batch_prefix_allocation(survival, lambda rows: 1.0 if rows <= 4 else 9.0, edges=(4,))
    assert cliff.nodes == 2 and cliff.lengths == (2, 0)
    assert batch_prefix_allocation([[], []], lambda rows: 1.0).lengths == (0, 0)


def test_weights_and_order() -> None:
    survival = [[0.5], [0.5]]
    one_more = batch_prefix_allocation(survival, lambda rows: 1.0 if rows <= 3 else 9.0, weights=(1.0, 2.0))
    assert one_more.lengths == (0, 1)
    tie = batch_prefix_allocation(survival, lambda rows: 1.0 if rows <= 3 else 9.0)
    assert tie.lengths == (1, 0)
    with pytest.raises(UsageError, match="request 1 rise"):
        batch_prefix_allocation([[0.5], [0.2, 0.4]], lambda rows: 1.0)


def test_tree_allocation_is_exact_where_rates_rise_too() -> None:
    p, q = [0.3, 0.35, 0.05, 0.2], [0.5, 0.1]
    for nodes in (0, 1, 5, 9):
        total, lengths = batch_tree_allocation([p, q], nodes)
        curves = [best_tokens(rates, nodes + 1)[1:] for rates in (p, q)]
        assert total == pytest.approx(max(curves[0][n] + curves[1][nodes - n] for n in range(nodes + 1)))
        assert sum(lengths) == nodes


def test_collapse_is_monotone_in_the_batch() -> None:
    batches = (1, 2, 4, 8, 16, 32, 64, 128)
    sizes = [collapse_under_load(GEOM, b, lambda rows: max(1.0, rows / 100)).rows for b in batches]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 64 and sizes[-1] == 1
    rising = collapse_under_load([0.3, 0.35], 1, lambda rows: 1.0 if rows <= 3 else 9.0)
    assert rising.rows == 3 and rising.tokens == pytest.approx(1.65) and not rising.is_chain
    assert collapse_under_load(GEOM, 1000, lambda rows: float(rows)).level_sizes == (1,)


def test_ema_chain_moves_down_to_nothing_and_probes_up_again() -> None:
    steps, _ = ema_chain_controller([0.0] * 40, candidates=(0, 1, 3), start=3, warmup=0, down=0.0)
    assert 0 in steps and steps[0] == 3
    after_zero = steps[steps.index(0) :]
    assert 1 in after_zero                                    # a probe
    up, _ = ema_chain_controller([9.0] * 40, candidates=(0, 1, 3), start=1, warmup=0)
    assert up[-1] == 3
    stuck, _ = ema_chain_controller([9.0] * 20, candidates=(0,), start=0, warmup=0)
    assert set(stuck) == {0}
    with pytest.raises(UsageError, match="must rise"):
        EmaChain((1, 3), start=5)
    with pytest.raises(UsageError, match="must rise"):
        EmaChain((3, 1), start=3)


def test_experts() -> None:
    published = {1: 8.0, 2: 15.5, 4: 29.1, 8: 51.6, 16: 82.4, 32: 111.8, 64: 125.9}
    for rows, awake in published.items():
        assert distinct_experts(128, 8, rows) == pytest.approx(awake, abs=0.06)
    costs = [marginal_experts(128, 8, rows) for rows in range(0, 100)]
    assert costs[0] == pytest.approx(8.0) and costs == sorted(costs, reverse=True) and costs[-1] < 0.02
    assert distinct_experts(4, 4, 1) == 4.0
