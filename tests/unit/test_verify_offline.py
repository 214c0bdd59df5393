"""Optima, closed forms and theory: several ways to one number, bounds that hold, edges."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core.errors import UsageError
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.testing.law import Grown, Request, step_law, trees
from hedgerow.verify import luce, offline, selection, theory, transport
from hedgerow.verify.joint import Block, Traversal, block_survival, token_survival
from hedgerow.verify.match import Match
from hedgerow.verify.onenode import acceptance, draft_group, one_node, output_law
from hedgerow.verify.rejection import Rejection, acceptance_several, acceptance_with, acceptance_without
from tests.law.cases import GREEDY, HUB, IID, WITHOUT, P, Q

weights = st.lists(st.integers(0, 6), min_size=4, max_size=4).filter(sum).map(lambda w: np.array(w, float) / sum(w))


@given(weights, weights, st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_four_ways_to_an_optimum(p: np.ndarray, q: np.ndarray, k: int) -> None:
    """Subset formula, linear program, sorted scan and a rule that attains it, for every way of drafting."""
    for how, scan in (
        (IID, offline.optimum_iid(p, q, k)), (WITHOUT, offline.optimum_without(p, q, k)),
        (GREEDY, transport.acceptance_greedy(p, q, k)),
    ):
        sets = offline.drafted_sets(q, k, how)
        best = offline.optimum_subsets(p, sets)
        assert abs(offline.optimum_lp(p, sets) - best) < 1e-9
        assert abs(scan - best) < 1e-9, f"{how.label}, {k} of {q.tolist()} for {p.tolist()}"
    for how in (IID, WITHOUT):
        found = selection.global_resolution(p, q, k, how)
        best = offline.optimum_subsets(p, offline.drafted_sets(q, k, how))
        assert best - 1e-9 < np.minimum(p, found.marginal).sum() < best + 1e-9


@pytest.mark.parametrize("how", [IID, WITHOUT])
def test_a_choice_short_of_the_optimum_costs_acceptance_only(how: Selection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Global resolution judges by the exact marginal of the weights it was left with, converged or not."""
    p, q = P(()), Q(())
    best = one_node(selection.GlobalResolution(), p, q, 2, how).acceptance
    monkeypatch.setattr(luce, "minimize", lambda loss, start, *rest, **options: SimpleNamespace(x=start))
    monkeypatch.setattr(luce, "_NEWTON", 0)               # so θ stays 0: every draw is as likely to be chosen
    short = one_node(selection.GlobalResolution(), p, q, 2, how)
    assert np.abs(short.law - p).max() < 1e-12 and short.acceptance < best - 1e-3


