"""Every mutant of a production rule, and every wrong port written out, is told from the right rule by the law test."""

from __future__ import annotations

import pytest

from hedgerow.core.errors import HedgerowError
from hedgerow.core.parts import Rule
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.testing.law import Report, Request, step_law
from hedgerow.verify import joint, match, rejection, selection, transport, walk
from tests.law.cases import IID, WITHOUT, Given, P, Q, levels
from tests.law.mutants import BOTH, CHAINS, MUTANTS, Mutant
from tests.law.wrong import ArgmaxFirst, CumulatedCoin, PortOfBlock, PortOfTraversal


def verdict(rule: Rule, cases: list[Request] | tuple[Request, ...]) -> str:
    """How the law test kills a rule: the first case that is biased or breaks; "" if it survives them all."""
    for case in cases:
        try:
            report: Report = step_law(rule, case)
        except (HedgerowError, ValueError, IndexError, TypeError, AssertionError) as e:
            return f"{type(e).__name__}: {e}"
        if report.error > 1e-9:
            return str(report)
    return ""


def test_there_are_at_least_twenty() -> None:
    assert len(MUTANTS) >= 20
    assert len({(m.name, m.rule) for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.rule.split(':')[1]}: {m.name}")
def test_mutant_is_killed(mutant: Mutant) -> None:
    rule = mutant.load()
    killed = verdict(rule, mutant.cases)
    assert killed, f"{mutant.name!r} in {mutant.module} survives {len(mutant.cases)} cases"


@pytest.mark.parametrize("rule", sorted({m.rule for m in MUTANTS}))
def test_the_unchanged_rule_survives_the_same_cases(rule: str) -> None:
    """What kills the mutants is not that they are reloaded: the same machinery without a change keeps the law."""
    ours = [m for m in MUTANTS if m.rule == rule]
    same = Mutant("unchanged", ours[0].module, ours[0].old, ours[0].old, rule, ())
    made = same.load()
    for case in {id(c): c for m in ours for c in m.cases}.values():
        step_law(made, case).assert_lossless()


def test_loading_a_mutant_leaves_the_package_alone() -> None:
    before = [walk, match, rejection, joint, selection, transport]
    MUTANTS[0].load()
    from hedgerow.verify import joint as j
    from hedgerow.verify import walk as w

    assert before[0] is w and before[3] is j
    with pytest.raises(LookupError, match="0 times"):
        Mutant("gone", "walk", "no such text", "", "match:Match", ()).load()


@pytest.mark.parametrize("rule, cases", [
    (PortOfTraversal(deepest=True), BOTH), (PortOfTraversal(ratio=True), BOTH),
    (PortOfTraversal(last_first=True), BOTH), (PortOfBlock(), CHAINS), (PortOfBlock(stops_early=True), CHAINS),
    (ArgmaxFirst(), BOTH),
    (CumulatedCoin(), (Request(Given(TokenTree.of([0, 0, 1], [-1, -1, -1], selection=Selection.RETRIEVED)), P, Q),)),
], ids=["deepest", "ratio", "last first", "block", "stops early", "argmax first", "cumulated coin"])
def test_wrong_ports_are_told(rule: Rule, cases: tuple[Request, ...]) -> None:
    assert verdict(rule, [c for c in cases if IID not in c.policy.selections])


def test_the_ports_of_traversal_are_right_without_their_mistake() -> None:
    """The comparison is fair, and small cases hide the mistakes: one level, or a chain, and the ports look exact."""
    step_law(PortOfTraversal(), levels(2, 2)).assert_lossless()
    for wrong in (PortOfTraversal(deepest=True), PortOfTraversal(ratio=True)):
        step_law(wrong, levels(2, selection=WITHOUT)).assert_lossless()
    step_law(CumulatedCoin(), levels(2, 2, selection=Selection.TOP_K)).assert_lossless()
