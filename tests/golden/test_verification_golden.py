"""Every figure of data/verification.json, reproduced by the public parts: acceptance, optima, tree values, theory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.core.parts import Rule
from hedgerow.core.select import top_ids
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.policy.sampled import Rollouts
from hedgerow.testing.law import Edited, Grown, Request, separate, step_law, trees
from hedgerow.verify import lossy, luce, offline, selection, theory, transport
from hedgerow.verify.joint import Block, Traversal, block_survival, token_survival
from hedgerow.verify.match import Match
from hedgerow.verify.onenode import OneNode, acceptance, draft_group, judge_group, one_node
from hedgerow.verify.rejection import Rejection, acceptance_several, acceptance_with, acceptance_without
from tests.law.wrong import PortOfTraversal

GOLDEN = json.loads((Path(__file__).parent / "data" / "verification.json").read_text(encoding="utf-8"))
MISC = GOLDEN["misc"]
IID, WITHOUT = Selection.IID, Selection.WITHOUT_REPLACEMENT
DRAFTS = {
    "iid": IID, "without_replacement": WITHOUT, "greedy": Selection.GREEDY_PLUS_ONE, "topk": Selection.TOP_K,
    "spechub": Selection.HUB,
}


def number(value: Any) -> float:
    """A figure: a fraction, a float, or a pair of both."""
    return float(Fraction(value[0] if isinstance(value, list) else value))


def row(values: list[Any]) -> np.ndarray:
    return np.array([float(Fraction(v)) for v in values])


def close(a: float, b: float, tolerance: float = 1e-9) -> bool:
    return math.isclose(a, b, rel_tol=0.0, abs_tol=tolerance)


def law_is(found: OneNode, p: np.ndarray) -> bool:
    return float(np.abs(found.law - p).max()) <= 1e-12


# ------------------------------------------------------------------------------------------------ one node

def single(rule: str) -> list[Any]:
    """Golden rows of one rule, as test parameters."""
    rows = [r for r in GOLDEN["single_step"] if r["rule"] == rule]
    return [pytest.param(r, id=f"{r['case']}-{r['draft']}-{r['K']}") for r in rows]


@pytest.mark.parametrize("g", [*single("rrs_with"), *single("rrs_without")])
def test_recursive_rejection(g: dict[str, Any]) -> None:
    p, q, k = row(g["p"]), row(g["q"]), g["K"]
    found = one_node(Rejection(), p, q, k, DRAFTS[g["draft"]])
    assert law_is(found, p)
    assert close(found.acceptance, number(g["acceptance_exact"]))
    if g["rule"] == "rrs_with":
        assert close(acceptance_with(p, q, k), number(g["checks"]["product_formula"]))
    else:
        assert close(acceptance_without(p, q, k), number(g["acceptance_exact"]))


@pytest.mark.parametrize("g", [*single("rrs_with"), *single("rrs_without")])
def test_traversal_of_one_level_is_recursive_rejection(g: dict[str, Any]) -> None:
    p, q, k = row(g["p"]), row(g["q"]), g["K"]
    found = one_node(Traversal(), p, q, k, DRAFTS[g["draft"]])
    assert law_is(found, p) and close(found.acceptance, number(g["acceptance_exact"]))


@pytest.mark.parametrize("g", single("kseq"))
def test_kseq(g: dict[str, Any]) -> None:
    p, q, k, checks = row(g["p"]), row(g["q"]), g["K"], g["checks"]
    plan = transport.kseq(p, q, k)
    assert close(plan.acceptance, g["acceptance"])
    if not np.array_equal(p, q):           # there every rho near 1 accepts always
        assert close(transport.kseq_rho(p, q, k), checks["rho"]) and close(plan.beta, checks["beta"])
    found = one_node(transport.KSeq(), p, q, k, IID)
    assert law_is(found, p) and close(found.acceptance, checks["closed_form_pacc"])
    assert plan.acceptance >= (1 - (1 - 1 / k) ** k) * offline.optimum_iid(p, q, k) - 1e-12


@pytest.mark.parametrize("g", single("target_only"))
def test_match(g: dict[str, Any]) -> None:
    p, q = row(g["p"]), row(g["q"])
    found = one_node(Match(), p, q, g["K"], DRAFTS[g["draft"]])
    assert law_is(found, p) and close(found.acceptance, number(g["acceptance_exact"]))


@pytest.mark.parametrize("g", single("spechub"))
def test_spechub_reaches_the_optimum_of_its_pairs(g: dict[str, Any]) -> None:
    p, q = row(g["p"]), row(g["q"])
    found = one_node(transport.SpecHub(), p, q, 2, Selection.HUB)
    assert law_is(found, p) and close(found.acceptance, number(g["acceptance_exact"]))
    assert close(found.acceptance, offline.optimum_subsets(p, offline.drafted_sets(q, 2, Selection.HUB)))


@pytest.mark.parametrize("g", single("ot_optimum"))
def test_optimum(g: dict[str, Any]) -> None:
    p, q, k, how = row(g["p"]), row(g["q"]), g["K"], DRAFTS[g["draft"]]
    want = number(g["acceptance_exact"])
    sets = offline.drafted_sets(q, k, how)
    if how is Selection.TOP_K:             # the golden fills up with impossible tokens, `pick` does not
        sets = {frozenset(top_ids(q, k).tolist()): 1.0}
    assert close(sum(sets.values()), 1.0)
    assert close(offline.optimum_subsets(p, sets), want)
    assert close(offline.optimum_lp(p, sets), want)
    closed: dict[Selection, Callable[[], float]] = {
        IID: lambda: offline.optimum_iid(p, q, k),
        WITHOUT: lambda: offline.optimum_without(p, q, k),
        Selection.GREEDY_PLUS_ONE: lambda: transport.acceptance_greedy(p, q, k),
        Selection.TOP_K: lambda: offline.optimum_fixed(p, next(iter(sets))),
        Selection.HUB: lambda: acceptance(transport.SpecHub(), p, q, k, how),
    }
    assert close(closed[how](), want)


@pytest.mark.parametrize("g", [g for g in single("ot_optimum") if "greedy" in g.id])
def test_greedy_plus_one_reaches_its_optimum(g: dict[str, Any]) -> None:
    p, q = row(g["p"]), row(g["q"])
    found = one_node(transport.GreedyPlusOne(), p, q, g["K"], Selection.GREEDY_PLUS_ONE)
    assert law_is(found, p) and close(found.acceptance, number(g["acceptance_exact"]))


@pytest.mark.parametrize("g", [g for g in single("ot_optimum") if "-iid-" in g.id and g.id[-1] in "12"])
def test_canonical_decomposition_reaches_the_optimum(g: dict[str, Any]) -> None:
    p, q = row(g["p"]), row(g["q"])
    found = one_node(selection.Canonical(), p, q, g["K"], IID)
    assert law_is(found, p) and close(found.acceptance, number(g["acceptance_exact"]))


@pytest.mark.parametrize("g", MISC["luce_two_step"], ids=lambda g: f"{g['case']}-{g['draft']}-{g['K']}")
def test_global_resolution_reaches_the_optimum(g: dict[str, Any]) -> None:
    case = next(r for r in GOLDEN["single_step"] if r["case"] == g["case"])
    p, q = row(case["p"]), row(case["q"])
    law = luce.tuple_law(q, g["K"], IID if g["draft"] == "iid" else WITHOUT)
    s = luce.luce_marginal(law, *luce.resolve(p, law))
    assert close(float(s.sum()), 1.0, 1e-12)
    assert close(float(np.minimum(p, s).sum()), g["alpha_star"])


def test_global_resolution_is_exact_and_accepts_what_its_choice_allows() -> None:
    case = next(r for r in GOLDEN["single_step"] if r["case"] == "rev4")
    p, q = row(case["p"]), row(case["q"])
    for how, k in ((IID, 2), (WITHOUT, 2)):
        found = one_node(selection.GlobalResolution(), p, q, k, how)
        assert law_is(found, p)
        key = ("rev4", k, how.label[:3])
        want = next(g for g in MISC["luce_two_step"] if (g["case"], g["K"], g["draft"][:3]) == key)
        assert close(found.acceptance, want["alpha_star"])


def test_luce_marginal() -> None:
    g = MISC["luce_integral_identity"]
    law = luce.tuple_law(np.array(g["q"]), g["n"], IID)
    s = luce.luce_marginal(law, np.log(np.array(g["w"])), np.zeros(5, np.bool_))
    assert np.abs(s - g["enum"]).max() < 1e-12 and np.abs(s - g["integral"]).max() < 1e-12


@pytest.mark.parametrize("g", MISC["vocab64"]["rows"], ids=lambda g: f"K{g['K']}")
def test_optima_over_64_tokens(g: dict[str, Any]) -> None:
    p = np.array([1 / (i + 1) for i in range(64)])
    q = np.array([1 / ((7 * i + 3) % 64 + 1) for i in range(64)])
    assert close(offline.optimum_iid(p, q, g["K"]), g["alpha_iid"])
    assert close(offline.optimum_without(p, q, g["K"]), g["alpha_without"])
    assert close(acceptance_with(p, q, g["K"]), g["rrs_with"])
    assert close(transport.acceptance_greedy(p, q, g["K"]), g["alpha_greedy"])
    if g["K"] == 2:
        assert close(offline.optimum_without(p, q, 2), MISC["vocab64"]["alpha_without_K2_closed_form"], 1e-12)


# ------------------------------------------------------------------------------------------------ what is biased

def biased(name: str, found: OneNode) -> None:
    """The law is the golden's wrong one, and as far from p as it says."""
    g = MISC[name]
    assert np.abs(found.law - row(g["output"])).max() < 1e-12
    if "p" in g:
        assert close(float(np.abs(found.law - row(g["p"])).sum() / 2), number(g["tv"]))


