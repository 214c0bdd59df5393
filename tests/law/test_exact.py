"""Every combination called exact: the enumerated law of the whole step is the target's, to 1e-12."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.control.controller import Fixed as FixedController
from hedgerow.core.parts import Rule
from hedgerow.core.recipe import check
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.policy.fixed import Fixed
from hedgerow.policy.sampled import Rollouts, StochasticBeam
from hedgerow.policy.slots import Slots
from hedgerow.testing.law import Grown, Request, separate, step_law, trees_law
from hedgerow.verify.joint import Block, Traversal
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection
from hedgerow.verify.selection import Canonical, GlobalResolution
from hedgerow.verify.transport import GreedyPlusOne, KSeq, SpecHub
from tests.law.cases import GREEDY, HUB, IID, OTHER, WITHOUT, Given, Mixed, P, Q, colder, levels, penalised

PAIRS = TreeShape.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)])
BENT = TreeShape.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0)])


def adaptive(selection: Selection) -> Request:
    """More children below some tokens than below others: the shape may know what was revealed."""
    return Request(Grown(lambda path: 2 if path in ((), (0,)) else int(path == (2,)), selection), P, Q)


QAWARE: dict[str, tuple[Rule, Request]] = {}
for _rule in (Rejection(), Traversal()):
    for _how in (IID, WITHOUT):
        QAWARE |= {
            f"{_rule.name}, {_how.label}, pairs of pairs": (_rule, levels(2, 2, selection=_how)),
            f"{_rule.name}, {_how.label}, three then one": (_rule, levels(3, 1, selection=_how)),
            f"{_rule.name}, {_how.label}, chain of three": (_rule, levels(1, 1, 1, selection=_how)),
            f"{_rule.name}, {_how.label}, one then two": (_rule, levels(1, 2, 1, selection=_how)),
            f"{_rule.name}, {_how.label}, adaptive": (_rule, adaptive(_how)),
            f"{_rule.name}, {_how.label}, filters and penalties": (_rule, levels(2, 2, selection=_how, p=penalised)),
            f"{_rule.name}, {_how.label}, filtered draft": (_rule, levels(2, 2, selection=_how, q=penalised)),
            f"{_rule.name}, {_how.label}, two drafters": (_rule, levels(1, 1, selection=_how, sources=(0, 1))),
            f"{_rule.name}, {_how.label}, cold draft": (_rule, levels(2, 1, selection=_how, q=colder(Q, 0.3))),
            f"{_rule.name}, {_how.label}, fixed shape": (_rule, Request(Fixed(BENT, _how, order="path"), P, Q)),
        }
    QAWARE |= {
        f"{_rule.name}, drafters that draw differently": (_rule, Request(Mixed(), P, [Q, OTHER])),
        f"{_rule.name}, two drafters, two each": (_rule, Request(Mixed((IID, WITHOUT), 1, 2), P, [Q, OTHER])),
        f"{_rule.name}, rollouts": (_rule, Request(Rollouts(0, 2, 2), P, Q, nodes=64)),
        f"{_rule.name}, three rollouts": (_rule, Request(Rollouts(0, 3, 2), P, Q, nodes=64)),
        f"{_rule.name}, delayed rollouts": (_rule, Request(Rollouts(1, 2, 2), P, Q, nodes=64)),
        f"{_rule.name}, slots": (_rule, Request(Slots(fanout=2, batch=2), P, Q, nodes=5)),
        f"{_rule.name}, slots of three": (_rule, Request(Slots(fanout=3), P, Q, nodes=4)),
        f"{_rule.name}, capped shape": (_rule, Request(Fixed(PAIRS, WITHOUT, order="path"), P, Q, nodes=5)),
    }
QAWARE |= {
    "block, iid": (Block(), levels(1, 1, 1, selection=IID)),
    "block, without_replacement": (Block(), levels(1, 1, 1, selection=WITHOUT)),
    "block, filters and penalties": (Block(), levels(1, 1, 1, p=penalised)),
    "block, cut short": (Block(), replace(levels(1, 1, 1), nodes=2)),
    "block, nothing drafted": (Block(), levels()),
    "kseq, pairs of pairs": (KSeq(), levels(2, 2, selection=IID)),
    "kseq, three then one": (KSeq(), levels(3, 1, selection=IID)),
    "kseq, chain": (KSeq(), levels(1, 1, 1, selection=IID)),
    "kseq, filters and penalties": (KSeq(), levels(2, 1, selection=IID, p=penalised)),
    "kseq, rollouts": (KSeq(), Request(Rollouts(0, 3, 2), P, Q, nodes=64)),
    "spechub, pairs of pairs": (SpecHub(), levels(2, 2, selection=HUB)),
    "spechub, one token in the draft": (SpecHub(), levels(2, 2, selection=HUB, q=lambda path: np.eye(3)[len(path)])),
    "spechub, filters and penalties": (SpecHub(), levels(2, 2, selection=HUB, p=penalised, q=penalised)),
    "greedy_plus_one, pairs of pairs": (GreedyPlusOne(), levels(2, 2, selection=GREEDY)),
    "greedy_plus_one, three then one": (GreedyPlusOne(), levels(3, 1, selection=GREEDY)),
    "greedy_plus_one, without_replacement": (GreedyPlusOne(), levels(3, 1)),
    "greedy_plus_one, chain": (GreedyPlusOne(), levels(1, 1, selection=GREEDY)),
    "greedy_plus_one, filters and penalties": (
        GreedyPlusOne(), levels(2, 2, selection=GREEDY, p=penalised, q=penalised)),
    "canonical, pairs of pairs": (Canonical(), levels(2, 2, selection=IID)),
    "canonical, no program": (Canonical(head=0), levels(2, 1, selection=IID)),
    "canonical, chain": (Canonical(), levels(1, 1, selection=IID)),
    "canonical, filters and penalties": (Canonical(), levels(2, 1, selection=IID, p=penalised, q=penalised)),
    "global_resolution, iid": (GlobalResolution(), levels(2, 2, selection=IID)),
    "global_resolution, without_replacement": (GlobalResolution(), levels(2, 2)),
    "global_resolution, three then one": (GlobalResolution(), levels(3, 1, selection=IID)),
    "global_resolution, filters and penalties": (GlobalResolution(), levels(2, 1, p=penalised, q=penalised)),
}


@pytest.mark.parametrize("rule, request_", QAWARE.values(), ids=QAWARE)
def test_rules_that_read_q(rule: Rule, request_: Request) -> None:
    check("test", request_.policy, rule)
    report = step_law(rule, request_).assert_lossless()
    assert abs(report.law.sum() - 1.0) < 1e-12


@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda r: r.name)
def test_the_stochastic_beam(rule: Rule) -> None:
    """RSD-S: the level's beam interleaves its nodes' draws by masses alone."""
    for width, depth in ((2, 2), (3, 1)):
        step_law(rule, Request(StochasticBeam(width, depth), P, Q, nodes=64)).assert_lossless()


def test_the_stochastic_beam_draws_paths_without_replacement() -> None:
    """The first path of the beam is a draw from q's paths; the pair is Plackett–Luce over paths."""
    from hedgerow.testing.law import trees

    law: dict[tuple[tuple[int, ...], ...], float] = {}
    for weight, tree in trees(Request(StochasticBeam(2, 2), P, Q, nodes=64)):
        paths = [tuple(int(tree.tokens[i]) for i in tree.path(v)) for v in range(tree.nodes) if tree.depth[v] == 2]
        key = tuple(sorted(paths))
        law[key] = law.get(key, 0.0) + weight
    mass = {(a, b): float(Q(())[a] * Q((a,))[b]) for a in range(3) for b in range(3)}
    for (a, b), found in law.items():
        want = mass[a] * mass[b] * (1 / (1 - mass[a]) + 1 / (1 - mass[b]))
        assert abs(found - want) < 1e-12
    assert abs(sum(law.values()) - 1.0) < 1e-12


