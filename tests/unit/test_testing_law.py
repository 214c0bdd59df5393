"""hedgerow.testing.law: the helper itself, on rules whose laws are known by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Verdict
from hedgerow.core.rng import Purpose, Rng
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.testing.law import Edited, Grown, Request, pathwise, separate, step_law, trees, trees_law
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection
from tests.law.cases import OTHER, P, Q, cut_to, levels, shared


@dataclass(frozen=True)
class TakesFirst:
    """Follows the first child always, then draws: its law is the drafter's."""

    name: str = "takes first"
    lossless: bool = True
    needs_q: bool = False
    accepts: frozenset[Selection] = frozenset(Selection)

    def verify(self, tree: TokenTree, p: Any, q: Any, rng: Any, position: int) -> Verdict:
        path, node = list[int](), ROOT
        while tree.children[node + 1]:
            node = tree.children[node + 1][0]
            path.append(node)
        return Verdict(tuple(path), rng.categorical(p(node), position + len(path) + 1, Purpose.TARGET), "bonus")


def test_the_law_of_a_rule_that_believes_its_drafter() -> None:
    report = step_law(TakesFirst(), levels(1), name="believer")
    want = np.concatenate([Q(())[t] * P((t,)) for t in range(3)])
    assert np.allclose(report.law, want, atol=1e-15) and report.horizon == (2,) and report.accepted == (1.0,)
    assert report.error == pytest.approx(np.abs(want - report.target).max())
    assert report.tv == pytest.approx(np.abs(Q(()) - P(())).sum() / 2)
    assert report.assert_biased() is report
    with pytest.raises(AssertionError, match="believer: BIASED"):
        report.assert_lossless()


def test_a_lossless_report_in_words() -> None:
    report = step_law(Match(), levels(2, 1))
    assert str(report).startswith("match on without_replacement: lossless, max error")
    assert report.assert_lossless() is report and report.leaves > 100
    with pytest.raises(AssertionError, match="lossless"):
        report.assert_biased()
    assert "nothing drafted" in str(step_law(Match(), levels()))


def test_two_requests_without_a_controller_are_independent() -> None:
    both = step_law(Match(), levels(1), levels(2)).assert_lossless()
    assert both.law.shape == (9, 9) and len(both.accepted) == 2
    assert np.allclose(both.law, np.outer(both.law.sum(axis=1), both.law.sum(axis=0)))


def test_controllers_plan_and_cut() -> None:
    plan_only = step_law(Match(), levels(2, 2), controller=replace(shared(99), each=1)).assert_lossless()
    assert plan_only.accepted[0] == step_law(Match(), levels(1)).accepted[0], "the plan's cap reaches the policy"
    cut = step_law(Match(), levels(2, 2), controller=cut_to(0)).assert_lossless()
    assert cut.accepted == (0.0,)
    none = step_law(Match(), levels(2, 2), controller=replace(shared(99), each=0)).assert_lossless()
    assert none.accepted == (0.0,) and none.horizon == (1,)


def test_positions_and_sources_reach_the_rule() -> None:
    request = replace(levels(1, 1, sources=(0, 1)), position=40)
    step_law(Rejection(), request).assert_lossless()
    assert step_law(Rejection(), replace(request, q=[OTHER, Q])).accepted != step_law(Rejection(), request).accepted


def test_cases_that_are_too_large() -> None:
    with pytest.raises(UsageError, match="3 requests; one or two"):
        step_law(Match(), levels(1), levels(1), levels(1))
    with pytest.raises(UsageError, match="make the case smaller"):
        step_law(Match(), levels(3, 3), limit=1000)
    with pytest.raises(UsageError, match="more than 40 branches"):
        step_law(Match(), levels(1, 1), levels(1), controller=cut_to(1, 1), limit=40)


def test_a_step_that_uses_a_number_twice() -> None:
    class Twice(TakesFirst):
        def verify(self, tree: TokenTree, p: Any, q: Any, rng: Any, position: int) -> Verdict:
            super().verify(tree, p, q, rng, position)
            return super().verify(tree, p, q, rng, position)

    with pytest.raises(ValueError, match="used twice"):
        step_law(Twice(), levels(1))

    class DraftsNumber(TakesFirst):
        def verify(self, tree: TokenTree, p: Any, q: Any, rng: Any, position: int) -> Verdict:
            rng.categorical(P(()), position + 1, Purpose.DRAFT)
            return super().verify(tree, p, q, rng, position)

    with pytest.raises(ValueError, match="used twice"):
        step_law(DraftsNumber(), levels(1))


def test_trees_enumerated_elsewhere() -> None:
    drafted = trees(levels(2, 1))
    assert sum(w for w, _ in drafted) == pytest.approx(1.0)
    assert np.allclose(trees_law(Rejection(), drafted, P, Q).law, step_law(Rejection(), levels(2, 1)).law)
    with pytest.raises(UsageError, match="must sum to 1"):
        trees_law(Rejection(), drafted[1:], P, Q)
    lone = separate(lambda path: int(not path), Q)
    assert [round(w, 9) for w, _ in lone] == [0.2, 0.3, 0.5]


def test_edits_and_specs() -> None:
    grown = Grown.levels(2)
    edited = Edited(grown, lambda t: t.prefix(1))
    assert edited.reads_tokens and not grown.reads_tokens and edited.spec() is None and grown.spec() is None
    assert edited.selections == grown.selections == {Selection.IID}
    assert {t.nodes for _, t in trees(Request(edited, P, Q))} == {1}


def test_a_budget_takes_draws_from_the_last_groups() -> None:
    for nodes in (0, 1, 3, 6):
        assert {t.nodes for _, t in trees(replace(levels(2, 2), nodes=nodes))} == {nodes}


def test_path_by_path() -> None:
    seeds = [Rng(seed) for seed in range(40)]
    assert pathwise(Match(), levels(2, 2), seeds).assert_lossless().leaves == 40
    assert pathwise(TakesFirst(), levels(1), seeds).assert_biased().error == 1.0
    pathwise(Match(), levels(1, 1, sources=(0, 1)), seeds).assert_lossless()