def relabelled(drafted: list[tuple[float, TokenTree]], how: Selection, split: bool = False) -> list[Any]:
    """The same groups said to be of another selection; `split` lists repeated draws as siblings of their own."""
    out = []
    for weight, tree in drafted:
        tokens = np.repeat(tree.tokens, tree.mult) if split else tree.tokens
        out.append((weight, TokenTree.of(tokens, [ROOT] * len(tokens), selection=how)))
    return out


def named(case: str) -> tuple[np.ndarray, np.ndarray]:
    g = next(r for r in GOLDEN["single_step"] if r["case"] == case)
    return row(g["p"]), row(g["q"])


def test_wrong_ports_of_rejection_have_the_known_wrong_laws() -> None:
    p, q = named("rev4")
    with_draws, without_draws = draft_group(q, 2, IID), draft_group(q, 2, WITHOUT)
    rule = Rejection()
    biased("bias_with_rule_on_wo_draws", judge_group(rule, p, q, relabelled(without_draws, IID)))
    biased("bias_wo_rule_on_iid_draws", judge_group(rule, p, q, relabelled(with_draws, WITHOUT, split=True)))
    biased("bias_dropping_duplicate_draws_then_rrs_with", judge_group(rule, p, q, relabelled(with_draws, IID)))
    found = judge_group(rule, p, q, relabelled(with_draws, WITHOUT))
    assert law_is(found, p), "dropping repeats is exact under the rule without replacement"
    biased("bias_dropping_duplicate_draws_then_rrs_without", found)


