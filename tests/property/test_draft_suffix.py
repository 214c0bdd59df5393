"""The automaton against counting by hand, on every short text over a small alphabet."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hedgerow.draft.suffix import WALK, SuffixAutomaton

texts = st.lists(st.integers(0, 2), min_size=1, max_size=24)


def occurrences(text: list[int], part: tuple[int, ...]) -> list[int]:
    """Where `part` ends in `text`."""
    n = len(part)
    return [i for i in range(n, len(text) + 1) if tuple(text[i - n : i]) == part]


def longest(text: list[int], ending: list[int], proper: bool) -> int:
    """Length of the longest suffix of `ending` that occurs in `text` (twice if it is the text's own)."""
    sizes = range(len(ending) - proper, 0, -1)
    return next((n for n in sizes if len(occurrences(text, tuple(ending[len(ending) - n :]))) > proper), 0)


@given(texts)
def test_the_ending_is_the_longest_one_seen_before(text: list[int]) -> None:
    a = SuffixAutomaton()
    for i, token in enumerate(text, 1):
        a.extend(token)
        assert len(a) == i and a.ending()[1] == longest(text[:i], text[:i], proper=True)
    assert len(a.link) <= 2 * len(text) + 1


@given(texts, st.lists(st.integers(0, 3), max_size=8))
def test_following_any_tokens_keeps_the_longest_match(text: list[int], path: list[int]) -> None:
    a = SuffixAutomaton(text)
    match, read = (0, 0), []
    for token in path:
        match = a.follow(match, token)
        read.append(token)
        assert match[1] == longest(text, read, proper=False)


@given(texts, st.lists(st.integers(0, 2), max_size=5))
def test_successors_are_counted(text: list[int], path: list[int]) -> None:
    assert len(text) <= WALK
    a = SuffixAutomaton(text)
    match = (0, 0)
    for token in path:
        match = a.follow(match, token)
    v, n = a.settle(match)
    part = tuple(path[len(path) - n :])
    want = Counter(text[i] for i in occurrences(text, part) if i < len(text))
    assert dict(zip(*a.successors((v, n)), strict=True)) == dict(want)
    if match[1] > n:                      # it settled because the longer match stands at the very end only
        longer = tuple(path[len(path) - n - 1 :])
        assert occurrences(text, longer) == [len(text)]


@given(texts, texts)
def test_a_match_stays_valid_while_the_automaton_grows(text: list[int], more: list[int]) -> None:
    a = SuffixAutomaton(text)
    match = (0, 0)
    for token in more[:4]:
        match = a.follow(match, token)
    read = more[:4][len(more[:4]) - match[1] :]
    for token in more:
        a.extend(token)
    v, n = a.settle(match)
    whole = text + more
    part = tuple(read[len(read) - n :])
    want = Counter(whole[i] for i in occurrences(whole, part) if i < len(whole))
    assert n > 0 or not any(len(occurrences(whole, tuple(read[i:]))) > 1 for i in range(len(read)))
    if len(whole) <= WALK:
        assert dict(zip(*a.successors((v, n)), strict=True)) == dict(want)
