"""The suffix automaton and what a drafter makes of it."""

from __future__ import annotations

import pytest

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Feats
from hedgerow.draft.suffix import BUCKET, BUCKETS, END, LENGTHS, SuffixAutomaton, SuffixDrafter, SuffixMemory
from tests.unit.draft_kit import ask, step


def test_the_longest_repeated_ending_and_what_followed_it() -> None:
    a = SuffixAutomaton([1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 4, 8, 1, 2])
    match = a.ending()
    assert match[1] == 2
    assert a.successors(match) == ([4, 3], [2, 1])
    assert a.successors(a.follow(match, 4)) == ([8, 9], [1, 1])          # equal counts: the later first seen first
    assert a.follow(match, 7) == (0, 0)


def test_a_missing_edge_falls_back_to_a_shorter_match() -> None:
    a = SuffixAutomaton([5, 1, 2, 6, 1, 3, 4, 5, 1])
    match = a.ending()
    assert match[1] == 2                                                # "5 1" goes on with 2 only
    shorter = a.follow(match, 3)                                        # "1 3" is known, "5 1 3" is not
    assert shorter[1] == 2 and a.successors(shorter) == ([4], [1])


def test_a_match_at_the_very_end_settles_on_one_that_goes_on() -> None:
    a = SuffixAutomaton([7, 1, 8, 7, 2])
    end = a.follow(a.follow((0, 0), 7), 2)                              # "7 2" is the end of the text
    assert a.successors(end) == ([], []) and a.settle(end) == (0, 0)


def test_periodic_text_stays_small_and_quick() -> None:
    a = SuffixAutomaton([3] * 4000)
    assert len(a) == 4000 and len(a.link) <= 2 * 4000
    assert a.ending()[1] == 3999 and a.successors(a.ending())[0] == [3]


def test_buckets_cover_every_length() -> None:
    assert [BUCKET[n] for n in LENGTHS] == list(range(BUCKETS - 1))
    assert BUCKET[-1] == BUCKETS - 1 and sorted(BUCKET) == BUCKET


def test_children_are_what_followed_with_counts() -> None:
    drafter = SuffixDrafter()
    drafter.begin(0, [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 4, 8, 1, 2], Feats())
    got = ask(drafter)
    assert list(got) == [4, 3] and got[4] > got[3] > 0
    assert list(ask(drafter, [4])) == [8, 9]
    assert list(ask(drafter, [4, 8])) == [1]


def test_a_longer_match_is_surer() -> None:
    drafter = SuffixDrafter()
    drafter.begin(0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 30, 1, 2, 3, 4, 5, 6, 7, 8], Feats())
    drafter.begin(1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 30, 31, 32, 33, 34, 35, 8], Feats())
    assert ask(drafter, slot=0)[9] > ask(drafter, slot=1)[9] + 0.2


def test_finished_texts_serve_later_requests() -> None:
    drafter = SuffixDrafter()
    drafter.begin(0, [1, 2, 3], Feats())
    drafter.commit(0, step(3, [4]))
    drafter.commit(0, step(4, [5]))
    drafter.begin(1, [8, 2, 3], Feats())
    assert ask(drafter, slot=1) == {}                                   # not finished yet
    drafter.release(0)
    drafter.begin(1, [8, 2, 3], Feats())
    assert list(ask(drafter, slot=1)) == [4] and list(ask(drafter, [4], slot=1)) == [5]
    assert ask(drafter, [4, 5], slot=1) == {}                           # the text ended there: END is no token


def test_a_request_under_way_sees_what_finishes_meanwhile() -> None:
    drafter = SuffixDrafter()
    drafter.begin(0, [8, 7], Feats())
    drafter.begin(1, [1, 2, 3, 4], Feats())
    drafter.release(1)
    drafter.commit(0, step(7, [2]))
    drafter.commit(0, step(2, [3]))
    assert list(ask(drafter)) == [4]


def test_a_corpus_serves_everybody() -> None:
    drafter = SuffixDrafter(corpus=[1, 2, 3, 4])
    for tenant in ("a", "b"):
        drafter.begin(0, [9, 2, 3], Feats(), tenant)
        assert list(ask(drafter)) == [4]


def test_the_own_text_counts_beside_the_corpus() -> None:
    drafter = SuffixDrafter(corpus=[2, 3, 4])
    drafter.begin(0, [2, 3, 5, 2, 3], Feats())
    assert set(ask(drafter)) == {4, 5} and next(iter(ask(drafter))) == 5


def test_two_generations_are_kept() -> None:
    memory = SuffixMemory(0, limit=10, window=100)
    for first in (10, 20, 30):
        memory.add(list(range(first, first + 8)))
    assert memory.old is not None
    known = [a.next[0] for a in memory.shared]
    assert not any(10 in tokens for tokens in known)
    assert any(20 in tokens for tokens in known) and any(30 in tokens for tokens in known)
    assert all(END not in a.successors((0, 0))[0] for a in memory.shared)


def test_a_text_over_the_limit_leaves_its_end() -> None:
    memory = SuffixMemory(0, limit=5, window=100)
    memory.add(list(range(50)))
    assert set(memory.young.next[0]) == {45, 46, 47, 48, 49, END}


def test_memory_is_bounded() -> None:
    drafter = SuffixDrafter(limit=200, window=64)
    for request in range(60):
        drafter.begin(0, [request * 7 % 11 + i * request % 5 for i in range(100)], Feats())
        drafter.release(0)
    [memory] = drafter._known[""].memories
    assert sum(len(a.link) for a in memory.shared) <= 2 * 2 * (200 + 64)   # type: ignore[attr-defined]


def test_limit_zero_remembers_no_text() -> None:
    drafter = SuffixDrafter(limit=0)
    drafter.begin(0, [1, 2, 3, 4], Feats())
    drafter.release(0)
    drafter.begin(0, [9, 2, 3], Feats())
    assert ask(drafter) == {}


def test_only_the_window_of_a_prompt_is_indexed() -> None:
    drafter = SuffixDrafter(window=4)
    drafter.begin(0, [1, 2, 3, 9, 9, 9, 1, 2], Feats())
    assert 3 not in ask(drafter)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"limit": -1}, "limit is -1"), ({"window": 0}, "window 0"), ({"corpus": [1] * 262_145}, "262145 tokens")],
)
def test_wrong_sizes_are_refused(options: dict, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        SuffixDrafter(**options)