def test_identity_pruning_is_biased_under_rejection_and_harmless_under_match() -> None:
    p, q = named("near5")
    pruned = []
    for weight, tree in draft_group(q, 2, WITHOUT):
        kept = [int(t) for t in tree.tokens if q[t] >= 0.25]
        pruned.append((weight, TokenTree.of(kept, [ROOT] * len(kept), selection=WITHOUT)))
    biased("bias_identity_pruning", judge_group(Rejection(), p, q, pruned))
    found = judge_group(Match(), p, q, pruned)
    assert law_is(found, p) and close(found.acceptance, number(MISC["identity_pruned_target_only"]["acceptance"]))


def test_a_second_sibling_that_depends_on_the_first_is_exact() -> None:
    p, q = named("near5")
    drafted = []
    for weight, tree in draft_group(q, 1, WITHOUT):
        first = int(tree.tokens[0])
        if q[first] >= 0.25:
            drafted.append((weight, tree))
            continue
        rest = q.copy()
        rest[first] = 0.0
        for second in np.flatnonzero(rest):
            pair = TokenTree.of([first, second], [ROOT, ROOT], selection=WITHOUT)
            drafted.append((weight * float(rest[second] / rest.sum()), pair))
    found = judge_group(Rejection(), p, q, drafted)
    assert law_is(found, p) and close(found.acceptance, number(MISC["predictable_second_sibling"]["acceptance"]))


def test_wrong_draft_laws_have_the_known_wrong_laws() -> None:
    p, _ = named("near5")
    g = MISC["bias_wrong_temperature_q"]
    drawn, shown = row(g["sampled_from"]), row(g["verified_with"])
    found = judge_group(Rejection(), p, drawn, draft_group(drawn, 1, IID), verify_q=shown)
    biased("bias_wrong_temperature_q", found)
    assert close(float(np.abs(found.law - p).sum() / 2), g["tv"])
    flat = row(MISC["bias_argmax_draft_with_q"]["q"])
    found = judge_group(Rejection(), p, flat, relabelled(draft_group(flat, 1, Selection.TOP_K), IID))
    biased("bias_argmax_draft_with_q", found)


