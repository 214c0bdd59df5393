"""Every refused combination, shown to be wrong: `recipe.check` refuses it, and the enumerated law is not the target's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from hedgerow.core.errors import HedgerowError, RecipeError
from hedgerow.core.parts import Grow, GrowSpec, Plan, Policy, Rule, View
from hedgerow.core.recipe import check
from hedgerow.core.rng import Purpose, Tape, enumerate_branches
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.policy.fixed import Fixed
from hedgerow.testing.law import Edited, Grown, Request, step_law, trees_law
from hedgerow.verify.joint import Block, Traversal
from hedgerow.verify.match import Match
from hedgerow.verify.onenode import draft_group
from hedgerow.verify.rejection import Rejection
from hedgerow.verify.selection import Canonical, GlobalResolution
from hedgerow.verify.transport import GreedyPlusOne, KSeq, SpecHub
from tests.law import cases
from tests.law.cases import GREEDY, HUB, IID, WITHOUT, Controlled, P, Q, SharedRace, cut_to, levels, scanning, shared

TOP_K, RETRIEVED = Selection.TOP_K, Selection.RETRIEVED


def said_to_be(selection: Selection) -> Callable[[TokenTree], TokenTree]:
    """The same tree with another selection written on it."""
    return lambda t: TokenTree.of(t.tokens, t.parent, t.survival, selection, t.source, t.origin, t.mult)


def spread(tree: TokenTree, selection: Selection) -> TokenTree:
    """Merged repeats of a one-level tree as siblings of their own, said to be of another selection."""
    tokens = np.repeat(tree.tokens, tree.mult)
    return TokenTree.of(tokens, [ROOT] * len(tokens), selection=selection)


# rule, what it is drawn by, what the rule is told: a rule can only be misled by a wrong label
MISLABELLED = [
    *((rule, how, said) for rule in (Rejection(), Traversal()) for how, said in (
        (TOP_K, IID), (TOP_K, WITHOUT), (HUB, IID), (HUB, WITHOUT), (GREEDY, IID), (GREEDY, WITHOUT), (WITHOUT, IID),
    )),
    *((KSeq(), how, IID) for how in (TOP_K, WITHOUT, HUB, GREEDY)),
    *((Canonical(), how, IID) for how in (TOP_K, WITHOUT, HUB, GREEDY)),
    *((GlobalResolution(), how, said) for how, said in (
        (TOP_K, IID), (TOP_K, WITHOUT), (WITHOUT, IID), (HUB, IID), (HUB, WITHOUT), (GREEDY, IID), (GREEDY, WITHOUT),
    )),
    *((SpecHub(), how, HUB) for how in (TOP_K, IID, WITHOUT, GREEDY)),
    *((GreedyPlusOne(), how, GREEDY) for how in (TOP_K, IID, HUB)),
]


@pytest.mark.parametrize(
    "rule, how, said", MISLABELLED, ids=[f"{r.name}, {h.label} as {s.label}" for r, h, s in MISLABELLED]
)
def test_children_of_another_selection(rule: Rule, how: Selection, said: Selection) -> None:
    if how not in rule.accepts:
        with pytest.raises(RecipeError, match=how.label):
            check("test", Grown.levels(2, selection=how), rule)
    policy = Edited(Grown.levels(2, selection=how), said_to_be(said))
    try:                                   # one of two pairs of laws shows it: some errors need a hub that p favours
        reports = [step_law(rule, Request(policy, p, q)) for p, q in ((P, Q), (cases.BENT_P, cases.BENT_Q))]
    except HedgerowError:
        return                             # the rule sees that these are no such children
    max(reports, key=lambda r: r.error).assert_biased(1e-3)


def test_every_refused_selection_has_a_row() -> None:
    """Retrieved children are as fixed as top-k's; coupled ones have a test of their own."""
    shown = {(rule.name, how) for rule, how, _ in MISLABELLED}
    for rule in (Rejection(), Traversal(), KSeq(), Canonical(), GlobalResolution(), SpecHub(), GreedyPlusOne()):
        for how in set(Selection) - rule.accepts - {RETRIEVED, Selection.COUPLED}:
            assert (rule.name, how) in shown, f"{rule.name} refuses {how.label} without a row that shows why"


