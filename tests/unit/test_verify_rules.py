"""The rules' contract: how many rows they ask for, what they refuse, edges of arithmetic, and twins that must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core.errors import InvariantError, UsageError
from hedgerow.core.parts import Rule, Verdict
from hedgerow.core.rng import Purpose, Rng, Tape, enumerate_branches
from hedgerow.core.select import pick
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.testing.law import Grown, Request, step_law
from hedgerow.verify import offline
from hedgerow.verify.joint import Block, Traversal
from hedgerow.verify.lossy import Cactus, Margin, Relaxed, Thresholds, Typical
from hedgerow.verify.luce import tuple_law
from hedgerow.verify.match import Match
from hedgerow.verify.onenode import draft_group, judge_group, one_node
from hedgerow.verify.rejection import Rejection, acceptance_with
from hedgerow.verify.residual import Proposal, Residual, spare, unit
from hedgerow.verify.selection import Canonical, GlobalResolution
from hedgerow.verify.transport import GreedyPlusOne, KSeq, SpecHub, kseq, spechub
from hedgerow.verify.walk import draws, no_rows

IID, WITHOUT, HUB, GREEDY = Selection.IID, Selection.WITHOUT_REPLACEMENT, Selection.HUB, Selection.GREEDY_PLUS_ONE
EXACT: list[tuple[Rule, Selection]] = [
    (Match(), Selection.TOP_K), (Rejection(), IID), (Rejection(), WITHOUT), (Traversal(), IID), (Traversal(), WITHOUT),
    (KSeq(), IID), (SpecHub(), HUB), (GreedyPlusOne(), GREEDY), (Canonical(), IID), (GlobalResolution(), WITHOUT),
    (GlobalResolution(), IID),
]
IDS = [f"{r.name}, {s.label}" for r, s in EXACT]


class Rows:
    """Random laws by node that count how often each is asked for."""

    def __init__(self, vocab: int, seed: int, dtype: type = np.float64) -> None:
        self.vocab, self.seed, self.dtype, self.asked = vocab, seed, dtype, list[Any]()

    def __call__(self, *key: int) -> np.ndarray:
        self.asked.append(key)
        return self.law(*key)

    def law(self, *key: int) -> np.ndarray:
        row = np.random.default_rng([self.seed, *(k + 1 for k in key)]).random(self.vocab)
        return (row / row.sum()).astype(self.dtype)


def drafted(q: Callable[..., np.ndarray], counts: tuple[int, ...], how: Selection, rng: Rng) -> TokenTree:
    """A tree drawn from q rows by node, `counts[d]` children at depth d."""
    tokens, parent, mult = list[int](), list[int](), list[int]()
    level = [ROOT]
    for depth, count in enumerate(counts):
        below = []
        for node in level:
            got = pick(q(node, 0), count, how, rng, depth + 1, node + 1)
            below += range(len(tokens), len(tokens) + len(got.token))
            tokens += got.token
            mult += got.mult
            parent += [node] * len(got.token)
        level = below
    return TokenTree.of(tokens, parent, selection=how, mult=mult)


# ------------------------------------------------------------------------------------------------ rows asked for

@pytest.mark.parametrize(
    "rule, how", [e for e in EXACT if e[0].name != "traversal"], ids=[i for i in IDS if "traversal" not in i]
)
def test_top_down_rules_ask_for_the_accepted_path_only(rule: Rule, how: Selection) -> None:
    for seed in range(20):
        p, q = Rows(6, seed), Rows(6, seed + 1000)
        tree = drafted(q.law, (2, 2, 2), how, Rng(seed))
        verdict = rule.verify(tree, p, q, Rng(seed), 0)
        assert p.asked == [(ROOT,), *((v,) for v in verdict.path)], "depth + 1 rows, from the root down"
        inner = [ROOT, *verdict.path][: len(verdict.path) + (verdict.stop == "residual")]
        assert set(q.asked) <= {(v, 0) for v in inner} and len(q.asked) <= len(inner)
        assert bool(q.asked) == rule.needs_q or verdict.path


def test_traversal_asks_for_nodes_it_passes_and_the_accepted_one() -> None:
    for seed in range(40):
        p, q = Rows(5, seed), Rows(5, seed + 1000)
        tree = drafted(q.law, (2, 2, 2), WITHOUT, Rng(seed))
        verdict = Traversal().verify(tree, p, q, Rng(seed), 0)
        assert len(p.asked) == len(set(p.asked)) and len(q.asked) == len(set(q.asked)), "no row twice"
        inner = {(v,) for v in range(-1, tree.nodes) if tree.children[v + 1]}
        leaves_asked = set(p.asked) - inner
        assert leaves_asked <= {(verdict.path[-1] if verdict.path else ROOT,)}, "a refused leaf's row is not asked for"


def test_block_asks_for_inner_rows_once() -> None:
    for seed in range(20):
        p, q = Rows(5, seed), Rows(5, seed + 1000)
        tree = drafted(q.law, (1, 1, 1, 1), IID, Rng(seed))
        verdict = Block().verify(tree, p, q, Rng(seed), 0)
        assert p.asked[:4] == [(-1,), (0,), (1,), (2,)] and len(q.asked) == 4
        assert p.asked[4:] == ([(3,)] if len(verdict.path) == 4 else [])


@pytest.mark.parametrize("rule, how", EXACT, ids=IDS)
def test_plain_decoding_is_a_tree_of_no_nodes(rule: Rule, how: Selection) -> None:
    """Every rule draws the target's own token, with the target's own number."""
    for seed in range(30):
        p, q = Rows(7, seed), Rows(7, seed)
        verdict = rule.verify(TokenTree.empty(), p, q, Rng(seed), 9)
        assert verdict == Verdict((), Rng(seed).categorical(p.law(ROOT), 10, Purpose.TARGET), "bonus")
        assert p.asked == [(ROOT,)] and not q.asked


@pytest.mark.parametrize("rule, how", EXACT, ids=IDS)
def test_one_hot_targets_reduce_every_rule_to_exact_match(rule: Rule, how: Selection) -> None:
    for seed in range(30):
        q = Rows(5, seed)
        tree = drafted(q.law, (2, 2), how, Rng(seed))
        p = lambda node, seed=seed: np.eye(5)[(seed + node) % 5]  # noqa: E731
        want = Match().verify(tree, p, q, Rng(seed), 0)
        got = rule.verify(tree, p, q, Rng(seed), 0)
        assert got.committed(tree) == want.committed(tree) and len(got.path) == len(want.path)


# ------------------------------------------------------------------------------------------------ twins

def test_block_is_traversal_on_a_chain_decision_by_decision() -> None:
    for seed in range(300):
        p, q = Rows(4, seed), Rows(4, seed + 1000)
        tree = drafted(q.law, (1,) * (seed % 6), IID, Rng(seed))
        assert Block().verify(tree, p, q, Rng(seed), 5) == Traversal().verify(tree, p, q, Rng(seed), 5)


@pytest.mark.parametrize("how", [IID, WITHOUT], ids=lambda s: s.label)
def test_rejection_is_single_draft_rejection_on_one_child(how: Selection) -> None:
    for seed in range(300):
        p, q = Rows(4, seed), Rows(4, seed + 1000)
        tree = drafted(q.law, (1, 1), how, Rng(seed))
        verdict = Rejection().verify(tree, p, q, Rng(seed), 0)
        kept = ROOT
        for node in range(2):
            x, depth = int(tree.tokens[node]), node + 1
            ratio = p.law(kept)[x] / q.law(kept, 0)[x]
            if not Rng(seed).uniform(depth, Purpose.ACCEPT, 0) < ratio:
                break
            kept = node
        assert verdict.path == tuple(range(kept + 1))
        assert Cactus(0.0).verify(tree, p, q, Rng(seed), 0) == verdict, "delta 0 is rejection, number by number"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule, how", EXACT, ids=IDS)
def test_unnormalised_and_single_precision_rows(rule: Rule, how: Selection, dtype: type) -> None:
    """A row is a law up to its total: doubling it changes nothing; float32 rows decide as their float64 values do."""
    for seed in range(15):
        p, q = Rows(6, seed, dtype), Rows(6, seed + 1000, dtype)
        tree = drafted(q.law, (2, 2), how, Rng(seed))
        one = rule.verify(tree, p, q, Rng(seed), 0)
        two = rule.verify(tree, lambda v, p=p: p.law(v) * 2, lambda v, s, q=q: q.law(v, s) * 4, Rng(seed), 0)
        wide = rule.verify(
            tree, lambda v, p=p: p.law(v).astype(float), lambda v, s, q=q: q.law(v, s).astype(float), Rng(seed), 0
        )
        assert one == two == wide


def test_float32_laws_are_exact_to_their_rounding() -> None:
    p32 = {(): np.array([0.45, 0.4, 0.15], np.float32)}
    q32 = np.array([0.2, 0.3, 0.5], np.float32)
    for rule, how in EXACT:
        law = one_node(rule, p32[()], q32, 2, how).law
        assert np.abs(law - p32[()]).max() < 1e-6


# ------------------------------------------------------------------------------------------------ what is refused

BAD = [[0.5, np.nan, 0.5], [0.5, np.inf, 0.0], [0.0, 0.0, 0.0], [0.7, -0.2, 0.5], [-np.inf, 0.5, 0.5]]


@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("rule, how", EXACT, ids=IDS)
def test_rows_that_are_no_law(rule: Rule, how: Selection, bad: list[float]) -> None:
    good = np.array([0.2, 0.3, 0.5])
    tree = drafted(lambda *key: good, (2, 2), how, Rng(0))
    with pytest.raises(InvariantError, match=r"the target row after node -1 is no law"):
        rule.verify(tree, lambda node: np.array(bad), lambda node, source: good, Rng(0), 0)
    if rule.needs_q:
        with pytest.raises(InvariantError, match="the draft row of source 0 at node -1 is no law"):
            rule.verify(tree, lambda node: good, lambda node, source: np.array(bad), Rng(0), 0)


def test_a_bad_row_deeper_down_is_found_when_it_is_reached() -> None:
    tree = TokenTree.of([1], [-1], selection=IID)
    rows = {-1: np.array([0.0, 1.0]), 0: np.array([np.nan, 1.0])}
    for rule in (Match(), Rejection(), Traversal(), Block(), KSeq()):
        with pytest.raises(InvariantError, match="after node 0"):
            rule.verify(tree, rows.__getitem__, lambda node, source: np.array([0.5, 0.5]), Rng(0), 0)


@pytest.mark.parametrize("scale", [1e-13, 1.0, 1e13])
@pytest.mark.parametrize("tail", [1e-3, 1e-9, 2e-13])
def test_drafts_that_put_almost_everything_on_one_token(tail: float, scale: float) -> None:
    """What is left of such a row after its favourite is a law of its own, however little it weighs."""
    p = np.array([0.1, 0.35, 0.3, 0.25])
    q = np.array([1.0, 0.7 * tail, 0.2 * tail, 0.1 * tail]) * scale
    for rule, how in EXACT:
        k = 2 if how is HUB or rule.name == "canonical" else 3
        assert np.abs(one_node(rule, p, q, k, how).law - p).max() < 1e-12, f"{rule.name} on {how.label}"


def test_rows_of_two_vocabularies() -> None:
    """A draft model padded to another size is refused in words, not broadcast; so is a token beyond the rows."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.5, 0.3, 0.2, 0.0])
    for rule, how in EXACT:
        if not rule.needs_q:
            continue
        tree = TokenTree.of([0], [-1], selection=how)
        with pytest.raises(InvariantError, match="the target row has 3 entries, the draft row of source 0 4"):
            rule.verify(tree, lambda node: p, lambda node, source: q, Rng(0), 0)
        with pytest.raises(InvariantError, match="the last child token is 7; both rows must be over one vocabulary"):
            rule.verify(TokenTree.of([7], [-1], selection=how), lambda v: p, lambda v, s: p, Rng(0), 0)