def test_a_duplicate_sibling_counts_once_in_the_cumulated_coin() -> None:
    p, q = named("near5")
    drafts = MISC["bias_duplicate_siblings_cumulative_coin"]["drafts"]
    tree = TokenTree.of(drafts, [ROOT] * len(drafts))
    assert law_is(judge_group(lossy.Thresholds(), p, q, [(1.0, tree)]), p)


def test_two_draws_without_replacement_in_closed_form() -> None:
    assert close(acceptance_without(*named("rev4"), 2), number(MISC["rrs_without_K2_closed_form_rev4"]))


def test_several_drafters() -> None:
    p, q = named("near5")
    flat = np.full(5, 0.2)
    assert close(acceptance_several(p, [q, flat]), number(MISC["heterogeneous_q1_then_q2"]))
    assert close(acceptance_several(p, [flat, q]), number(MISC["heterogeneous_q2_then_q1"]))


# ------------------------------------------------------------------------------------------------ sequences

@cache
def model(name: str) -> tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]:
    """Target and draft law of a golden model."""
    def table(rows: dict[str, list[str]]) -> Callable[..., np.ndarray]:
        laws = {tuple(int(t) for t in k.split(",")) if k else (): row(v) for k, v in rows.items()}
        return lambda path: laws[tuple(path)]

    g = GOLDEN["models"][name]
    return table(g["target"]), table(g["draft"])


SHAPES: dict[str, Callable[[tuple[int, ...]], int]] = {
    "k2_d1": lambda path: 2 * (not path),
    "k2_d2": lambda path: 2 * (len(path) < 2),
    "k2then1_d2": lambda path: (2, 1, 0)[len(path)],
    "delayed_1then2_d2": lambda path: (1, 2, 0)[len(path)],
    "adaptive_by_token_d2": lambda path: 2 * (path in ((), (0,))),
}


def sequences(kind: str) -> list[Any]:
    return [
        pytest.param(g, id=f"{g['model']}-{g.get('shape', g.get('gamma'))}-{'iid' if g.get('replacement') else 'wo'}")
        for g in GOLDEN["sequence"] if g["kind"] == kind
    ]


@pytest.mark.parametrize("g", sequences("chain"))
def test_chains(g: dict[str, Any]) -> None:
    p, q = model(g["model"])
    gamma = g["gamma"]
    request = Request(Grown.levels(*(1,) * gamma, selection=IID), p, q)
    rules: dict[str, Rule] = {
        "token_verification": Rejection(), "block_verification": Block(), "traversal": Traversal(),
    }
    for key, rule in rules.items():
        report = step_law(rule, request).assert_lossless()
        assert close(report.accepted[0], number(g[key])), key
    assert close(offline.chain_expected(p, q, gamma, block_survival), number(g["block_second_method_sum_E_P_i"]))
    assert close(offline.chain_expected(p, q, gamma, token_survival), number(g["token_verification"]))
    assert close(offline.joint_optimum(trees(request), p), g["lp_optimum"])


@pytest.mark.parametrize("g", sequences("chain"))
def test_how_many_block_verification_accepts(g: dict[str, Any]) -> None:
    """Pr[τ ≥ i] = E[P_i], differenced."""
    p, q = model(g["model"])
    reach = [1.0, *(
        offline.chain_expected(p, q, g["gamma"], lambda a, b, t, i=i: block_survival(a, b, t)[i : i + 1])
        for i in range(g["gamma"])
    ), 0.0]
    pmf = [a - b for a, b in pairwise(reach)]
    assert all(close(x, number(y)) for x, y in zip(pmf, g["block_tau_pmf"], strict=True))


@pytest.mark.parametrize("g", sequences("tree"))
def test_trees(g: dict[str, Any]) -> None:
    p, q = model(g["model"])
    request = Request(Grown(SHAPES[g["shape"]], IID if g["replacement"] else WITHOUT), p, q)
    for key, rule in (("rrs_top_down", Rejection()), ("traversal", Traversal())):
        report = step_law(rule, request).assert_lossless()
        assert close(report.accepted[0], number(g[key])), key
    drafted = separate(SHAPES[g["shape"]], q) if g["replacement"] else trees(request)
    best = offline.joint_optimum(drafted, p)
    assert close(offline.value_weighted(trees(request), p), g["ot_per_node_value_weighted"])
    assert close(best, g["joint_lp_optimum"])
    assert max(number(g["rrs_top_down"]), number(g["traversal"]), g["ot_per_node_value_weighted"]) <= best + 1e-12


