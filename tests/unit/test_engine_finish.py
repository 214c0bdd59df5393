"""Stop conditions: ids, text, counts and reason agree, whatever the blocks in which tokens arrive."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.engine.finish import BROKEN, Finisher, StopRule
from tests.unit.engine_kit import Pieces, letters

ABC = letters("abcdefgh", special=1)                    # token 8 is special: no text
EOS = 8


def finisher(max_tokens: int = 99, tokenizer: Pieces | None = ABC, **rule: object) -> Finisher:
    return Finisher(StopRule(max_tokens=max_tokens, **rule), tokenizer)  # type: ignore[arg-type]


def state(f: Finisher) -> tuple[list[int], str, str | None]:
    return f.ids, f.text, f.reason


# ------------------------------------------------------------------------------------------------------------ stop ids

def test_eos_inside_a_block_ends_it_there() -> None:
    f = finisher(stop_ids=frozenset({EOS}))
    assert f.take([0, 1, EOS, 2, 3]) == 3
    assert state(f) == ([0, 1, EOS], "ab", "stop")
    assert f.remaining == 0


def test_any_of_several_stop_ids_ends_it() -> None:
    for stop in (EOS, 2, 5):
        f = finisher(stop_ids=frozenset({EOS, 2, 5}))
        assert f.take([0, stop, 1]) == 2
        assert (f.ids, f.reason) == ([0, stop], "stop")


def test_a_stop_id_with_text_keeps_its_text() -> None:
    f = finisher(stop_ids=frozenset({2}))
    f.take([0, 2, 1])
    assert state(f) == ([0, 2], "ac", "stop")


def test_without_stop_ids_eos_is_a_token_like_others() -> None:
    f = finisher(max_tokens=4)
    assert f.take([0, EOS, 1, EOS, 2]) == 4
    assert state(f) == ([0, EOS, 1, EOS], "ab", "length")


def test_nothing_is_taken_after_the_end() -> None:
    f = finisher(stop_ids=frozenset({EOS}))
    f.take([EOS])
    assert f.take([0, 1]) == 0
    assert state(f) == ([EOS], "", "stop")


# -------------------------------------------------------------------------------------------------- max and min tokens

def test_max_tokens_in_the_middle_of_a_block() -> None:
    f = finisher(max_tokens=3)
    assert f.take([0, 1]) == 2 and f.remaining == 1
    assert f.take([2, 3, 4]) == 1
    assert state(f) == ([0, 1, 2], "abc", "length")


def test_a_stop_before_the_cap_is_a_stop_and_nothing_after_it_leaks() -> None:
    f = Finisher(StopRule(max_tokens=5, stop_ids=frozenset({12})))
    assert f.take([10, 11, 12, 20, 21, 22]) == 3
    assert (f.ids, f.reason) == ([10, 11, 12], "stop")


def test_a_stop_beyond_the_cap_is_a_length() -> None:
    f = Finisher(StopRule(max_tokens=5, stop_ids=frozenset({12})))
    assert f.take([10, 11, 20, 21, 22, 12]) == 5
    assert (f.ids, f.reason) == ([10, 11, 20, 21, 22], "length")


def test_a_stop_at_the_cap_is_a_stop() -> None:
    f = Finisher(StopRule(max_tokens=3, stop_ids=frozenset({12})))
    assert f.take([10, 11, 12, 20]) == 3
    assert f.reason == "stop"
    g = finisher(max_tokens=2, stop=("ab",))
    g.take([0, 1, 2])
    assert state(g) == ([0, 1], "", "stop")


def test_min_tokens_lets_stop_ids_and_strings_pass() -> None:
    f = finisher(min_tokens=2, stop_ids=frozenset({EOS}), stop=("ab",))
    assert f.take([0, 1, 0, 1, 2]) == 4                 # the first "ab" is complete with token 2: not searched
    assert state(f) == ([0, 1, 0, 1], "ab", "stop")
    g = finisher(min_tokens=2, stop_ids=frozenset({EOS}))
    assert g.take([EOS, EOS, EOS, 1]) == 3
    assert g.reason == "stop"


def test_a_stop_string_begun_before_min_tokens_counts_when_completed_after_it() -> None:
    f = finisher(min_tokens=2, stop=("abc",))
    f.take([0, 1, 2, 3])
    assert state(f) == ([0, 1, 2], "", "stop")


# -------------------------------------------------------------------------------------------------------- stop strings

def test_a_stop_string_may_span_tokens_and_steps() -> None:
    f = finisher(stop=("bcd",))
    assert f.take([0, 1]) == 2 and f.text == "a"        # "b" may become "bcd": held back
    assert f.take([2]) == 1 and f.text == "a"
    assert f.take([3, 4]) == 1
    assert state(f) == ([0, 1, 2, 3], "a", "stop")


def test_text_held_for_a_stop_string_is_given_when_it_does_not_come() -> None:
    f = finisher(stop=("bcd",))
    f.take([0, 1, 2])
    assert f.text == "a"
    f.take([1])                                         # "abcb": "bc" is free, the new "b" is held
    assert f.text == "abc"
    f.take([5])
    assert f.text == "abcbf"


def test_text_held_at_the_end_is_given() -> None:
    f = finisher(max_tokens=3, stop=("bcd",))
    f.take([0, 1, 2])
    assert state(f) == ([0, 1, 2], "abc", "length")


def test_a_stop_string_inside_one_token_cuts_the_text_not_the_id() -> None:
    words = Pieces((b"hello", b" wor", b"ld! and", b" more"))
    f = finisher(tokenizer=words, stop=("ld!",))
    assert f.take([0, 1, 2, 3]) == 3
    assert state(f) == ([0, 1, 2], "hello wor", "stop")


def test_of_two_stop_strings_completed_by_one_token_the_text_ends_at_the_earlier() -> None:
    words = Pieces((b"x", b"abcd"))
    for stop in (("cd", "ab"), ("ab", "cd"), ("bc", "abcd")):
        f = finisher(tokenizer=words, stop=stop)
        f.take([0, 1, 0])
        assert state(f) == ([0, 1], "x", "stop")


def test_stop_strings_that_overlap_themselves() -> None:
    f = finisher(stop=("aab",))
    f.take([0, 0, 0])
    assert f.text == "a"
    f.take([1])
    assert state(f) == ([0, 0, 0, 1], "a", "stop")


def test_a_stop_string_completed_by_the_stop_token_itself() -> None:
    f = finisher(stop_ids=frozenset({2}), stop=("bc",))
    f.take([0, 1, 2, 3])
    assert state(f) == ([0, 1, 2], "a", "stop")


def test_a_stop_string_is_found_although_its_token_also_begins_a_character() -> None:
    # "\n" and the first byte of "é" in one token: the string is complete here, the character is not
    odd = Pieces((b"a", b"\n\xc3", b"\xa9"))
    f = finisher(tokenizer=odd, stop=("\n",))
    assert f.take([0, 1, 2]) == 2
    assert state(f) == ([0, 1], "a", "stop")


# ---------------------------------------------------------------------------------------------------------- characters

FACE = "🙂".encode()


def test_no_character_is_split() -> None:
    split = Pieces((b"a", *(FACE[i : i + 1] for i in range(4))))
    f = finisher(tokenizer=split)
    seen = [(f.take([t]), f.text)[1] for t in (0, 1, 2, 3, 4, 0)]
    assert seen == ["a", "a", "a", "a", "a🙂", "a🙂a"]


def test_the_complete_part_of_a_token_is_given_at_once() -> None:
    split = Pieces((b"ab" + FACE[:2], FACE[2:] + b"c"))
    f = finisher(tokenizer=split)
    f.take([0])
    assert f.text == "ab"
    f.take([1])
    assert f.text == "ab🙂c"


def test_an_incomplete_character_at_the_end_is_replaced() -> None:
    split = Pieces((b"a", FACE[:2], FACE[2:]))
    for end in ("length", "stop", "interrupted"):
        f = finisher(tokenizer=split, max_tokens=2 if end == "length" else 9)
        f.take([0, 1])
        if end != "length":
            assert f.text == "a"
            f.end(end)
        assert state(f) == ([0, 1], "a" + BROKEN, end)


def test_a_stop_string_may_hold_the_replacement_itself() -> None:
    split = Pieces((b"a", FACE[:2]))
    f = finisher(tokenizer=split, max_tokens=2, stop=("a" + BROKEN,))
    f.take([0, 1])
    assert state(f) == ([0, 1], "", "stop")


def test_wrong_bytes_in_the_middle_do_not_stall_the_stream() -> None:
    wrong = Pieces((b"a", b"\xff", b"b"))
    f = finisher(tokenizer=wrong)
    f.take([0, 1])
    assert f.text == "a"                                # may still be the start of something
    f.take([2])
    assert f.text == f"a{BROKEN}b"


def test_without_a_tokenizer_there_is_no_text() -> None:
    f = finisher(tokenizer=None, stop_ids=frozenset({EOS}))
    f.take([0, EOS])
    assert state(f) == ([0, EOS], "", "stop")


@dataclass(frozen=True)
class Counting:
    """Counts the tokens it is asked to decode."""

    inner: Pieces
    cost: list[int]
    eos: frozenset[int] = frozenset()

    def decode(self, ids: list[int]) -> str:
        self.cost.append(len(ids))
        return self.inner.decode(ids)


def test_decoding_does_not_grow_with_the_text() -> None:
    cost: list[int] = []
    f = Finisher(StopRule(max_tokens=999), Counting(ABC, cost))  # type: ignore[arg-type]
    for _ in range(200):
        f.take([0, 1])
    assert max(cost) <= 4


# ---------------------------------------------------------------------------------------------------------- properties

SOUP = Pieces((
    b"a", b"b", b"ab", b"ba", b"aab", b"", b"\xc3", b"\xa9", "é".encode(), b"b\xf0\x9f", b"\x99\x82a", b"\xff",
))
END = 5                                                 # the piece without text
TOKENS = st.lists(st.integers(0, len(SOUP.pieces) - 1), max_size=30)
STOPS = st.lists(st.text("abé🙂", min_size=1, max_size=4), max_size=3, unique=True)


@st.composite
def rules(draw: st.DrawFn) -> StopRule:
    max_tokens = draw(st.integers(1, 30))
    return StopRule(
        max_tokens, draw(st.integers(0, max_tokens)),
        frozenset(draw(st.sets(st.sampled_from([END, 0, 8]), max_size=2))), tuple(draw(STOPS)),
    )


def blocks(tokens: list[int], cuts: list[int]) -> list[list[int]]:
    out, at = [], 0
    for c in (*cuts, len(tokens)):
        out.append(tokens[at : at + c])
        at += c
    return [b for b in out if b]


def naive(rule: StopRule, tokens: list[int]) -> tuple[list[int], str, str | None]:
    """The same from whole decodes: after each token, decode everything and look for everything."""
    searched = ""                                       # complete text when the search began
    for n in range(1, len(tokens) + 1):
        ids = tokens[:n]
        full = SOUP.decode(ids)
        complete = full.rstrip(BROKEN)
        ended = ids[-1] in rule.stop_ids and n > rule.min_tokens
        if n <= rule.min_tokens:
            searched = complete
        else:
            found = [complete.find(s, max(0, len(searched) - len(s) + 1)) for s in rule.stop]
            if any(at >= 0 for at in found):
                return ids, full[: min(at for at in found if at >= 0)], "stop"
        if ended:
            return ids, full, "stop"
        if n == rule.max_tokens:
            return ids, full, "length"
    return tokens, SOUP.decode(tokens), None


@given(rules(), TOKENS, st.lists(st.integers(1, 6), max_size=12))
def test_blocks_do_not_matter(rule: StopRule, tokens: list[int], cuts: list[int]) -> None:
    one, many = Finisher(rule, SOUP), Finisher(rule, SOUP)
    for t in tokens:
        one.take([t])
    for block in blocks(tokens, cuts):
        kept = many.take(block)
        assert kept == len(block) or many.reason
    assert state(one) == state(many)


@given(rules(), TOKENS)
def test_it_is_what_whole_decodes_and_a_search_give(rule: StopRule, tokens: list[int]) -> None:
    f = Finisher(rule, SOUP)
    f.take(tokens)
    ids, text, reason = naive(rule, tokens)
    assert (f.ids, f.reason) == (ids, reason)
    if reason is None:                                  # still open: what is given is a head of what is there
        assert text.startswith(f.text)
        f.end("interrupted")
    assert f.text == text


@given(rules(), TOKENS, st.lists(st.integers(1, 6), max_size=12))
def test_a_stream_never_takes_anything_back(rule: StopRule, tokens: list[int], cuts: list[int]) -> None:
    f = Finisher(rule, SOUP)
    shown = ""
    for block in blocks(tokens, cuts):
        f.take(block)
        assert f.text.startswith(shown)
        shown = f.text
    if not f.reason:
        f.end("interrupted")
    assert f.text.startswith(shown)
    assert not any(s in f.text for s in rule.stop) or rule.min_tokens
    assert f.reason in ("stop", "length", "interrupted")
    assert len(f.ids) <= rule.max_tokens


BYTES = Pieces(tuple(bytes([i]) for i in range(256)))


@given(st.text("aé€🙂\n", max_size=8), st.lists(st.integers(1, 5), max_size=9))
def test_of_whole_text_no_piece_shows_half_a_character(text: str, cuts: list[int]) -> None:
    f = finisher(tokenizer=BYTES, stop=("🙂\n",))
    for block in blocks(list(text.encode()), cuts):
        f.take(block)
        assert BROKEN not in f.text and text.startswith(f.text)
    if not f.reason:
        f.end("interrupted")
    assert f.text == text.split("🙂\n")[0]


@pytest.mark.parametrize("reason", ["interrupted", "stop"])
def test_an_end_from_outside_keeps_what_there_is(reason: str) -> None:
    f = finisher(stop=("bcd",))
    f.take([0, 1, 2])
    f.end(reason)
    assert state(f) == ([0, 1, 2], "abc", reason)