@pytest.mark.parametrize("bad", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [-0.5, 1.5]])
def test_oracles_refuse_what_is_no_law(bad: list[float]) -> None:
    good, row = np.array([0.5, 0.5]), np.array(bad)
    for oracle in (
        lambda a, b: offline.optimum_iid(a, b, 2), lambda a, b: acceptance_with(a, b, 2), lambda a, b: kseq(a, b, 2),
        spechub,
    ):
        for pair in ((good, row), (row, good)):
            with pytest.raises(InvariantError, match="is no law"):
                oracle(*pair)


@pytest.mark.parametrize("rule", [Rejection(), Traversal(), Block()], ids=lambda r: r.name)
def test_a_child_that_cannot_have_been_drawn(rule: Rule) -> None:
    tree = TokenTree.of([1], [-1], selection=WITHOUT)
    with pytest.raises(InvariantError, match="node 0 carries token 1, to which its draft row"):
        rule.verify(tree, lambda v: np.array([0.5, 0.5]), lambda v, s: np.array([1.0, 0.0]), Rng(0), 0)


def test_block_judges_chains_of_single_draws() -> None:
    rows: Any = lambda *key: np.array([0.5, 0.5])  # noqa: E731
    with pytest.raises(InvariantError, match="width 2"):
        Block().verify(TokenTree.of([0, 1], [-1, -1], selection=IID), rows, rows, Rng(0), 0)
    with pytest.raises(InvariantError, match="up to 2 draws a node"):
        Block().verify(TokenTree.of([0], [-1], selection=IID, mult=[2]), rows, rows, Rng(0), 0)


