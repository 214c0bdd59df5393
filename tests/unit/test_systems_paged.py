"""Pages: what is shared, when it is copied, what is kept for later requests and what is given up first."""

from __future__ import annotations

import pytest
import torch

from hedgerow.core.errors import CapacityError, InvariantError
from hedgerow.systems.kv_paged import PagedKV
from tests.unit.models_kit import held

PAGE = 4


def store(slots: int = 4, max_len: int = 32, **options: int) -> PagedKV:
    return PagedKV(1, 1, 2, slots, max_len, 8, page=PAGE, **options)


def say(kv: PagedKV, slot: int, tokens: list[int], base: float = 0.0) -> None:
    """Commit tokens whose keys are the tokens themselves, plus `base`."""
    at = kv.length(slot)
    kv.stage(slot, len(tokens), tokens)
    k = torch.tensor(tokens, dtype=torch.float32)[None, :, None].expand(1, len(tokens), 2) + base
    kv.write(0, slot, at, k, -k)
    kv.commit(slot, range(len(tokens)))


def told(kv: PagedKV, tokens: list[int], tenant: str = "") -> int:
    """A slot that was asked to begin with what is known of tokens."""
    slot = kv.acquire()
    kv.reuse(slot, tokens, tenant)
    return slot


def text(kv: PagedKV, slot: int) -> list[float]:
    return held(kv, slot, kv.length(slot))[0, 0, :, 0].tolist()


def pages(kv: PagedKV, slot: int) -> list[int]:
    return kv.table(slot)[0].tolist()


def test_a_fork_shares_every_page_until_one_of_them_writes() -> None:
    kv = store()
    a, b = kv.acquire(), kv.acquire()
    say(kv, a, list(range(10)))
    kv.fork(a, b, 10)
    assert pages(kv, a) == pages(kv, b) and [kv._pages.holders(p) for p in pages(kv, a)] == [2, 2, 2]
    say(kv, b, [70, 71])
    assert pages(kv, a)[:2] == pages(kv, b)[:2] and pages(kv, a)[2] != pages(kv, b)[2]
    say(kv, a, [90])
    assert text(kv, a) == [*range(10), 90] and text(kv, b) == [*range(10), 70, 71]
    kv.release(a)
    assert text(kv, b) == [*range(10), 70, 71]
    kv.release(b)
    kv.check_integrity()
    assert kv.free_pages == kv._pages.count, "nobody asked to keep a text"


def test_a_shorter_fork_does_not_see_what_comes_behind_it() -> None:
    kv = store()
    a, b = kv.acquire(), kv.acquire()
    say(kv, a, list(range(10)))
    kv.fork(a, b, 5)
    say(kv, b, [50, 51, 52, 53])
    assert text(kv, b) == [0, 1, 2, 3, 4, 50, 51, 52, 53] and text(kv, a) == list(range(10))


def test_a_fork_onto_itself_goes_back() -> None:
    kv = store()
    a = told(kv, [0])
    say(kv, a, list(range(10)))
    kv.fork(a, a, 6)
    say(kv, a, [7])
    assert text(kv, a) == [0, 1, 2, 3, 4, 5, 7]
    kv.check_integrity()


def test_a_fork_from_the_middle_is_kept_as_what_it_became() -> None:
    kv = store()
    a, b = told(kv, [0]), kv.acquire()
    say(kv, a, list(range(12)))
    kv.fork(a, b, 6)
    say(kv, b, list(range(60, 66)))
    kv.release(a)
    kv.release(b)
    c = told(kv, [*range(6), *range(60, 66), 0])
    assert text(kv, c) == [*range(6), *range(60, 66)]
    assert text(kv, told(kv, [*range(12), 0])) == list(range(12))
    kv.check_integrity()


def test_pending_rows_of_before_a_fork_move_with_the_page() -> None:
    kv = store()
    a, b = kv.acquire(), kv.acquire()
    say(kv, a, [0, 1, 2, 3, 4])
    kv.stage(a, 1)
    kv.write(0, a, 5, torch.full((1, 1, 2), 50.0), torch.zeros(1, 1, 2))
    kv.fork(a, b, 5)
    kv.stage(a, 1)
    kv.write(0, a, 6, torch.full((1, 1, 2), 51.0), torch.zeros(1, 1, 2))
    kv.commit(a, [0, 1])
    assert text(kv, a) == [0, 1, 2, 3, 4, 50, 51] and text(kv, b) == [0, 1, 2, 3, 4]
    kv.check_integrity()


def test_requests_that_run_share_full_pages() -> None:
    kv = store()
    a = told(kv, list(range(11)))
    say(kv, a, list(range(11)))
    b = told(kv, [*range(9), 30, 31])
    assert kv.length(b) == 8 and pages(kv, b) == pages(kv, a)[:2], "the last page of `a` may still change"
    say(kv, b, [8, 30, 31])
    assert text(kv, a) == list(range(11)) and text(kv, b) == [*range(9), 30, 31]
    kv.check_integrity()