@pytest.mark.parametrize("rule", [Rejection(), Traversal(), Match()], ids=lambda r: r.name)
def test_repeated_draws_as_siblings_of_their_own(rule: Rule) -> None:
    """A repeat that is not merged, with or without children of its own, is judged like any other draw."""
    drafted = separate(lambda path: (2, 1)[len(path)] if len(path) < 2 else 0, Q)
    trees_law(rule, drafted, P, Q).assert_lossless()


MATCHED: dict[str, Request] = {
    "top_k, a dozen nodes": levels(3, 3, selection=Selection.TOP_K),
    "top_k, chain": levels(1, 1, 1, 1, selection=Selection.TOP_K),
    "top_k, filters and penalties": levels(2, 2, selection=Selection.TOP_K, p=penalised),
    "retrieved, any tree": Request(Given(TokenTree.of(
        [2, 0, 1, 1, 2, 0, 0, 2, 1, 1, 0, 2], [-1, -1, 0, 0, 1, 1, 2, 2, 4, 8, 5, 3], selection=Selection.RETRIEVED,
    )), P, Q),
    "retrieved, a token twice": Request(Given(TokenTree.of(
        [1, 1, 0, 2], [-1, -1, 0, 1], selection=Selection.RETRIEVED)), P, Q),
    "retrieved, nothing": Request(Given(TokenTree.empty()), P, Q),
    "iid": levels(2, 2, selection=IID),
    "without_replacement": levels(2, 2),
    "hub": levels(2, 2, selection=HUB),
    "greedy_plus_one": levels(2, 2, selection=GREEDY),
    "two drafters": Request(Mixed((Selection.TOP_K, WITHOUT)), P, [Q, OTHER]),
    "rollouts": Request(Rollouts(0, 2, 2), P, Q, nodes=64),
}