def test_groups_the_transports_cannot_judge() -> None:
    rows: Any = lambda *key: np.array([0.2, 0.3, 0.5])  # noqa: E731
    pairs = TokenTree.of([0, 1], [-1, -1], selection=HUB)
    with pytest.raises(InvariantError, match="are no hub pair"):
        SpecHub().verify(pairs, rows, rows, Rng(0), 0)
    with pytest.raises(InvariantError, match="are no hub pair"):
        SpecHub().verify(TokenTree.of([0, 2, 1], [-1] * 3, selection=HUB), rows, rows, Rng(0), 0)
    with pytest.raises(InvariantError, match=r"was not drawn from the draft row without \[0\]"):
        GreedyPlusOne().verify(TokenTree.of([0, 0], [-1, -1], selection=GREEDY), rows, rows, Rng(0), 0)
    with pytest.raises(UsageError, match="has 3 draws, 2 are allowed"):
        Canonical().verify(TokenTree.of([0, 1], [-1, -1], selection=IID, mult=[2, 1]), rows, rows, Rng(0), 0)
    with pytest.raises(InvariantError, match=r"children from sources \[0, 1\]"):
        KSeq().verify(TokenTree.of([0, 1], [-1, -1], selection=IID, source=[0, 1]), rows, rows, Rng(0), 0)