def test_top_k_chains_and_retrieved_trees_under_rules_that_read_q() -> None:
    for rule in (Rejection(), Traversal(), Block(), KSeq(), Canonical(), GlobalResolution()):
        for how in (TOP_K, RETRIEVED):
            with pytest.raises(RecipeError):
                check("test", Grown.levels(1, 1, selection=how), rule)
        step_law(rule, Request(Edited(Grown.levels(1, 1, selection=TOP_K), said_to_be(IID)), P, Q)).assert_biased(1e-3)


@pytest.mark.parametrize("rule", [
    Traversal(), KSeq(), SpecHub(), Canonical(), Block(), Rejection(), GreedyPlusOne(), GlobalResolution(),
], ids=lambda r: r.name)
def test_coupled_children_share_numbers(rule: Rule) -> None:
    """Coupled draws of one level come from one race: cousins are not independent, nor is the next step's draft.

    Traversal judges a cousin after another was refused, so it is biased within a step; rules for other draws take
    them for what they are not. Top-down rules for draws without replacement (and chains) are exact in a single step;
    they are refused because the step after a refusal meets the same noise again, as
    `test_a_step_after_a_refusal_meets_coupled_noise_again` shows.
    """
    with pytest.raises(RecipeError, match="coupled"):
        check("test", SharedRace(), rule)
    if WITHOUT in rule.accepts and rule.name != "traversal":
        return
    said = WITHOUT if WITHOUT in rule.accepts else next(iter(rule.accepts))
    try:
        report = step_law(rule, Request(Edited(SharedRace(), said_to_be(said)), P, lambda path: Q(())))
    except HedgerowError:
        return
    report.assert_biased(1e-4)


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=lambda r: r.name)
def test_a_step_after_a_refusal_meets_coupled_noise_again(rule: Rule) -> None:
    """Two steps of a coupled chain of two: the second step's draft is the first's, refused or not.

    Context-free laws: the draft at position 2 is one race, x₂, in both steps. If the first step stops after position
    1, the second drafts x₂ again and judges it with fresh coins. For token-wise rejection the stop knows nothing of
    x₂; block verification stopped because of x₂, so what it drafts next is not a draw from q.
    """
    p, q = P(()), Q(())

    def two_tokens(tape: Tape) -> tuple[int, ...]:
        noise = [tape.categorical(q, at, Purpose.DRAFT) for at in (1, 2, 3)]
        first = TokenTree.of(noise[:2], [-1, 0], selection=WITHOUT)
        done = rule.verify(first, lambda v: p, lambda v, s: q, tape.request(0, 0), 0).committed(first)
        if len(done) == 1:
            second = TokenTree.of(noise[1:], [-1, 0], selection=WITHOUT)
            done += rule.verify(second, lambda v: p, lambda v, s: q, tape.request(0, 1), 1).committed(second)
        return tuple(done[:2])

    law = np.zeros((3, 3))
    for weight, pair in enumerate_branches(two_tokens):
        law[pair] += weight
    error = float(np.abs(law - np.outer(p, p)).max())
    assert error > 1e-3 if rule.name == "block" else error < 1e-12


@pytest.mark.parametrize("how", [IID, WITHOUT], ids=lambda s: s.label)
@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda r: r.name)
def test_siblings_dropped_for_what_they_are(rule: Rule, how: Selection) -> None:
    """Identity pruning, reranking by q of the drawn token, and keeping the likeliest of three."""

    def unlikely(tree: TokenTree) -> TokenTree:
        keep = [i for i in range(tree.nodes) if Q(())[tree.tokens[i]] >= 0.25]
        return TokenTree.of(tree.tokens[keep], tree.parent[keep], selection=how, mult=tree.mult[keep])

    def best_first(tree: TokenTree) -> TokenTree:
        order = sorted(range(tree.nodes), key=lambda i: -Q(())[tree.tokens[i]])
        return TokenTree.of(tree.tokens[order], tree.parent, selection=how, mult=tree.mult[order])

    def one_of(tree: TokenTree) -> TokenTree:
        return best_first(tree).prefix(1)

    for edit in (unlikely, best_first, one_of):
        policy = Edited(Grown.levels(2, selection=how), edit)
        with pytest.raises(RecipeError, match="drops or ranks"):
            check("test", policy, rule)
        step_law(rule, Request(policy, P, Q)).assert_biased(1e-3)
        step_law(Match(), Request(policy, P, Q)).assert_lossless()


