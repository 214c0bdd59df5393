"""Prompt lookup as a tree."""

from __future__ import annotations

import pytest

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Feats
from hedgerow.draft.ngram import NgramDrafter, NgramReader
from tests.unit.draft_kit import ask, step


def test_the_longest_ngram_wins() -> None:
    drafter = NgramDrafter(longest=3)
    drafter.begin(0, [1, 2, 3, 50, 2, 3, 60, 3, 70, 1, 2, 3], Feats())
    assert list(ask(drafter)) == [50]                                   # only "1 2 3" is asked, not "2 3" or "3"


def test_all_its_matches_make_a_tree_and_the_newest_counts_twice() -> None:
    drafter = NgramDrafter(longest=2)
    drafter.begin(0, [1, 2, 50, 1, 2, 60, 1, 2, 50, 1, 2, 70, 1, 2], Feats())
    got = ask(drafter)
    assert list(got) == [50, 70, 60] and got[50] == pytest.approx(got[70]) and got[70] > got[60]
    assert list(ask(drafter, [60])) == [1] and list(ask(drafter, [60, 1, 2])) == [50]


def test_a_match_grows_with_the_path_and_is_surer_for_it() -> None:
    drafter = NgramDrafter(longest=2)
    drafter.begin(0, [1, 2, 3, 4, 5, 6, 9, 1, 2], Feats())
    deep = ask(drafter, [3, 4, 5])
    assert list(deep) == [6] and deep[6] > ask(drafter)[3]


def test_a_lost_match_is_looked_up_again() -> None:
    drafter = NgramDrafter(longest=3)
    drafter.begin(0, [7, 8, 40, 1, 2, 3, 1, 2], Feats())
    assert list(ask(drafter, [7])) == [8] and list(ask(drafter, [7, 8])) == [40]
    assert ask(drafter, [99]) == {}


def test_the_end_of_the_text_proposes_nothing() -> None:
    drafter = NgramDrafter()
    drafter.begin(0, [1, 2, 3], Feats())
    assert ask(drafter) == {}


def test_committed_tokens_are_indexed_at_once() -> None:
    drafter = NgramDrafter()
    drafter.begin(0, [1, 2], Feats())
    for root, token in ((2, 3), (3, 1), (1, 2)):
        drafter.commit(0, step(root, [token]))
    assert list(ask(drafter)) == [3]


def test_the_index_is_bounded_and_keeps_the_newest() -> None:
    drafter = NgramDrafter(longest=1, matches=2)
    drafter.begin(0, [1, 50, 1, 60, 1, 70, 1], Feats())
    assert list(ask(drafter)) == [70, 60]
    reader = drafter._slots[0].readers[0]
    assert isinstance(reader, NgramReader) and max(len(p) for p in reader.ends.values()) == 2


def test_only_the_window_of_a_prompt_is_indexed() -> None:
    drafter = NgramDrafter(window=3)
    drafter.begin(0, [1, 50, 9, 9, 1], Feats())
    assert ask(drafter) == {}


@pytest.mark.parametrize("options", [{"longest": 0}, {"matches": 0}, {"window": 0}])
def test_wrong_sizes_are_refused(options: dict) -> None:
    with pytest.raises(UsageError, match="each may be 1 or more"):
        NgramDrafter(**options)