def test_groups_that_a_cut_broke() -> None:
    """One child of a hub pair is a single draw; a greedy-plus-one group without its draw is the target's to judge."""
    p, q = np.array([0.5, 0.2, 0.3]), np.array([0.2, 0.3, 0.5])
    for rule, how in ((SpecHub(), HUB), (GreedyPlusOne(), GREEDY)):
        groups = draft_group(q, 2, how)
        found = judge_group(rule, p, q, [(w, t.prefix(1)) for w, t in groups])
        assert np.allclose(found.law, p)
    assert groups[0][1].prefix(1).selection.tolist() == [Selection.TOP_K] and found.acceptance == pytest.approx(0.3)
    lone = judge_group(Canonical(), p, q, draft_group(q, 1, IID))
    assert np.allclose(lone.law, p) and lone.acceptance == pytest.approx(0.7)


def test_a_match_rule_that_asks_for_q_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="asked for the draft row of source 2 at node 1"):
        no_rows(1, 2)


def test_what_kseq_and_tuple_laws_refuse() -> None:
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    with pytest.raises(UsageError, match=r"rho is 0\.5; allowed: 1 to 2"):
        kseq(p, q, 2, 0.5)
    with pytest.raises(UsageError, match=r"at least 1\.5"):
        kseq(p, q, 2, 1.4)
    assert kseq(p, q, 2, 1.7).acceptance < kseq(p, q, 2).acceptance, "more than needed is valid, and worse"
    with pytest.raises(UsageError, match="has no tuple law; allowed"):
        tuple_law(q, 2, HUB)
    with pytest.raises(UsageError, match="64 tokens in 4 draws"):
        tuple_law(np.ones(64), 4, IID)


# ------------------------------------------------------------------------------------------------ arithmetic

