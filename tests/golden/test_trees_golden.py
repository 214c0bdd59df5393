"""Trees, sizes and allocations against numbers computed independently (tests/golden/data/trees.json)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.control.allocate import (
    batch_prefix_allocation,
    batch_tree_allocation,
    cast_hong,
    collapse_under_load,
    ema_chain_controller,
)
from hedgerow.cost.experts import distinct_experts
from hedgerow.policy.price import cast_width
from hedgerow.policy.stop import Throughput, best_size, first_refusal
from hedgerow.testing import trees
from hedgerow.testing.toy import Law, markov
from hedgerow.topology.basic import expansion
from hedgerow.topology.expected import (
    chain_limit,
    chain_tokens,
    chains_limit,
    expansion_tokens,
    expected_tokens,
    k_ary_limit,
)
from hedgerow.topology.optimal import positional_tree, sequoia_choice, sequoia_dp

GOLDEN = json.loads((Path(__file__).parent / "data" / "trees.json").read_text(encoding="utf-8"))
VECTORS = GOLDEN["sequoia_dp"]["vectors"]
EXACT = 1e-9

NODE_COST: dict[str, Callable[[int], float]] = {          # ms of a step with n draft nodes
    "flat_then_linear_knee32": lambda n: 10 + 0.25 * max(0, n - 32),
    "linear_0.05": lambda n: 10 + 0.05 * n,
    "quadratic": lambda n: 10 + 0.02 * n + 0.002 * n * n,
    "tile16_step": lambda n: 10 + math.ceil((n + 1) / 16) - 1,
    "tile16_with_inversion": lambda n: 10 if n < 8 else 12 if n < 16 else 16 if n < 32 else 28 if n < 47 else 24,
}
ROW_COST: dict[str, Callable[[int], float]] = {           # ms of a step with t rows
    "smooth": lambda t: 10 + 0.25 * max(0, t - 6) ** 1.2,
    "pad4_step": lambda t: 10 + 2 * (math.ceil(t / 4) - 1),
    "jagged_cliff": lambda t: 10 if t <= 5 else 14 if t <= 8 else 14.2,
}


def name(case: dict[str, Any]) -> str:
    return "-".join(str(v) for v in list(case.values())[:3])


@pytest.fixture(scope="module")
def law() -> Law:
    drafter = GOLDEN["opt_tree_EA"]["drafter"]
    rows = [[x / 100 for x in row] for row in drafter["next_percent_by_last_token"]]
    return markov([x / 100 for x in drafter["root_percent"]], rows, drafter["max_depth"])


@pytest.mark.parametrize("case", GOLDEN["sequoia_dp"]["cases"], ids=name)
def test_sequoia_dp(case: dict[str, Any]) -> None:
    p = VECTORS[case["vector"]]
    f, shape = sequoia_dp(p, case["n_nodes_incl_root"], case["max_levels_incl_root"])
    assert f == pytest.approx(case["F"], abs=EXACT)
    assert expected_tokens(shape, p) == pytest.approx(f, abs=EXACT)
    if case.get("n_optimal_trees") == 1:
        golden = {tuple(r - 1 for r in path) for path in case["one_optimal_tree"] if path}
        assert set(shape.paths) == golden
    if p == sorted(p, reverse=True):
        levels = case["max_levels_incl_root"]
        heap = positional_tree(p, case["n_nodes_incl_root"] - 1, levels - 1 if levels else None)
        assert 1.0 + heap.survival.sum() == pytest.approx(case["F"], abs=EXACT)


def test_the_heap_is_not_enough_where_rates_rise() -> None:
    p = VECTORS["nonmonotone"]
    assert sequoia_dp(p, 8)[0] == pytest.approx(2.2175, abs=EXACT)
    assert 1.0 + positional_tree(p, 7).survival.sum() == pytest.approx(2.1225, abs=EXACT)


def test_sequoia_hardware_choice() -> None:
    golden = GOLDEN["sequoia_hardware_choice"]
    p, verify = VECTORS[golden["vector"]], {int(k): v for k, v in golden["verify_ms"].items()}
    choice = sequoia_choice(p, golden["draft_ms"], verify)
    assert (choice.rows, choice.levels) == (golden["best_n"], golden["best_levels"])
    assert choice.time_per_token == pytest.approx(golden["ms_per_token"], abs=EXACT)
    assert choice.tokens == pytest.approx(golden["F"], abs=EXACT)
    assert choice.speedup == pytest.approx(golden["speedup_vs_ar"], abs=EXACT)
    other, alt = sequoia_choice(p, golden["draft_ms"], verify, calls_at_one=1), golden["alt"]
    assert (other.rows, other.levels) == (alt["n"], alt["levels"])
    assert other.time_per_token == pytest.approx(alt["ms_per_token"], abs=EXACT)


@pytest.mark.parametrize("case", GOLDEN["expansion_vectors"], ids=name)
def test_expansion_vectors(case: dict[str, Any]) -> None:
    p, shape = VECTORS[case["vector"]], expansion(case["expansion"])
    assert shape.nodes + 1 == case["n_nodes_incl_root"]
    assert expansion_tokens(case["expansion"], p) == pytest.approx(case["E_tokens"], abs=EXACT)
    assert expected_tokens(shape, p) == pytest.approx(case["E_tokens"], abs=EXACT)


@pytest.mark.parametrize("case", GOLDEN["chain_leviathan"], ids=name)
def test_chain(case: dict[str, Any]) -> None:
    assert chain_tokens(case["alpha"], case["k"]) == pytest.approx(case["E_tokens"], abs=EXACT)


@pytest.mark.parametrize("case", GOLDEN["asymptotes"], ids=name)
def test_asymptotes(case: dict[str, Any]) -> None:
    p = VECTORS[case["vector"]]
    assert chain_limit(p) == pytest.approx(case["chain_limit"], abs=EXACT)
    assert chains_limit(p, 3) == pytest.approx(case["three_independent_chains_limit"], abs=EXACT)
    assert k_ary_limit(p, 3) == pytest.approx(case["three_ary_tree_limit"], abs=EXACT)


@pytest.mark.parametrize("case", GOLDEN["opt_tree_EA"]["cases"], ids=name)
def test_opt_tree(case: dict[str, Any], law: Law) -> None:
    n = case["n_nodes_excl_root"]
    for played in (trees.opt_tree(law, n), *(trees.best_first(law, n, batch=b) for b in (1, 4))):
        assert played.expected == pytest.approx(case["EA"], abs=EXACT)
        if case["unique"]:
            assert set(played.paths) == {tuple(path) for path in case["nodes_as_token_paths"]}


def test_opt_tree_delta(law: Law) -> None:
    golden = GOLDEN["opt_tree_delta"]
    gains = trees.opt_tree_gains(law, golden["n"], 4)
    assert gains == pytest.approx(golden["E_by_depth"], abs=EXACT)
    assert np.diff([0.0, *gains]) == pytest.approx(golden["increments"], abs=EXACT)
    for delta, depth in golden["depth_used_for_delta"].items():
        assert trees.opt_tree_depth(law, golden["n"], float(delta), 4) == depth


@pytest.mark.parametrize("case", GOLDEN["eagle2_beam_rerank"], ids=name)
def test_eagle2(case: dict[str, Any], law: Law) -> None:
    played = trees.eagle2(law, case["top_k"], case["depth_layers"], case["total_tokens"])
    assert (played.calls, len(played.growth)) == (case["draft_calls"], case["pool"])
    assert played.expected == pytest.approx(case["EA"], abs=EXACT)
    assert set(played.paths) == {tuple(path) for path in case["selected_token_paths"]}
    best = trees.opt_tree(law, case["total_tokens"])
    assert best.expected == pytest.approx(case["EA_optimal_same_m"], abs=EXACT)


@pytest.mark.parametrize("case", GOLDEN["talon"], ids=name)
def test_talon(case: dict[str, Any], law: Law) -> None:
    played = trees.talon(law, case["top_k"], case["mu"], case["N"])
    assert np.bincount(played.tree.depth)[1:].tolist() == case["layer_sizes"]
    assert played.expected == pytest.approx(case["EA"], abs=EXACT)
    assert set(played.paths) == {tuple(path) for path in case["nodes"]}


@pytest.mark.parametrize("case", GOLDEN["ddtree"]["cases"], ids=name)
def test_ddtree(case: dict[str, Any]) -> None:
    ranks = trees.ddtree(GOLDEN["ddtree"]["marginals_topk"], case["budget"])
    assert sum(map(math.exp, ranks.score)) == pytest.approx(case["Phi"], abs=EXACT)
    if "ranks" in case:
        assert ranks.paths == [tuple(path) for path in case["ranks"]]


@pytest.mark.parametrize("case", GOLDEN["caddtree_stop"]["cases"], ids=name)
def test_caddtree_stop(case: dict[str, Any]) -> None:
    verify = [NODE_COST[case["cost"]](n) for n in range(341)]
    got = trees.caddtree(GOLDEN["caddtree_stop"]["marginals_topk"], verify, case["Cd"])
    assert (got["greedy"], got["scan"]) == (case["greedy_stop_n"], case["exhaustive_n"])
    assert got["theta_greedy"] == pytest.approx(case["theta_greedy"], abs=EXACT)
    assert got["theta_scan"] == pytest.approx(case["theta_exhaustive"], abs=EXACT)
    loss = 100 * (1 - got["theta_greedy"] / got["theta_scan"])
    assert loss == pytest.approx(case["loss_of_greedy_percent"], abs=1e-6)


def test_a_greedy_stop_is_exact_on_convex_costs_and_only_there() -> None:
    golden = GOLDEN["unimodality_property_test"]
    rng = np.random.default_rng(golden["seed"])
    missed = {"convex": 0, "step": 0}
    trials = 300
    for _ in range(trials):
        survival = np.sort(rng.random(60))[::-1] ** rng.uniform(1.0, 3.0)
        steps = np.sort(rng.random(62) * rng.uniform(0.01, 0.5))
        convex = 10.0 + np.cumsum(steps)
        tiled = 10.0 + rng.uniform(0.5, 2.0) * np.floor(np.arange(62) / 16)
        for kind, cost in (("convex", convex), ("step", tiled)):
            stop = Throughput(lambda rows, cost=cost: float(cost[rows - 1]), 1.0, greedy=True)
            greedy = first_refusal(stop, survival.tolist())
            theta = (1 + survival[:greedy].sum()) / (1.0 + cost[greedy])
            best = best_size(survival.tolist(), stop.step_s, 1.0)[1]
            missed[kind] += theta < best * (1 - 1e-9)
    assert missed["convex"] == golden["violations_convex"] == 0
    assert missed["step"] > trials / 4 and golden["violations_step_cost"] > golden["trials"] / 2


@pytest.mark.parametrize("case", GOLDEN["cast_lee_eo_width"]["cases"], ids=name)
def test_cast_width(case: dict[str, Any]) -> None:
    golden = GOLDEN["cast_lee_eo_width"]
    width = cast_width(
        golden["mass_curve_gsm8k_qwen3_8b_dflash_b16"], case["packed_tokens"], case["ms"], sizes=golden["grid"]
    )
    assert width.base == pytest.approx(case["c0"], abs=EXACT)
    assert width.slope == pytest.approx(case["c1"], abs=EXACT)
    assert (width.stop, width.nodes) == (case["rule_stops_at_N_draft0"], case["deployed_grid_width"])


@pytest.mark.parametrize("case", GOLDEN["batch_prefix_allocation"]["cases"], ids=name)
def test_batch_prefix_allocation(case: dict[str, Any]) -> None:
    survival, cost = GOLDEN["batch_prefix_allocation"]["survival_per_request"], ROW_COST[case["cost"]]
    scan = batch_prefix_allocation(survival, cost)
    assert (scan.nodes, list(scan.lengths)) == (case["scan_budget"], case["lengths"])
    assert scan.throughput == pytest.approx(case["throughput_scan"], abs=EXACT)
    early = batch_prefix_allocation(survival, cost, early_stop=True)
    assert early.nodes == case["early_stop_budget"]
    assert early.throughput == pytest.approx(case["throughput_early"], abs=EXACT)


@pytest.mark.parametrize("case", GOLDEN["batch_tree_allocation"]["cases"], ids=name)
def test_batch_tree_allocation(case: dict[str, Any]) -> None:
    golden = GOLDEN["batch_tree_allocation"]
    total, lengths = batch_tree_allocation([golden["p_request0"], golden["p_request1"]], case["total_draft_nodes"])
    assert total == pytest.approx(case["sum_F"], abs=EXACT)
    assert list(lengths) == case["nodes_per_request"]


@pytest.mark.parametrize("case", GOLDEN["moe_distinct_experts"]["cases"], ids=name)
def test_distinct_experts(case: dict[str, Any]) -> None:
    expected = distinct_experts(case["E"], case["k"], case["N_tokens"])
    assert expected == pytest.approx(case["expected_distinct"], abs=EXACT)


def test_cast_hong_keeps_top_k_on_an_affine_cost() -> None:
    golden = GOLDEN["cast_hong_linear_special_case"]
    gain = np.cumsum(golden["sorted_values"]).tolist()
    cost = [golden["lambda"] * k + 3.0 for k in range(1, len(gain) + 1)]
    assert cast_hong(gain, cost, golden["threshold_C"]) == golden["kept"]


def test_ema_chain_controller() -> None:
    golden = GOLDEN["ema_chain_controller"]
    steps, average = ema_chain_controller(
        [2.8] * 30 + [0.4] * 30, golden["candidates"], golden["start_steps"], golden["ema_alpha"],
        golden["update_interval"], golden["warmup_batches"], golden["down_hysteresis"], golden["up_hysteresis"],
    )
    assert steps == golden["steps_after_each_batch"]
    assert average == pytest.approx(golden["final_ema"], abs=EXACT)


@pytest.mark.parametrize("case", GOLDEN["collapse_under_load"]["cases"], ids=name)
def test_collapse_under_load(case: dict[str, Any]) -> None:
    got = collapse_under_load(
        VECTORS[case["vector"]], case["batch"], lambda rows: max(10.0, 10.0 * rows / 200.0) + 0.002 * rows
    )
    assert got.rows == case["best_nodes_incl_root"]
    assert list(got.level_sizes) == case["level_sizes"]
    assert got.is_chain == case["is_chain"]
    for ours, golden in (
        (got.tokens, "F"), (got.throughput, "tokens_per_ms_batch"), (got.speedup, "speedup_vs_no_speculation"),
        (got.chain_speedup, "best_chain_speedup"), (got.fixed_speedup, "fixed64_speedup"),
    ):
        assert ours == pytest.approx(case[golden], abs=EXACT)