@pytest.mark.parametrize("g", [g for g in sequences("tree") if g.id.endswith("-wo")])
def test_wrong_ports_of_traversal_are_as_wrong_as_known(g: dict[str, Any]) -> None:
    p, q = model(g["model"])
    request = Request(Grown(SHAPES[g["shape"]], WITHOUT), p, q)
    wrong = {
        "deep/paper": PortOfTraversal(deepest=True), "rdfs/paper": PortOfTraversal(last_first=True),
        "dfs/ratio": PortOfTraversal(ratio=True),
    }
    for name, error in g["lossy_variants_max_abs_err"].items():
        if name == "dfs/ratio" and g["V"] == 2:
            continue                       # both tokens drafted: mass / 0, and what the reference did is not known
        report = step_law(wrong[name], request)
        gap = np.abs(report.law - report.target)
        for length in range(report.horizon[0], 3):        # the figures are errors of the next three tokens' law
            rows = np.array([p(path) for path in product(range(g["V"]), repeat=length)])
            gap = (gap[:, None] * rows).ravel()
        assert close(float(gap.max()), error), name
    assert close(step_law(PortOfTraversal(), request).accepted[0], number(g["traversal"]))


@pytest.mark.parametrize("g", MISC["iid_rollouts_merged_trie"], ids=lambda g: f"{g['model']}-{g['K']}-{g['mode']}")
def test_rollouts_merged_in_a_trie(g: dict[str, Any]) -> None:
    p, q = model(g["model"])
    policy: Any = Rollouts(0, g["K"], g["depth"])
    if g["mode"] == "dedupe_without":
        policy = Edited(policy, lambda t: TokenTree.of(t.tokens, t.parent, t.survival, WITHOUT))
    for key, rule in (("rrs", Rejection()), ("traversal", Traversal())):
        report = step_law(rule, Request(policy, p, q, nodes=64)).assert_lossless()
        assert close(report.accepted[0], number(g[key])), key


@pytest.mark.parametrize("gamma", [2, 3])
def test_deterministic_chains_leave_block_verification_nothing_to_gain(gamma: int) -> None:
    """With one-hot draft rows both rules accept what match does, number for number."""
    p, _ = model("ctx3")
    one_hot = lambda path: np.array([0.0, 1.0, 0.0])  # noqa: E731
    for rule in (Block(), Rejection(), Match()):
        report = step_law(rule, Request(Grown.levels(*(1,) * gamma, selection=IID), p, one_hot)).assert_lossless()
        want = offline.deterministic_value(p, [(1,) * (i + 1) for i in range(gamma)])
        assert close(report.accepted[0], want)
    assert close(want, number(MISC[f"one_hot_block_equals_token_g{gamma}"]))


def test_the_value_of_a_fixed_tree() -> None:
    g = MISC["deterministic_tree_value_ctx3"]
    p, q = model("ctx3")
    paths = [tuple(path) for path in g["nodes"]]
    assert close(offline.deterministic_value(p, paths), number(g["E_tau"]))
    tree = TokenTree.of([1, 2, 1, 2], [-1, -1, 0, 0])
    policy = Edit(tree)
    report = step_law(Match(), Request(policy, p, q)).assert_lossless()
    assert close(report.accepted[0], number(g["E_tau"]))


class Edit(Grown):
    """A policy that always returns one given tree."""

    def __init__(self, tree: TokenTree) -> None:
        super().__init__(lambda path: 0, Selection.RETRIEVED)
        object.__setattr__(self, "tree", tree)

    def grow(self, view: Any, plan: Any) -> Any:
        yield from ()
        return self.tree  # type: ignore[attr-defined]


@pytest.mark.parametrize("g", MISC["opt_tree_ctx3_draft"], ids=lambda g: f"n{g['n']}")
def test_opt_tree(g: dict[str, Any]) -> None:
    _, q = model("ctx3")
    found = theory.greedy_tree(q, 3, g["n"])
    assert close(offline.deterministic_value(q, found), number(g["E"]))
    assert {tuple(n) for n in g["nodes"]} == set(found)