def reversed_siblings(tree: TokenTree) -> TokenTree:
    """A one-level tree with its siblings in the opposite order."""
    return TokenTree.of(tree.tokens[::-1], tree.parent, selection=tree.selection[::-1], mult=tree.mult[::-1])


@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda r: r.name)
def test_reversed_siblings(rule: Rule) -> None:
    """Draws without replacement must be tried in draw order; i.i.d. draws may be tried in any fixed one."""
    policy = Edited(Grown.levels(2, selection=WITHOUT), reversed_siblings)
    step_law(rule, Request(policy, P, Q)).assert_biased(1e-3)
    drafted = [(w, spread(t, IID)) for w, t in draft_group(Q(()), 2, IID)]
    trees_law(rule, [(w, reversed_siblings(t)) for w, t in drafted], P, Q).assert_lossless()


@pytest.mark.parametrize("rule, how", [
    (Rejection(), IID), (Rejection(), WITHOUT), (Traversal(), IID), (Traversal(), WITHOUT), (Block(), IID),
    (KSeq(), IID), (SpecHub(), HUB), (GreedyPlusOne(), GREEDY), (Canonical(), IID), (GlobalResolution(), IID),
], ids=lambda x: getattr(x, "name", None))
def test_a_q_that_is_not_the_one_drawn_from(rule: Rule, how: Selection) -> None:
    """Drawn at one temperature and judged by the row of another; drawn from q and judged by a flat row."""
    width = 1 if rule.name == "block" else 2
    for shown in (cases.colder(Q, 0.5), cases.FLAT):
        request = replace(levels(width, 1, selection=how), shown=shown)
        try:
            report = step_law(rule, request)
        except HedgerowError:
            continue                       # a hub pair whose hub is another token, for one
        report.assert_biased(1e-3)


def test_q_of_one_for_children_that_were_drawn() -> None:
    """A drafter without rows must not pass q = 1 (a one-hot row at the drawn token) for a sampled chain."""
    drafted = trees_of_chain()
    for rule in (Rejection(), Block()):
        biased = []
        for weight, tree in drafted:
            path = tree.tokens.tolist()
            report = trees_law(rule, [(1.0, tree)], P, lambda at, path=path: np.eye(3)[path[len(at)]])
            biased.append(weight * report.law)
        law = np.sum(biased, axis=0)
        assert np.abs(law - report.target).max() < 1e-12, "exact for each chain as a fixed one: match in disguise"
        mixed = trees_law(rule, drafted, P, lambda at: np.ones(3))
        mixed.assert_biased(1e-3)


def trees_of_chain() -> list[tuple[float, TokenTree]]:
    from hedgerow.testing.law import trees

    return trees(levels(1, 1, selection=IID))


# ------------------------------------------------------------------------------------------------ admission

PAIRS = TreeShape.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)])


def ranked(selection: Selection = WITHOUT) -> Request:
    """Pairs of pairs in the order of what their slots were worth before their tokens were seen."""
    return Request(Fixed(PAIRS, selection, order="path"), P, Q)


@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda r: r.name)
def test_a_total_fixed_before_drafting_is_exact_and_a_scan_is_not(rule: Rule) -> None:
    """Two requests share a budget: ranking by survival is exact, stopping at an unlikely token is biased."""
    exact, scan = shared(6), scanning(Q, 0.25)
    small = levels(2)
    check("test", ranked().policy, rule, exact)
    step_law(rule, ranked(), small, controller=exact).assert_lossless()
    with pytest.raises(RecipeError, match="after it has seen"):
        check("test", ranked().policy, rule, scan)
    step_law(rule, ranked(), small, controller=scan).assert_biased(1e-3)


def test_match_stands_a_scan() -> None:
    check("test", ranked().policy, Match(), scanning(Q, 0.25))
    step_law(Match(), levels(2, 1), levels(2), controller=scanning(Q, 0.25)).assert_lossless()


