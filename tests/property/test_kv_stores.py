"""Both key-value stores against a list of lists: any order of calls, nothing lost, nothing moved that should stay."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hedgerow.core.errors import CapacityError, InvariantError
from hedgerow.systems.kv import KVStore
from hedgerow.systems.kv_contiguous import ContiguousKV
from hedgerow.systems.kv_paged import PagedKV
from tests.unit.models_kit import held

LAYERS, KV_HEADS, DIM, SLOTS, MAX_LEN, MAX_ROWS, PAGE = 2, 2, 3, 3, 20, 12, 4
SIZES = (LAYERS, KV_HEADS, DIM, SLOTS, MAX_LEN, MAX_ROWS)


def write(kv: KVStore, slot: int, at: int, numbers: list[int]) -> None:
    """Rows that carry a number each: + layer / 4 as keys, negative as values."""
    k = torch.tensor(numbers, dtype=torch.float32)[None, :, None].expand(KV_HEADS, len(numbers), DIM)
    for layer in range(kv.layers):
        kv.write(layer, slot, at, k[: kv.kv_heads, :, : kv.head_dim] + layer / 4, -k - layer / 4)


class Contiguous(RuleBasedStateMachine):
    """Every row that is written carries a number of its own, so that a misplaced row shows.

    A token is 0 or 1, so that texts often begin alike. `said` knows of every number what text it was committed behind.
    """

    def make(self) -> KVStore:
        return ContiguousKV(*SIZES)

    def may_run_out(self, slot: int, rows: int) -> bool:
        """Whether pages can be too few to stage these rows."""
        return False

    @initialize()
    def start(self) -> None:
        self.kv = self.make()
        self.held: dict[int, list[int]] = {}
        self.pending: dict[int, list[int]] = {}
        self.text: dict[int, list[int] | None] = {}       # of committed and pending rows; None: not to be found again
        self.tenant: dict[int, str] = {}
        self.said: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.number = 0

    def slot(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.held)))

    @rule()
    def acquire(self) -> None:
        if len(self.held) == SLOTS:
            with pytest.raises(CapacityError, match="all 3 key-value slots are in use"):
                self.kv.acquire()
            return
        slot = self.kv.acquire()
        assert slot not in self.held
        self.held[slot], self.pending[slot], self.text[slot] = [], [], None

    @precondition(lambda self: len(self.held) < SLOTS)
    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24), tenant=st.sampled_from("ab"))
    def reuse(self, tokens: list[int], tenant: str) -> None:
        slot = self.kv.acquire()
        known = self.kv.reuse(slot, tokens, tenant)
        assert len(known) == self.kv.length(slot) <= min(len(tokens) - 1, MAX_LEN)
        assert isinstance(self.kv, PagedKV) or not known
        for i, number in enumerate(known):
            assert self.said[number] == (tenant, tuple(tokens[: i + 1])), "another tenant's, or another text's"
        self.held[slot], self.pending[slot], self.tenant[slot] = list(known), [], tenant
        self.text[slot] = tokens[: len(known)]
        if known:
            with pytest.raises(InvariantError, match="only an empty one"):
                self.kv.reuse(slot, tokens, tenant)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slot = self.slot(data)
        self.kv.release(slot)
        del self.held[slot], self.pending[slot], self.text[slot]
        with pytest.raises(InvariantError, match="not in use"):
            self.kv.length(slot)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), rows=st.integers(1, 30), told=st.integers(0, 9))
    def stage(self, data: st.DataObject, rows: int, told: int) -> None:
        slot = self.slot(data)
        have = len(self.held[slot]) + len(self.pending[slot])
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows)) if told else None
        if have + rows > self.kv.room:
            with pytest.raises(CapacityError, match=rf"{have} tokens and {rows} more rows"):
                self.kv.stage(slot, rows, tokens)
            return
        try:
            self.kv.stage(slot, rows, tokens)
        except CapacityError as error:
            assert "more pages of 4 tokens" in str(error) and self.may_run_out(slot, rows)
            return
        numbers = list(range(self.number, self.number + rows))
        self.number += rows
        write(self.kv, slot, have, numbers)
        self.pending[slot] += numbers
        text = self.text[slot]
        self.text[slot] = None if text is None or tokens is None else text + tokens

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        slot = self.slot(data)
        pending, before = self.pending[slot], len(self.held[slot])
        rows = sorted(data.draw(st.sets(st.integers(0, max(len(pending) - 1, 0)), max_size=len(pending))))
        kept = [pending[r] for r in rows]
        if before + len(rows) > MAX_LEN:
            with pytest.raises(CapacityError, match="the context is 20"):
                self.kv.commit(slot, rows, kept)
            return
        self.kv.commit(slot, rows, kept)
        self.held[slot] += kept
        self.pending[slot] = []
        text = self.text[slot]
        if text is not None:
            text = self.text[slot] = text[:before] + [text[before + r] for r in rows]
            for i in range(before, len(text)):
                self.said[self.held[slot][i]] = (self.tenant[slot], tuple(text[: i + 1]))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        slot = self.slot(data)
        self.kv.drop(slot)
        self.pending[slot] = []
        if self.text[slot] is not None:
            del self.text[slot][len(self.held[slot]) :]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        src, dst = self.slot(data), self.slot(data)
        length = data.draw(st.integers(0, len(self.held[src])))
        self.kv.fork(src, dst, length)
        self.held[dst], self.pending[dst] = self.held[src][:length], []
        text = self.text[src]
        self.text[dst] = None if text is None else text[:length]
        if text is not None:
            self.tenant[dst] = self.tenant[src]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def wrong_calls_are_refused(self, data: st.DataObject) -> None:
        slot = self.slot(data)
        n = len(self.pending[slot])
        for rows in ([n], [-1], [0, 0], [1, 0]):
            with pytest.raises(InvariantError, match="commit of rows"):
                self.kv.commit(slot, rows)
        with pytest.raises(InvariantError, match="which holds"):
            self.kv.fork(slot, slot, len(self.held[slot]) + 1)

    @invariant()
    def holds_what_the_lists_hold(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check_integrity()
        assert self.kv.free_slots == SLOTS - len(self.held)
        for slot, tokens in self.held.items():
            assert self.kv.length(slot) == len(tokens) and self.kv.pending(slot) == len(self.pending[slot])
            want = torch.tensor(tokens + self.pending[slot], dtype=torch.float32)
            got = held(self.kv, slot, len(want))
            pages, size = self.kv.table(slot)
            for side in range(2 * LAYERS):
                sign, layer = 1 - 2 * (side % 2), side // 2
                assert torch.equal(got[side], sign * (want + layer / 4)[None, :, None].expand_as(got[side]))
                for t in range(len(want)):        # what a kernel reads through the table
                    row = self.kv.pool[side, pages[t // size], :, t % size]
                    assert torch.equal(row, got[side, :, t])


class Paged(Contiguous):
    """More pages than the slots can fill."""

    def make(self) -> KVStore:
        return PagedKV(*SIZES, page=PAGE)


class Tight(Contiguous):
    """Pages for a third of what the slots might hold, and few of them kept."""

    def make(self) -> KVStore:
        return PagedKV(*SIZES, page=PAGE, pages=9, keep=4)

    def may_run_out(self, slot: int, rows: int) -> bool:
        """Only if the pages of all slots and those still wanted are more than there are: kept ones are given up."""
        tables = {s: self.kv.table(s)[0].tolist() for s in self.held}
        length = len(self.held[slot])
        holders = Counter(page for table in tables.values() for page in table)
        shared = length % PAGE and holders[tables[slot][length // PAGE]] > 1
        wanted = -(-(length + len(self.pending[slot]) + rows) // PAGE) - len(tables[slot]) + bool(shared)
        return len(holders) + wanted > 9


for machine, examples in ((Contiguous, 30), (Paged, 60), (Tight, 60)):
    machine.TestCase.settings = settings(max_examples=examples, stateful_step_count=30, deadline=None)
TestContiguous, TestPaged, TestTight = Contiguous.TestCase, Paged.TestCase, Tight.TestCase


def test_committing_in_place_moves_nothing() -> None:
    kv = ContiguousKV(1, 1, 1, 1, 64, 16)
    slot = kv.acquire()
    kv.stage(slot, 5)
    kv.write(0, slot, 0, torch.arange(5.0).view(1, 5, 1), torch.zeros(1, 5, 1))
    place = kv.read(slot, 5).tensor(0).data_ptr()
    kv.commit(slot, [0, 1, 3])
    assert kv.read(slot, 3).tensor(0).data_ptr() == place
    assert held(kv, slot, 3)[0].flatten().tolist() == [0.0, 1.0, 3.0]


@pytest.mark.parametrize("kind", [ContiguousKV, PagedKV])
def test_a_pool_too_large_for_memory_is_refused_in_words(kind: type) -> None:
    with pytest.raises(CapacityError, match=r"key-value state of .* needs .* GB"):
        kind(32, 8, 128, 4, 10**12, 64)


@pytest.mark.parametrize("kind", [ContiguousKV, PagedKV])
def test_a_long_context_costs_nothing_until_it_is_used(kind: type) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kv = kind(16, 4, 64, 8, 32768, 64, torch.bfloat16)
    assert kv.pool.numel() * 2 > 4e9
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kB"


@pytest.mark.parametrize("kind", [ContiguousKV, PagedKV])
def test_damage_is_found(kind: type) -> None:
    kv = kind(1, 1, 1, 2, 8, 8)
    slot = kv.acquire()
    kv.check_integrity()
    kv._slots._free.append(slot)
    with pytest.raises(InvariantError, match="held and"):
        kv.check_integrity()
    kv._slots._free.pop()
    kv._slots[slot].length = 9
    with pytest.raises(InvariantError, match="holds 9"):
        kv.check_integrity()