# ------------------------------------------------------------------------------------------------ lossy rules

@pytest.mark.parametrize("g", MISC["cactus"], ids=lambda g: f"delta{g['delta']}")
def test_cactus(g: dict[str, Any]) -> None:
    p, q = named("near5")
    found = one_node(lossy.Cactus(g["delta"]), p, q, 1, IID)
    assert close(found.acceptance, g["acceptance"])
    assert np.abs(found.law - g["output"]).max() < 1e-9
    divergence = float((found.law * np.log(found.law / p)).sum())
    assert close(divergence, g["kl_out_target"])
    assert close(theory.tv(found.law, p), g["tv"])


def test_cactus_at_one_token() -> None:
    g = MISC["cactus_readme_like"]
    h = float(lossy.cactus_law(np.array([g["target"], 1 - g["target"]]), 0, g["delta"])[0])
    assert close(h, g["h"]) and close(h / g["draft"], g["cactus_accept"])
    a, b = h, g["target"]
    assert close(a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b)), g["kl_bernoulli"])


@pytest.mark.parametrize("g", MISC["typical"], ids=lambda g: f"{g['p'][0]}-{g['eps']}")
def test_typical_acceptance(g: dict[str, Any]) -> None:
    p = np.array(g["p"])
    assert close(lossy.typical_threshold(p, g["eps"], g["alpha"]), g["threshold"])
    rule = lossy.Typical(g["eps"], g["alpha"])
    taken = []
    for token in range(len(p)):
        found = judge_group(rule, p, p, [(1.0, TokenTree.of([token], [ROOT]))])
        if found.law[token] == 1.0:
            taken.append(token)
    assert taken == g["accepted"]


# ------------------------------------------------------------------------------------------------ theory

@pytest.mark.parametrize("g", MISC["leviathan"], ids=lambda g: f"{g['alpha']}-{g['gamma']}-{g['c']}")
def test_leviathan(g: dict[str, Any]) -> None:
    assert close(theory.chain_tokens(g["alpha"], g["gamma"]), g["tokens"])
    assert close(theory.chain_tokens(g["alpha"], g["gamma"]), g["tokens_direct"])
    assert close(theory.chain_speedup(g["alpha"], g["gamma"], g["c"]), g["speedup"])


def test_sequoia_ceilings() -> None:
    g = MISC["sequoia_ceilings"]
    for r in g["rows"]:
        found = theory.ceilings(g["p"], r["k"])
        assert close(found.chain, r["sequence"]) and close(found.chains, r["k_sequences"])
        assert close(found.k_ary, r["k_ary"])


def test_sequoia_trees() -> None:
    g = MISC["sequoia_dp"]
    values, shallow = theory.tree_values(g["p"], 24), theory.tree_values(g["p"], 24, levels=3)
    for r in g["rows"]:
        assert close(values[r["n"] - 1], r["F"]) and close(values[r["n"] - 1], r["best_first"])
        assert close(shallow[r["n"] - 1], r["best_first_depth3"])
        assert r["F_depth_le_3"] is None or close(shallow[r["n"] - 1], r["F_depth_le_3"])


@pytest.mark.parametrize("g", MISC["powerlaw_growth"], ids=lambda g: f"{g['b']}-{g['n']}")
def test_power_law(g: dict[str, Any]) -> None:
    assert close(theory.tree_values(theory.power_law(g["b"], g["n"]), g["n"])[-1], g["F"])
    assert close(g["b"] * math.log(g["n"]) / math.log(math.log(g["n"])), g["b_logn_over_loglogn"])


@pytest.mark.parametrize("g", MISC["speed_of_light"], ids=lambda g: g["name"])
def test_speed_of_light(g: dict[str, Any]) -> None:
    p = np.array(g["p"])
    for r in g["rows"]:
        found = theory.speed_of_light([p, p], r["P"])
        assert close(found.mu, g["mu"]) and close(found.mu2, g["mu2"])
        assert close(found.ceiling, r["logP_over_mu"]) and close(found.bound, r["bound_leading"])
        assert close(theory.oracle_accepted(p, r["P"]), r["EX"])


@pytest.mark.parametrize("g", MISC["yin_expected_rejections_ctx3"], ids=lambda g: f"T{g['T']}")
def test_expected_refusals(g: dict[str, Any]) -> None:
    p, q = model("ctx3")
    assert close(theory.expected_refusals(p, q, g["T"]), number(g["expected_rejections"]))