@pytest.mark.parametrize("request_", MATCHED.values(), ids=MATCHED)
def test_match_takes_everything(request_: Request) -> None:
    check("test", request_.policy, Match())
    step_law(Match(), request_).assert_lossless()


@pytest.mark.parametrize("rule", [Rejection(), Traversal(), Match()], ids=lambda r: r.name)
def test_the_fixed_controller_with_two_requests(rule: Rule) -> None:
    """The production controller: caps before drafting, nothing cut, two requests in one batch."""
    controller = FixedController(nodes=3)
    for how in (IID, WITHOUT):
        check("test", levels(2, 2, selection=how).policy, rule, controller)
        report = step_law(rule, levels(2, 2, selection=how), levels(2, selection=how), controller=controller)
        assert report.assert_lossless().horizon == (3, 2)


def test_edges_of_the_two_laws() -> None:
    """p = q, disjoint supports, one-hot rows, a draft whose support is used up."""
    one_hot = {"p": lambda path: np.eye(3)[(len(path) + 1) % 3]}
    cases: list[dict[str, Any]] = [
        {"q": P}, {"p": lambda path: np.array([0.0, 1.0, 0.0]), "q": lambda path: np.array([0.5, 0.0, 0.5])}, one_hot,
        {"q": lambda path: np.array([1.0, 0.0, 0.0])}, {"q": lambda path: np.array([0.3, 0.7, 0.0])},
        {"p": lambda path: np.array([0.6, 0.0, 0.4]), "q": lambda path: np.array([0.3, 0.7, 0.0])},
    ]
    for laws in cases:
        for rule, how in (
            (Rejection(), IID), (Rejection(), WITHOUT), (Traversal(), IID), (Traversal(), WITHOUT), (KSeq(), IID),
            (SpecHub(), HUB), (GreedyPlusOne(), GREEDY), (Canonical(), IID), (GlobalResolution(), WITHOUT),
            (GlobalResolution(), IID), (Match(), IID),
        ):
            report = step_law(rule, levels(2, selection=how, **laws)).assert_lossless()
            if "q" in laws and laws["q"] is P and rule.needs_q:
                assert report.accepted[0] > 1.0 - 1e-9, f"{rule.name} refuses draws from the target's own law"


def test_expected_accepted_orders_the_rules() -> None:
    """What the theory says: block ≥ token-wise, the transports ≥ rejection, traversal ≥ rejection on these."""
    def accepted(rule: Rule, *counts: int, selection: Selection = IID) -> float:
        return step_law(rule, levels(*counts, selection=selection)).accepted[0]

    assert accepted(Block(), 1, 1, 1) > accepted(Rejection(), 1, 1, 1) + 1e-3
    assert abs(accepted(Block(), 1, 1, 1) - accepted(Traversal(), 1, 1, 1)) < 1e-12
    assert accepted(Traversal(), 2, 2) > accepted(Rejection(), 2, 2) + 1e-3
    assert accepted(KSeq(), 2) <= accepted(Canonical(), 2) + 1e-9
    assert abs(accepted(GlobalResolution(), 2) - accepted(Canonical(), 2)) < 1e-12
    assert accepted(Rejection(), 2, selection=WITHOUT) <= accepted(GlobalResolution(), 2, selection=WITHOUT) + 1e-9


def test_nodes_of_one_depth_never_share_numbers() -> None:
    """Traversal judges many nodes at one position; the tape raises if one number is asked for twice."""
    tree = TokenTree.of([0, 1, 0, 1, 0, 1], [ROOT, ROOT, 0, 0, 1, 1], selection=WITHOUT)
    step_law(Traversal(), Request(Given(tree), P, Q))