def test_residuals_never_run_dry() -> None:
    """Rounding may leave the residual of p = q without mass; a token of p comes out, refused ones last."""
    p = np.array([0.3, 0.7])
    assert spare(np.zeros(2), p, [1]).tolist() == [0.3, 0.0]
    assert spare(np.zeros(2), p, [0, 1]) is p
    row = np.array([0.0, 1e-3])
    assert spare(row, p, []) is row
    left = Residual(p)
    assert left.refuse(0, Proposal(p)) == 0.0 and left.row.tolist() == [0.0, 0.7]
    assert left.refuse(1, Proposal(np.array([0.0, 1.0]))) == 0.0 and left.mass == pytest.approx(1.0)
    assert left.tried == [0, 1]


def test_a_proposal_that_is_used_up() -> None:
    """A repeat under draws without replacement has no mass left: it is refused and takes nothing out."""
    used = Proposal(np.array([0.0, 2.0, 0.0]))
    used.remove(1)
    left = Residual(np.array([0.2, 0.3, 0.5]))
    assert left.ratio(1, used) == 0.0 and left.refuse(1, used, 0.75) == 0.75 and left.mass == 1.0
    twice = TokenTree.of([1, 1], [-1, -1], selection=WITHOUT)
    for rule in (Rejection(), Traversal()):
        found = judge_group(rule, np.array([0.2, 0.3, 0.5]), np.array([0.0, 1.0, 0.0]), [(1.0, twice)])
        assert np.allclose(found.law, [0.2, 0.3, 0.5])


def test_forced_refusals_of_certain_draws_do_not_break() -> None:
    """What only rounding can reach: every test refused although p = q. Each rule still emits a token of p."""

    class Refuses(Rng):
        def bernoulli(self, p: float, position: int, purpose: Purpose = Purpose.ACCEPT, index: int = 0) -> bool:
            return False

    row = np.array([0.0, 0.6, 0.4])
    for rule, how in EXACT:
        tree = drafted(lambda *key: row, (2, 2), how, Rng(3))
        verdict = rule.verify(tree, lambda node: row, lambda node, source: row, Refuses(3), 0)
        assert row[verdict.token] > 0 and all(row[tree.tokens[v]] > 0 for v in verdict.path)
    chain = TokenTree.of([1, 2], [-1, 0], selection=IID)
    verdict = Block().verify(chain, lambda node: row, lambda node, source: row, Refuses(3), 0)
    assert verdict == Verdict((), 2, "residual"), "the refused token comes last"


laws = st.lists(st.integers(0, 6), min_size=2, max_size=5).filter(sum).map(lambda w: np.array(w, float) / sum(w))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_one_node_laws_of_small_integers(data: st.DataObject) -> None:
    """Any rule, any p and q of small integers, zeros included, one to three draws: the law is p."""
    p = data.draw(laws)
    q = data.draw(st.lists(st.integers(0, 6), min_size=len(p), max_size=len(p)).filter(sum).map(unit_of))
    rule, how = data.draw(st.sampled_from(EXACT))
    k = 2 if how is HUB or rule.name == "canonical" else data.draw(st.integers(1, 3))
    assert np.abs(one_node(rule, p, q, k, how).law - p).max() < 1e-12


def unit_of(weights: list[int]) -> np.ndarray:
    return unit(np.array(weights, float))


def test_hub_plans_carry_no_more_than_there_is() -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        p, q = (unit(rng.integers(0, 5, 4) + np.eye(4)[0] + np.eye(4)[k] * k) for k in (0, 1))
        plan = spechub(p, q)
        for chance in (plan.first, plan.second, plan.hub_after, plan.hub_before):
            assert np.all(np.asarray(chance) >= 0) and np.all(np.asarray(chance) <= 1)
        assert plan.residual[plan.hub] <= 1e-15 and np.all(plan.residual >= 0), "the hub is always served in full"


# ------------------------------------------------------------------------------------------------ order of draws

def orders(mult: list[int], source: list[int] | None = None) -> dict[tuple[int, ...], float]:
    n = len(mult)
    tree = TokenTree.of(list(range(n)), [-1] * n, selection=IID, mult=mult, source=source)
    out: dict[tuple[int, ...], float] = {}
    for weight, order in enumerate_branches(lambda tape: tuple(draws(tree, tuple(range(n)), tape.request(0), 1))):
        out[order] = out.get(order, 0.0) + weight
    return out