@pytest.mark.parametrize("total", [3, 5, 9])
def test_any_total_is_exact(total: int) -> None:
    step_law(Rejection(), ranked(), levels(2), controller=shared(total)).assert_lossless()
    step_law(Traversal(), ranked(), levels(2), controller=shared(total)).assert_lossless()


def test_a_total_that_depends_on_the_other_request_only_is_still_biased_together() -> None:
    """Each request alone looks right; their joint law is not the product: why the batch is enumerated as one."""

    def peek(trees: Any) -> list[int]:
        likely = trees[1].tokens[0] == 2
        return [trees[0].nodes if likely else 0, trees[1].nodes if trees[0].nodes and trees[0].tokens[0] == 2 else 0]

    report = step_law(Rejection(), levels(1), levels(1), controller=Controlled(8, peek, looks_ahead=True))
    report.assert_biased(1e-3)


def test_a_survival_that_saw_its_own_token_must_not_decide_a_cut() -> None:
    """The stored survival of a drawn node is its slot's value; with q of the token in it a cut prunes by identity."""

    @dataclass(frozen=True)
    class SawItsToken:
        policy: Policy
        reads_tokens: bool = False

        @property
        def selections(self) -> frozenset[Selection]:
            return self.policy.selections

        def grow(self, view: View, plan: Plan) -> Grow:
            tree = yield from self.policy.grow(view, plan)
            seen = [
                float(np.prod([Q(tuple(int(tree.tokens[j]) for j in tree.path(i)[:d]))[tree.tokens[v]]
                               for d, v in enumerate(tree.path(i))]))
                for i in range(tree.nodes)
            ]
            order = sorted(range(tree.nodes), key=lambda i: (tree.depth[i], -seen[i], i))
            index = {v: i for i, v in enumerate(order)} | {ROOT: ROOT}
            return TokenTree.of(
                tree.tokens[order], [index[int(tree.parent[v])] for v in order], [seen[v] for v in order], WITHOUT
            )

        def spec(self) -> GrowSpec | None:
            return None

    request = Request(SawItsToken(Grown.levels(2, selection=WITHOUT)), P, Q)
    step_law(Rejection(), request, controller=cut_to(1)).assert_biased(1e-3)


@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda r: r.name)
def test_merged_repeats_must_not_be_cut(rule: Rule) -> None:
    """How many nodes an i.i.d. group has depends on its draws, so a cut by nodes keeps or breaks it by what it is."""
    request = ranked(IID)
    with pytest.raises(RecipeError, match="repeat"):
        check("test", request.policy, rule, cut_to(1))
    step_law(rule, request, controller=cut_to(1)).assert_biased(1e-3)
    step_law(rule, request, controller=cut_to(4)).assert_biased(1e-3)
    keeps = Controlled(64, lambda trees: [t.nodes for t in trees], cuts=False)
    check("test", request.policy, rule, keeps)
    step_law(rule, request, controller=keeps).assert_lossless()


@pytest.mark.parametrize("rule, how", [(GreedyPlusOne(), GREEDY), (SpecHub(), HUB), (Rejection(), WITHOUT)],
                         ids=lambda x: getattr(x, "name", None))
def test_groups_of_known_size_may_be_cut_anywhere(rule: Rule, how: Selection) -> None:
    """A broken greedy-plus-one group is judged as the fixed one it has become, a broken hub pair as one draw."""
    for nodes in range(6):
        step_law(rule, levels(2, 2, selection=how), controller=cut_to(nodes)).assert_lossless()


def test_a_cut_greedy_group_judged_as_if_whole_is_biased() -> None:
    policy = Edited(Edited(Grown.levels(2, selection=GREEDY), lambda t: t.prefix(1)), said_to_be(GREEDY))
    step_law(GreedyPlusOne(), Request(policy, P, Q)).assert_biased(1e-3)


def test_lossy_rules_are_not_refused_for_what_they_are() -> None:
    from hedgerow.verify.lossy import Cactus

    policy = Edited(Grown.levels(1, selection=IID), lambda t: t)
    check("test", policy, Cactus(0.1), scanning(Q, 0.25))