def test_a_text_that_ended_is_known_to_its_last_token() -> None:
    kv = store()
    a = told(kv, list(range(9)))
    say(kv, a, list(range(9)))
    say(kv, a, [20, 21])                  # generated
    kv.release(a)
    b = told(kv, [*range(9), 20, 21, 40, 41])
    assert kv.length(b) == 11 and text(kv, b) == [*range(9), 20, 21]
    c = told(kv, list(range(9)))
    assert kv.length(c) == 8, "one token has to run"
    say(kv, b, [40, 41])
    say(kv, c, [8, 9])
    assert text(kv, b) == [*range(9), 20, 21, 40, 41] and text(kv, c) == list(range(10))
    kv.check_integrity()


def test_tenants_do_not_find_each_other_s_texts() -> None:
    kv = store()
    a = told(kv, list(range(9)), "a")
    say(kv, a, list(range(9)))
    kv.release(a)
    assert kv.length(told(kv, list(range(9)), "b")) == 0
    assert kv.length(told(kv, list(range(9)), "a")) == 8


def test_the_same_tokens_behind_other_tokens_are_another_page() -> None:
    kv = store()
    a = told(kv, [0])
    say(kv, a, [1, 1, 1, 1, 2, 2, 2, 2])
    kv.release(a)
    assert kv.length(told(kv, [2, 2, 2, 2, 9])) == 0
    assert kv.length(told(kv, [1, 1, 1, 1, 2, 2, 2, 2, 9])) == 8


def test_two_that_run_the_same_text_at_once_keep_one_of_their_pages() -> None:
    kv = store()
    a, b = told(kv, list(range(8))), told(kv, list(range(8)))
    say(kv, a, list(range(8)))
    say(kv, b, list(range(8)))
    assert not set(pages(kv, a)) & set(pages(kv, b)), "each stays with its own"
    kv.release(a)
    kv.release(b)
    kv.check_integrity()
    assert kv.free_pages == kv._pages.count - 2


def test_unknown_tokens_end_what_is_kept() -> None:
    kv = store()
    a = told(kv, [0])
    say(kv, a, [1, 2, 3, 4])
    kv.stage(a, 4)
    kv.commit(a, range(4))
    kv.release(a)
    assert kv.length(told(kv, [1, 2, 3, 4, 0, 0, 0, 0, 0])) == 4
    kv.check_integrity()


def test_the_text_used_least_recently_is_given_up_first() -> None:
    kv = store(keep=4)
    for first in (10, 20):
        slot = told(kv, [first])
        say(kv, slot, [first + i for i in range(8)])
        kv.release(slot)
    kv.release(told(kv, [*range(10, 18), 0]))                 # of use again
    slot = told(kv, [30])
    say(kv, slot, [30, 31, 32, 33])
    kv.release(slot)
    assert [kv.length(told(kv, [*range(f, f + 8), 0])) for f in (10, 20)] == [8, 4], "a text loses its end first"
    kv.check_integrity()


def test_kept_pages_are_given_up_for_those_that_run() -> None:
    kv = store(slots=2, pages=6, keep=6)
    a = told(kv, [0])
    say(kv, a, list(range(16)))
    kv.release(a)
    assert kv.free_pages == 2
    b = kv.acquire()
    say(kv, b, [7] * 20)
    assert text(kv, b) == [7] * 20
    kv.check_integrity()


def test_too_few_pages_are_told_in_words_and_nothing_is_lost() -> None:
    kv = store(slots=3, pages=6)
    a, b = kv.acquire(), kv.acquire()
    say(kv, a, list(range(14)))
    say(kv, b, [5, 6])
    with pytest.raises(CapacityError, match=r"slot \d needs 2 more pages of 4 tokens; 1 of 6 are free"):
        kv.stage(b, 8, [0] * 8)
    kv.check_integrity()
    assert kv.pending(b) == 0 and text(kv, a) == list(range(14)) and text(kv, b) == [5, 6]
    say(kv, b, [7, 8, 9])
    kv.release(a)
    say(kv, b, [1] * 8)
    assert text(kv, b) == [5, 6, 7, 8, 9, *[1] * 8]


def test_a_full_pool_holds_what_its_slots_may_hold_with_everything_kept() -> None:
    """The last page of a known text is copied only if there is a page to spare; else the text is forgotten for it."""
    kv = store(slots=1, max_len=16, keep=99)
    a = told(kv, [0])
    say(kv, a, list(range(14)))
    kv.release(a)
    b = told(kv, [*range(14), 0])
    assert kv.length(b) == 14
    kv.stage(b, 10, [0] * 10)
    assert len(pages(kv, b)) == 6 == kv._pages.count
    assert text(kv, b) == list(range(14))
    kv.check_integrity()


def test_damage_to_pages_is_found() -> None:
    kv = store()
    a = told(kv, [0])
    say(kv, a, list(range(10)))
    page = pages(kv, a)[0]
    kv._pages.hold(page)
    with pytest.raises(InvariantError, match=f"page {page} is held 2 times and counted as .3."):
        kv.check_integrity()
    kv._pages.give(page)
    kv._slots[a].pages.pop()
    with pytest.raises(InvariantError, match="has 2 pages for 10 tokens"):
        kv.check_integrity()