def test_repeats_are_dealt_out_as_they_may_have_fallen() -> None:
    """Every arrangement with the given first appearances and counts, all equally likely."""
    assert orders([1, 1, 1]) == {(0, 1, 2): 1.0}
    assert {o: round(w, 9) for o, w in orders([2, 1]).items()} == {(0, 0, 1): 0.5, (0, 1, 0): 0.5}
    found = orders([3, 2, 1])
    assert len(found) == len(set(found)) and all(abs(w - 1 / len(found)) < 1e-12 for w in found.values())
    assert all(o[0] == 0 and o.index(1) < o.index(2) for o in found)
    assert len(found) == 20, "of 6!/(3! 2! 1!) = 60 arrangements 3/6 start with 0, and 2/3 of these go on with 1"


def test_sources_are_judged_one_after_the_other() -> None:
    assert orders([1, 1, 1], [1, 0, 1]) == {(1, 0, 2): 1.0}
    assert set(orders([2, 1, 2], [1, 0, 1])) == {(1, 0, 0, 2, 2), (1, 0, 2, 0, 2), (1, 0, 2, 2, 0)}


def test_no_random_number_where_nothing_repeats() -> None:
    tape = Tape([])
    tree = TokenTree.of([0, 1], [-1, -1], selection=IID)
    assert list(draws(tree, (0, 1), tape.request(0), 1)) == [0, 1] and not tape.used


# ------------------------------------------------------------------------------------------------ lossy rules

def lossy_law(rule: Rule, counts: tuple[int, ...] = (2, 1)) -> Any:
    rows = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])
    policy = Grown.levels(*counts, selection=Selection.TOP_K)
    return step_law(rule, Request(policy, lambda path: rows[len(path)], lambda path: np.array([0.2, 0.5, 0.3])))


def test_thresholds_of_one_are_exact_and_lower_ones_accept_more() -> None:
    exact = lossy_law(Thresholds()).assert_lossless()
    previous = exact.accepted[0]
    for single in (0.3, 0.2, 0.1):
        report = lossy_law(Thresholds(single=single)).assert_biased()
        assert report.accepted[0] >= previous
        previous = report.accepted[0]
    previous = exact.accepted[0]
    for acc in (0.9, 0.6, 0.3):
        report = lossy_law(Thresholds(acc=acc)).assert_biased()
        assert report.accepted[0] >= previous
        previous = report.accepted[0]


def test_the_coin_of_thresholds_is_one_coin() -> None:
    """At acc = 1/2 the siblings are accepted with twice their mass: (c₂ − c₁)/acc each until it reaches one."""
    p = np.array([0.2, 0.1, 0.7])
    tree = TokenTree.of([0, 1], [-1, -1])
    found = judge_group(Thresholds(acc=0.5), p, p, [(1.0, tree)])
    assert np.allclose(found.law, [0.4, 0.2, 0.4])


@pytest.mark.parametrize("knob", [0.0, 0.1, 0.6, 3.0])
def test_a_wider_margin_accepts_more(knob: float) -> None:
    rows = {v: np.random.default_rng(v + 2).random(4) for v in range(-1, 6)}
    tree = TokenTree.of([0, 1, 2, 3, 0, 1], [-1, -1, 0, 0, 1, 1])
    knobs = (0.0, knob, knob + 1.0)
    lengths = [len(Margin(m).verify(tree, rows.__getitem__, None, Rng(0), 0).path) for m in knobs]
    assert lengths == sorted(lengths)


def test_a_margin_of_nothing_is_greedy_decoding() -> None:
    """And all rules that look at p alone are exact match on one-hot rows."""
    for seed in range(50):
        p = Rows(4, seed)
        tree = TokenTree.of([0, 1, 2, 1, 3, 0], [-1, -1, -1, 0, 0, 1])
        greedy = lambda v, p=p: np.eye(4)[int(np.argmax(p.law(v)))]  # noqa: E731
        want = Match().verify(tree, greedy, None, Rng(seed), 0)
        assert Margin(0.0).verify(tree, p.law, None, Rng(seed), 0) == want  # type: ignore[arg-type]
        for rule in (Typical(), Margin(2.0), Relaxed(3, 0.5), Relaxed()):
            assert rule.verify(tree, greedy, None, Rng(seed), 0) == want  # type: ignore[arg-type]


