"""Token Recycling: what the target's rows teach."""

from __future__ import annotations

import pytest

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Needs
from hedgerow.core.shape import TreeShape
from hedgerow.draft.recycle import TEMPLATE_PATHS, Adjacency, RecycleDrafter, pair
from hedgerow.draft.retrieval import Taught
from tests.unit.draft_kit import ask, feats, step

PAPER = {"context": 1, "keep": 0.0, "leftovers": False}


def test_it_needs_the_eight_best_tokens_of_every_row() -> None:
    assert RecycleDrafter().needs == Needs(top_k=8)


def test_the_template_is_a_tree_of_the_papers_levels() -> None:
    shape = TreeShape.from_paths(TEMPLATE_PATHS)
    assert shape.level_sizes == (8, 21, 25, 15, 8, 3) and shape.nodes == 80
    assert len(set(TEMPLATE_PATHS)) == 80 and max(max(p) for p in TEMPLATE_PATHS) < 8


def test_prompt_rows_teach() -> None:
    drafter = RecycleDrafter(**PAPER)
    drafter.begin(0, [1, 2, 3, 1], feats([{7: 0.6, 8: 0.4}, {5: 1.0}, {1: 1.0}]))
    assert list(ask(drafter)) == [7, 8]                                 # after token 1
    assert list(ask(drafter, [2])) == [5]
    assert list(ask(drafter, [3])) == [1] and list(ask(drafter, [3, 1])) == [7, 8]


def test_an_unknown_token_has_no_children_and_token_0_is_a_token() -> None:
    drafter = RecycleDrafter(**PAPER)
    drafter.begin(0, [1, 2, 4], feats([{0: 1.0}, {4: 1.0}]))
    assert ask(drafter) == {} and ask(drafter, [9]) == {}
    assert list(ask(drafter, [1])) == [0] and ask(drafter, [1, 0]) == {}


def test_refused_nodes_teach_too() -> None:
    drafter = RecycleDrafter(**PAPER)
    drafter.begin(0, [1, 2], feats([{2: 1.0}]))
    drafter.commit(0, step(2, [5], paths=[(3,), (3, 4)], rows=[{5: 1.0}, {6: 1.0}, {7: 1.0}]))
    assert list(ask(drafter, [3])) == [6] and list(ask(drafter, [4])) == [7] and list(ask(drafter, [2])) == [5]


def test_the_last_write_wins_or_a_mean_is_kept() -> None:
    for keep, want in ((0.0, [8]), (0.5, [8, 7])):
        drafter = RecycleDrafter(context=1, keep=keep, leftovers=False)
        drafter.begin(0, [1, 2], feats([{7: 1.0}]))
        drafter.begin(1, [1, 2], feats([{8: 1.0}]))
        assert list(ask(drafter, [1])) == want
    adjacency = Adjacency(0, 8, keep=0.5)
    for ids in ([7], [8], [8]):
        adjacency.put(1, Taught((), ids, [1.0]))
    assert dict(zip(*adjacency.get(1)[:2], strict=True)) == {8: 0.75, 7: 0.25}      # type: ignore[index]


def test_eight_successors_are_kept() -> None:
    adjacency = Adjacency(0, 8, keep=0.5)
    for first in (10, 20):
        adjacency.put(1, Taught((), list(range(first, first + 8)), [0.125] * 8))
    vote = adjacency.vote(1)
    assert vote is not None and len(vote[1]) == 8
    assert list(vote[1]) == list(range(20, 28))                         # equal mass: the newest row


def test_two_tokens_of_context_tell_more_than_one() -> None:
    prompt, rows = [1, 5, 2, 5, 9], [{5: 1.0}, {7: 1.0}, {5: 1.0}, {8: 1.0}]
    one, two = RecycleDrafter(context=1, leftovers=False), RecycleDrafter(context=2, leftovers=False)
    for drafter in (one, two):
        drafter.begin(0, prompt, feats(rows))
    assert ask(one, [1, 5]) == ask(one, [2, 5])
    after_1, after_2 = ask(two, [1, 5]), ask(two, [2, 5])
    assert next(iter(after_1)) == 7 and next(iter(after_2)) == 8
    assert after_1[7] > after_2[7] and set(ask(two, [3, 5])) == {7, 8}  # backs off to the last token


