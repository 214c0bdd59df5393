"""Lockstep: one drafter call per source and round for the whole batch, and contracts that are checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Ask, Children, Frontier, Grow, GrowSpec, Plan, Sampling, View
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.engine.lockstep import lockstep
from tests.unit.engine_kit import Levels, Scripted, chain


def view(i: int, text: Sequence[int] = (0, 1)) -> View:
    return View(i, i, text[-1], len(text) - 1, 99, Sampling(), Rng(0))


def scripted(*trees: dict[int, Any]) -> Scripted:
    """A drafter that knows requests 0, 1, … and drafts `trees[i]` for request i."""
    d = Scripted(lambda text: trees[text[0]])
    d.text = {i: [i, 1] for i in range(len(trees))}
    return d


def views(n: int) -> list[View]:
    return [view(i) for i in range(n)]


PLAN = Plan(15)


def test_many_requests_cost_one_call_a_round() -> None:
    d = scripted(chain([5, 6, 7]), {}, {2: {3: {}}, 4: {}}, chain([9]))
    trees = lockstep(Levels(), [d], views(4), [PLAN] * 4)
    assert [t.tokens.tolist() for t in trees] == [[5, 6, 7], [], [2, 4, 3], [9]]
    assert d.calls == [[0, 1, 2, 3], [0, 2, 3], [0, 2], [0]]       # a round for each depth, and one that finds nothing
    assert trees[2].parent.tolist() == [-1, -1, 0]


def test_a_plan_of_no_nodes_asks_nobody() -> None:
    d = scripted(chain([5]), chain([6]))
    trees = lockstep(Levels(), [d], views(2), [Plan(0), Plan(0, reason="rest")])
    assert [t.nodes for t in trees] == [0, 0] and d.calls == []
    trees = lockstep(Levels(), [d], views(2), [Plan(0), Plan(1)])
    assert [t.tokens.tolist() for t in trees] == [[], [6]] and d.calls == [[1]]


def test_a_plan_of_no_nodes_does_not_even_wake_the_policy() -> None:
    d = scripted(chain([5]), chain([6]))
    trees = lockstep(Mixed({0: [0], 1: [0]}), [d], views(2), [Plan(0), Plan(0)])
    assert [t.nodes for t in trees] == [0, 0] and d.calls == []


def test_an_empty_batch() -> None:
    assert lockstep(Levels(), [], [], []) == []


def test_caps_are_the_plans() -> None:
    d = scripted(*[{1: {2: {3: {}}, 4: {}}, 5: {6: {}}}] * 4)
    plans = [Plan(15), Plan(3), Plan(15, depth=1), Plan(15, width=1)]
    trees = lockstep(Levels(), [d], views(4), plans)
    assert [t.tokens.tolist() for t in trees] == [[1, 5, 2, 4, 6, 3], [1, 5, 2], [1, 5], [1, 2, 3]]


@dataclass(frozen=True)
class Mixed:
    """Asks the sources of `order`, one a level, below the first child."""

    order: dict[int, Sequence[int]]                    # request -> sources
    selections: frozenset[Selection] = frozenset({Selection.RETRIEVED})
    reads_tokens = False

    def grow(self, view: View, plan: Plan) -> Grow:
        ids, at = [], -1
        for source in self.order[view.request]:
            got = yield Frontier([at], [1], source, Selection.RETRIEVED)
            ids += got.ids
            at = got.ids[0]
        return view.growth.tree(ids, [1.0] * len(ids))

    def spec(self) -> GrowSpec | None:
        return None


def test_mixed_sources_are_each_asked_once_a_round() -> None:
    trees = chain([1, 2, 3]), chain([4, 5, 6]), chain([7, 8, 9])
    a, b = scripted(*trees), scripted(*trees)
    grown = lockstep(Mixed({0: [0, 1, 0], 1: [1, 0], 2: [0, 0, 0]}), [a, b], views(3), [PLAN] * 3)
    assert [t.tokens.tolist() for t in grown] == [[1, 2, 3], [4, 5], [7, 8, 9]]
    assert [t.source.tolist() for t in grown] == [[0, 1, 0], [1, 0], [0, 0, 0]]
    # round 1: source 0 serves requests 0 and 2, then source 1 serves 0 (its second level) and 1 together
    assert [sorted(c) for c in a.calls] == [[0, 2], [0, 1, 2], [2]]
    assert [sorted(c) for c in b.calls] == [[0, 1]]


def test_aux_and_selection_reach_the_policy() -> None:
    seen: list[Children] = []

    @dataclass(frozen=True)
    class Looks(Levels):
        def grow(self, view: View, plan: Plan) -> Grow:
            got = yield Frontier([-1, -1], [2, 1], 0, Selection.COUPLED)
            seen.append(got.children)
            assert got.ids == range(0, sum(got.children.count))
            return view.growth.tree(got.ids, [0.5] * len(got.ids))

    @dataclass
    class Answers:
        calls: list[int] = field(default_factory=list)

        def children(self, asks: Sequence[Ask]) -> Children:
            self.calls.append(len(asks))
            n = len(asks)
            return Children(
                [1, 1] * n, list(range(2 * n)), [-0.5] * 2 * n, list(range(2 * n)), [2] * 2 * n,
                {"entropy": [float(i) for i in range(2 * n)]},
            )

    d = Answers()
    trees = lockstep(Looks(), [d], views(2), [PLAN] * 2)  # type: ignore[list-item]
    assert d.calls == [2]
    assert [c.aux["entropy"] for c in seen] == [[0.0, 1.0], [2.0, 3.0]]
    assert [t.origin.tolist() for t in trees] == [[0, 1], [2, 3]]
    assert trees[1].mult.tolist() == [2, 2] and trees[1].selection.tolist() == [Selection.COUPLED] * 2


# --------------------------------------------------------------------------------------------------- broken contracts

@dataclass(frozen=True)
class Returns(Levels):
    """Yields one frontier, then returns a tree that nobody asked for."""

    first: Frontier = field(default_factory=lambda: Frontier([-1], [1], 0, Selection.RETRIEVED))
    tree: Any = None

    def grow(self, view: View, plan: Plan) -> Grow:
        yield self.first
        return self.tree


CHAIN3 = TokenTree.of([1, 2, 3], [-1, 0, 1])
FLAT3 = TokenTree.of([1, 2, 3], [-1, -1, -1])


@pytest.mark.parametrize(("tree", "plan", "words"), [
    (CHAIN3, Plan(2), "3 nodes of depth 3 and width 1; its plan allows 2"),
    (CHAIN3, Plan(9, depth=2), "depth 2"),
    (FLAT3, Plan(9, width=2), "width 2"),
    (None, Plan(9), "returned None"),
])
def test_a_tree_that_breaks_its_plan(tree: Any, plan: Plan, words: str) -> None:
    with pytest.raises(InvariantError, match=words):
        lockstep(Returns(tree=tree), [scripted({1: {}})], views(1), [plan])


@pytest.mark.parametrize(("frontier", "words"), [
    (Frontier([-1], [1], 1, Selection.RETRIEVED), "asks source 1, but the recipe has 1 drafters"),
    (Frontier([-1], [1], -1, Selection.RETRIEVED), "asks source -1"),
    (Frontier([-1], [1], 0, Selection.IID), "selection iid, which it does not declare; declared: retrieved"),
    (Frontier([0], [1], 0, Selection.RETRIEVED), "nodes from -1 to -1"),
    (Frontier([-2], [1], 0, Selection.RETRIEVED), "nodes from -1 to -1"),
    (Frontier([-1, -1], [1], 0, Selection.RETRIEVED), "a count each"),
])
def test_a_frontier_that_breaks_the_contract(frontier: Frontier, words: str) -> None:
    policy = Returns(first=frontier, tree=CHAIN3, selections=frozenset({Selection.RETRIEVED}))
    with pytest.raises(InvariantError, match=words):
        lockstep(policy, [scripted({1: {}})], views(1), [PLAN])


@dataclass
class Answer:
    """A drafter with one answer to everything."""

    answer: Children

    def children(self, asks: Sequence[Ask]) -> Children:
        return self.answer


GOOD = Children([2, 2], [1, 2, 3, 4], [-1.0] * 4)


@pytest.mark.parametrize(("answer", "words"), [
    (replace(GOOD, count=[2]), r"counts \[2\]"),
    (replace(GOOD, count=[2, 2, 0]), r"counts \[2, 2, 0\]"),
    (replace(GOOD, count=[3, 1]), r"asked for \[2, 2\] children"),
    (replace(GOOD, count=[2, -1]), r"counts \[2, -1\]"),
    (replace(GOOD, token=[1, 2, 3]), "counts 4 children, but its arrays have lengths"),
    (replace(GOOD, log_q=[-1.0]), "counts 4 children"),
    (replace(GOOD, origin=[0]), "counts 4 children"),
    (replace(GOOD, mult=[1] * 5), "counts 4 children"),
])
def test_an_answer_that_breaks_its_frontier(answer: Children, words: str) -> None:
    with pytest.raises(InvariantError, match=words):
        lockstep(Levels(fanout=2), [Answer(answer)], views(2), [PLAN] * 2)  # type: ignore[list-item]


def test_the_good_answer_is_taken() -> None:
    trees = lockstep(Levels(fanout=2), [Answer(GOOD)], views(2), [Plan(2, depth=1)] * 2)  # type: ignore[list-item]
    assert [t.tokens.tolist() for t in trees] == [[1, 2], [3, 4]]