@pytest.mark.parametrize("how", [IID, WITHOUT])
def test_newton_steps_end_where_rounding_does(how: Selection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for more than float64 holds, they stop at the first step that brings nothing, at the optimum."""
    monkeypatch.setattr(luce, "_CONVERGED", 0.0)
    monkeypatch.setattr(luce, "_NEWTON", 10**6)           # were they to go on, this would not come back
    found = selection.global_resolution(P(()), Q(()), 2, how)
    best = offline.optimum_subsets(P(()), offline.drafted_sets(Q(()), 2, how))
    assert np.minimum(P(()), found.marginal).sum() == pytest.approx(best, abs=1e-12)


@given(weights, weights, st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_no_rule_beats_the_optimum(p: np.ndarray, q: np.ndarray, k: int) -> None:
    iid, without = offline.optimum_iid(p, q, k), offline.optimum_without(p, q, k)
    assert acceptance_with(p, q, k) <= iid + 1e-12 and acceptance_without(p, q, k) <= without + 1e-12
    assert transport.kseq(p, q, k).acceptance <= iid + 1e-12
    assert transport.kseq(p, q, k).acceptance >= (1 - (1 - 1 / k) ** k) * iid - 1e-12
    assert iid <= without + 1e-9, "draws that do not repeat are worth more"
    assert acceptance(Rejection(), p, q, 1, IID) == pytest.approx(1 - theory.tv(p, q))
    assert offline.optimum_iid(p, q, k) <= offline.optimum_iid(p, q, k + 1) + 1e-12


def test_more_draws_than_tokens() -> None:
    """The draws end with the support: all of it is drafted."""
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.7, 0.3, 0.0, 0.0])
    for k in (2, 3, 9):
        assert acceptance_without(p, q, k) == pytest.approx(acceptance(Rejection(), p, q, k, WITHOUT), abs=1e-12)
        assert offline.optimum_without(p, q, k) == pytest.approx(0.7)


def test_closed_forms_are_what_enumeration_finds() -> None:
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    for k in (1, 2, 3, 4, 6):
        assert acceptance_without(p, q, k) == pytest.approx(acceptance(Rejection(), p, q, k, WITHOUT), abs=1e-12)
    assert acceptance_with(p, q, 3) == pytest.approx(acceptance(Rejection(), p, q, 3, IID), abs=1e-12)
    assert acceptance_several(p, [p, q]) == pytest.approx(1.0, abs=1e-12) and acceptance_several(p, []) == 0.0
    assert transport.acceptance_greedy(p, q, 3) == pytest.approx(acceptance(transport.GreedyPlusOne(), p, q, 3, GREEDY))
    assert transport.acceptance_greedy(p, np.array([1.0, 0, 0, 0]), 3) == pytest.approx(0.4), "no token is left to draw"
    assert np.allclose(output_law(transport.SpecHub(), p, q, 2, HUB), p)
    assert acceptance(Match(), p, q, 2, Selection.TOP_K) == pytest.approx(offline.optimum_fixed(p, [3, 2, 3]))


def test_the_quadrature_over_races_is_exact_to_rounding() -> None:
    """Against enumeration of whole sets, for steep and flat drafts and every number of draws."""
    rng = np.random.default_rng(1)
    for _ in range(25):
        q = rng.random(5) ** rng.integers(1, 9)
        p = rng.random(5)
        for k in (1, 2, 3, 4, 5, 7):
            best = offline.optimum_subsets(p, offline.drafted_sets(q / q.sum(), k, WITHOUT))
            assert offline.optimum_without(p, q, k) == pytest.approx(best, abs=1e-11)


def test_the_subset_formula_knows_its_size() -> None:
    with pytest.raises(UsageError, match=r"2\^21 sets; at most 20"):
        offline.optimum_subsets(np.ones(21), {})


def test_tuple_laws_sum_to_one() -> None:
    q = np.array([0.5, 0.0, 0.3, 0.2])
    for how in (IID, WITHOUT):
        for k in (1, 2, 3, 4):
            law = luce.tuple_law(q, k, how)
            assert law.probability.sum() == pytest.approx(1.0, abs=1e-12)
            sets: dict[frozenset[int], float] = {}
            for tokens, weight in zip(law.tokens.tolist(), law.probability.tolist(), strict=True):
                sets[frozenset(tokens)] = sets.get(frozenset(tokens), 0.0) + weight
            want = offline.drafted_sets(q, k, how)
            assert all(sets[s] == pytest.approx(w, abs=1e-12) for s, w in want.items()) and len(sets) == len(want)


def test_canonical_weights_add_up() -> None:
    for head in (0, 1, 2, 3):
        w = selection.canonical_weights(P(()), Q(()), head)
        off = ~np.eye(3, dtype=bool)
        assert np.allclose((w + w.T)[off], 1.0) and np.all(w >= 0)
        s = selection.canonical_marginal(Q(()), w)
        assert s.sum() == pytest.approx(1.0) and np.all(s >= 0)
    full = np.minimum(P(()), selection.canonical_marginal(Q(()), selection.canonical_weights(P(()), Q(())))).sum()
    assert full == pytest.approx(offline.optimum_iid(P(()), Q(()), 2), abs=1e-9)


# ------------------------------------------------------------------------------------------------ trees

def test_the_joint_optimum_bounds_every_rule() -> None:
    for how in (IID, WITHOUT):
        for counts in ((2, 1), (1, 2), (2, 2)):
            request = Request(Grown.levels(*counts, selection=how), P, Q)
            best = offline.joint_optimum(trees(request), P)
            values = [step_law(rule, request).accepted[0] for rule in (Match(), Rejection(), Traversal())]
            assert max(*values, offline.value_weighted(trees(request), P)) <= best + 1e-12
    chain = Request(Grown.levels(1, 1, selection=IID), P, Q)
    assert offline.joint_optimum(trees(chain), P) == pytest.approx(step_law(Block(), chain).accepted[0], abs=1e-12)


def test_fixed_trees_and_no_trees() -> None:
    tree = TokenTree.of([0, 1, 0], [-1, -1, 0])
    paths = [(0,), (1,), (0, 0)]
    value = offline.deterministic_value(P, paths)
    assert value == pytest.approx(0.45 + 0.40 + 0.45 * 0.45)
    assert offline.joint_optimum([(1.0, tree)], P) == pytest.approx(value), "no rule accepts more of a fixed tree"
    assert offline.value_weighted([(1.0, tree)], P) == pytest.approx(value)
    nothing = [(1.0, TokenTree.empty())]
    assert offline.joint_optimum(nothing, P) == offline.value_weighted(nothing, P) == 0.0


def test_survival_of_chains() -> None:
    ps, qs = [P(()), P((1,))], [Q(()), Q((1,))]
    for tokens in ([0, 1], [1, 2], [2, 0]):
        block, token = block_survival(ps, qs, tokens), token_survival(ps, qs, tokens)
        assert all(0 <= t <= b <= 1 for b, t in zip(block, token, strict=True))
    assert offline.chain_expected(P, lambda path: np.eye(3)[0], 2, block_survival) == pytest.approx(0.45 + 0.45**2)


def test_draft_groups_merge_equal_trees() -> None:
    groups = draft_group(Q(()), 2, IID)
    assert sum(w for w, _ in groups) == pytest.approx(1.0) and len(groups) == 9
    assert len(draft_group(Q(()), 2, Selection.TOP_K)) == 1


# ------------------------------------------------------------------------------------------------ theory

def test_chains_of_certain_and_hopeless_drafts() -> None:
    assert theory.chain_tokens(1.0, 4) == 5.0 and theory.chain_tokens(0.0, 4) == 1.0
    assert theory.best_gamma(0.0, 0.1) == 0 and theory.best_gamma(0.9, 0.0, most=12) == 12
    best = theory.best_gamma(0.8, 0.05)
    assert all(theory.chain_speedup(0.8, best, 0.05) >= theory.chain_speedup(0.8, g, 0.05) for g in range(30))


def test_ceilings_of_perfect_drafts() -> None:
    assert theory.ceilings([1.0], 1).chain == math.inf
    assert theory.ceilings([0.5, 0.5], 2).k_ary == math.inf and theory.ceilings([0.0], 1).chains == 1.0


def test_tree_values() -> None:
    assert theory.tree_values([0.5, 0.25], 5) == [1.0, 1.5, 1.75, 2.0, 2.125]
    assert theory.tree_values([], 3) == [1.0, 1.0, 1.0] and theory.tree_values([0.5], 3, levels=1) == [1.0] * 3
    assert theory.tree_values([0.5], 4, levels=2) == [1.0, 1.5, 1.5, 1.5]
    with pytest.raises(UsageError, match="rises"):
        theory.tree_values([0.2, 0.3], 3)
    assert sum(theory.power_law(0.7, 9)) == pytest.approx(1 - 10**-0.7)


def test_bounds_of_the_verifier_capacity() -> None:
    found = theory.speed_of_light([P(()), P((0,))], 64)
    assert found.ceiling < found.bound and found.mu2 >= found.mu**2
    assert found.mu == pytest.approx((theory.surprise(P(()))[0] + theory.surprise(P((0,)))[0]) / 2)
    for rows, capacity in (([np.array([1.0, 0.0])], 8), ([P(())], 0)):
        with pytest.raises(UsageError, match="needed: 1 token or more, some entropy"):
            theory.speed_of_light(rows, capacity)


def test_the_greedy_tree_is_the_best_fixed_tree() -> None:
    paths = theory.greedy_tree(P, 3, 6)
    assert len(paths) == 6 and all(not p[:-1] or p[:-1] in paths for p in paths)
    value = offline.deterministic_value(P, paths)
    assert value >= offline.deterministic_value(P, [(0,), (1,), (2,), (0, 0), (1, 2), (0, 1)]) - 1e-12
    one_hot = theory.greedy_tree(lambda path: np.eye(3)[len(path) % 3], 3, 4)
    assert one_hot == [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 0)]
    assert theory.oracle_accepted(np.array([1.0, 0.0]), 3) == 3.0


def test_refusals_of_one_draft_at_a_time() -> None:
    """Yin's count is the tokens that a chain of one would be refused, in contexts the target writes."""
    assert theory.expected_refusals(P, P, 4) == 0.0
    assert theory.expected_refusals(P, Q, 1) == pytest.approx(theory.tv(P(()), Q(())))