def test_leftovers_are_proposed_at_the_position_they_were_said_for() -> None:
    for leftovers in (True, False):
        drafter = RecycleDrafter(leftovers=leftovers)
        drafter.begin(0, [1, 2], feats([{2: 1.0}]))
        tree = [(3,), (3, 4), (3, 4, 5)]
        drafter.commit(0, step(2, [6], tree, [{6: 1.0}, {40: 1.0}, {41: 1.0}, {42: 1.0}]))
        got = [list(ask(drafter, path)) for path in ((), (77,), (77, 78), (77, 78, 79))]
        assert got == ([[40], [41], [42], []] if leftovers else [[], [], [], []])
        drafter.commit(0, step(6, [7]))                                 # one position on
        got = [list(ask(drafter, path)) for path in ((), (77,), (77, 78))]
        assert got == ([[41], [42], []] if leftovers else [[], [], []])


def test_rows_of_the_accepted_path_are_no_leftovers() -> None:
    drafter = RecycleDrafter()
    drafter.begin(0, [1, 2], feats([{2: 1.0}]))
    drafter.commit(0, step(2, [3, 4], [(3,)], [{3: 1.0}, {4: 1.0}]))
    assert ask(drafter) == {} and ask(drafter, [99]) == {}


def test_contexts_cross_the_border_of_a_step() -> None:
    drafter = RecycleDrafter(leftovers=False)
    drafter.begin(0, [1, 2], feats([{2: 1.0}]))
    drafter.commit(0, step(2, [3, 4], [(3,)], [{3: 1.0}, {4: 1.0}]))
    drafter.commit(0, step(4, [5], [], [{5: 1.0}]))
    pairs = drafter._known[""].memories[0].orders[1]                    # type: ignore[attr-defined]
    keys = {pair(-1, 1): 2, pair(1, 2): 3, pair(2, 3): 4, pair(3, 4): 5}
    assert {k: pairs.get(k)[0][0] for k in keys} == keys and len(pairs) == 4


def test_fewer_prompt_rows_belong_to_the_prompts_end() -> None:
    drafter = RecycleDrafter(**PAPER)
    drafter.begin(0, [1, 2, 3, 9], feats([{5: 1.0}, {9: 1.0}]))         # the first token's row came from a cache
    assert ask(drafter, [1]) == {} and list(ask(drafter, [2])) == [5] and list(ask(drafter, [3])) == [9]


def test_impossible_and_negligible_tokens_are_left_out() -> None:
    drafter = RecycleDrafter(**PAPER)
    drafter.begin(0, [1, 2], feats([{7: 0.9995, 8: 0.0005}]))
    assert list(ask(drafter, [1])) == [7]


def test_what_was_learned_outlives_requests() -> None:
    drafter = RecycleDrafter(**PAPER)
    drafter.begin(0, [1, 2], feats([{7: 1.0}]))
    drafter.release(0)
    drafter.begin(0, [5, 1], feats([{1: 1.0}]))
    assert list(ask(drafter)) == [7]


def test_memory_is_bounded_and_what_is_used_stays() -> None:
    adjacency = Adjacency(0, limit=100)
    for context in range(1000):
        adjacency.put(context, Taught((), [context], [1.0]))
        adjacency.put(-1, Taught((), [5], [1.0]))
        assert len(adjacency) <= 200
    assert adjacency.vote(-1) is not None and adjacency.vote(999) is not None and adjacency.vote(0) is None


@pytest.mark.parametrize("options", [{"context": 3}, {"context": 0}, {"keep": 1.0}, {"keep": -0.1}, {"limit": 0}])
def test_wrong_sizes_are_refused(options: dict) -> None:
    with pytest.raises(UsageError, match="allowed: 1 or 2, 0 to below 1, 1 or more"):
        RecycleDrafter(**options)