def test_a_margin_prefers_the_best_child() -> None:
    p = np.array([0.4, 0.3, 0.28, 0.02])
    def emitted(tokens: list[int], margin: float) -> int:
        tree = TokenTree.of(tokens, [-1] * len(tokens))
        return Margin(margin).verify(tree, lambda v: p, None, Rng(0), 0).committed(tree)[0]  # type: ignore[arg-type]

    assert emitted([2, 0], 1.0) == 0 and emitted([2, 1], 1.0) == 1 and emitted([2, 3], 1.0) == 2
    assert emitted([2], 0.1) == 0 and emitted([3], 1.0) == 0


def test_relaxed_top_k() -> None:
    p = np.array([0.5, 0.26, 0.2, 0.04])
    def law(k: int, ratio: float) -> list[float]:
        return judge_group(Relaxed(k, ratio), p, p, [(1.0, TokenTree.of([2, 1], [-1, -1]))]).law.tolist()  # type: ignore[arg-type]

    assert law(1, 1.0) == pytest.approx(p.tolist()), "nothing is admissible but the target's own draw"
    assert law(2, 0.0) == pytest.approx([0.0, 0.8, 0.2, 0.0]), "1 is among the two best, 2 is not"
    assert law(3, 0.5) == pytest.approx([0.0, 0.8, 0.2, 0.0]) and law(3, 0.6) == pytest.approx(p.tolist())


def test_typical_acceptance_takes_the_longest_path_then_the_likeliest() -> None:
    rows = {
        -1: [0.4, 0.35, 0.25], 0: [0.98, 0.01, 0.01], 1: [0.3, 0.4, 0.3], 2: [0.2, 0.5, 0.3], 3: [0.1, 0.1, 0.8],
        4: [0.3, 0.3, 0.4],
    }
    tree = TokenTree.of([0, 1, 1, 0, 1], [-1, -1, 0, 1, 1])
    verdict = Typical().verify(tree, lambda v: np.array(rows[v]), None, Rng(1), 0)
    assert verdict.path == (1, 4) and verdict.stop == "bonus", "0 leads nowhere; of two paths of two the likelier"
    stub = TokenTree.of([0, 1], [-1, 0])
    verdict = Typical().verify(stub, lambda v: np.array(rows[v]), None, Rng(1), 0)
    assert verdict.path == (0,) and verdict.stop == "residual"


@pytest.mark.parametrize("make, words", [
    (lambda: Typical(epsilon=1.5), "epsilon is 1.5; allowed: 0.0 to 1.0"),
    (lambda: Typical(alpha=-1.0), "alpha is -1.0"), (lambda: Margin(-0.1), "margin is -0.1"),
    (lambda: Relaxed(0), "k is 0"), (lambda: Relaxed(1, 2.0), "ratio is 2.0"),
    (lambda: Thresholds(single=-1.0), "single is -1.0"), (lambda: Thresholds(acc=0.0), "acc is 0.0"),
    (lambda: Cactus(-0.1), "delta is -0.1"),
])
def test_knobs_out_of_range(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_cactus_is_for_chains() -> None:
    rows: Any = lambda *key: np.array([0.5, 0.5])  # noqa: E731
    with pytest.raises(InvariantError, match="has 2 draws, 1 is allowed"):
        Cactus().verify(TokenTree.of([0, 1], [-1, -1], selection=IID), rows, rows, Rng(0), 0)


@pytest.mark.parametrize("p", [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
def test_cactus_at_its_ends(p: list[float]) -> None:
    """A certain token, an impossible one, and a residual without mass fall back to a law."""
    for delta in (0.0, 0.2, 50.0):
        found = one_node(Cactus(delta), np.array(p), np.array([0.5, 0.5]), 1, IID)
        assert found.law.sum() == pytest.approx(1.0) and np.all(found.law >= 0)


def test_lossy_rules_say_so() -> None:
    for rule in (Typical(), Margin(), Relaxed(), Thresholds(), Cactus()):
        assert not rule.lossless
    assert all(rule.lossless for rule, _ in EXACT)
