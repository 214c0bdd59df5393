"""The key-value store against a list of lists: any order of calls, nothing lost, nothing moved that should stay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hedgerow.core.errors import CapacityError, InvariantError
from hedgerow.systems.kv_contiguous import ContiguousKV

LAYERS, KV_HEADS, DIM, SLOTS, MAX_LEN, MAX_ROWS = 2, 2, 3, 3, 20, 12


class Store(RuleBasedStateMachine):
    """Every row that is written carries a number of its own, so that a misplaced row shows."""

    @initialize()
    def start(self) -> None:
        self.kv = ContiguousKV(LAYERS, KV_HEADS, DIM, SLOTS, MAX_LEN, MAX_ROWS)
        self.held: dict[int, list[int]] = {}
        self.pending: dict[int, list[int]] = {}
        self.number = 0

    @rule()
    def acquire(self) -> None:
        if len(self.held) == SLOTS:
            with pytest.raises(CapacityError, match="all 3 key-value slots are in use"):
                self.kv.acquire()
            return
        slot = self.kv.acquire()
        assert slot not in self.held
        self.held[slot], self.pending[slot] = [], []

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        self.kv.release(slot)
        del self.held[slot], self.pending[slot]
        with pytest.raises(InvariantError, match="not in use"):
            self.kv.length(slot)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), rows=st.integers(1, 30))
    def stage(self, data: st.DataObject, rows: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        have = len(self.held[slot]) + len(self.pending[slot])
        if have + rows > self.kv.room:
            with pytest.raises(CapacityError, match=rf"{have} tokens and {rows} more rows"):
                self.kv.stage(slot, rows)
            return
        self.kv.stage(slot, rows)
        numbers = list(range(self.number, self.number + rows))
        self.number += rows
        for layer in range(LAYERS):
            k = torch.tensor(numbers, dtype=torch.float32)[None, :, None].expand(KV_HEADS, rows, DIM)
            self.kv.write(layer, slot, have, k + layer / 4, -k - layer / 4)
        self.pending[slot] += numbers

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        pending = self.pending[slot]
        rows = sorted(data.draw(st.sets(st.integers(0, max(len(pending) - 1, 0)), max_size=len(pending))))
        if len(self.held[slot]) + len(rows) > MAX_LEN:
            with pytest.raises(CapacityError, match="the context is 20"):
                self.kv.commit(slot, rows)
            return
        self.kv.commit(slot, rows)
        self.held[slot] += [pending[r] for r in rows]
        self.pending[slot] = []

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        self.kv.drop(slot)
        self.pending[slot] = []

    @precondition(lambda self: len(self.held) > 1)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        src, dst = data.draw(st.permutations(sorted(self.held)))[:2]
        length = data.draw(st.integers(0, len(self.held[src])))
        self.kv.fork(src, dst, length)
        self.held[dst], self.pending[dst] = self.held[src][:length], []

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def wrong_rows_are_refused(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        n = len(self.pending[slot])
        for rows in ([n], [-1], [0, 0], [1, 0]):
            with pytest.raises(InvariantError, match="commit of rows"):
                self.kv.commit(slot, rows)

    @invariant()
    def holds_what_the_lists_hold(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check_integrity()
        assert self.kv.free_slots == SLOTS - len(self.held)
        for slot, tokens in self.held.items():
            assert self.kv.length(slot) == len(tokens) and self.kv.pending(slot) == len(self.pending[slot])
            want = torch.tensor(tokens + self.pending[slot], dtype=torch.float32)
            for layer in range(LAYERS):
                keys, values = self.kv.keys(layer, slot, len(want)), self.kv.values(layer, slot, len(want))
                assert torch.equal(keys, (want + layer / 4)[None, :, None].expand_as(keys))
                assert torch.equal(values, -keys)


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_committing_in_place_moves_nothing() -> None:
    kv = ContiguousKV(1, 1, 1, 1, 64, 16)
    slot = kv.acquire()
    kv.stage(slot, 5)
    kv.write(0, slot, 0, torch.arange(5.0).view(1, 5, 1), torch.zeros(1, 5, 1))
    place = kv.keys(0, slot, 5).data_ptr()
    kv.commit(slot, [0, 1, 3])
    assert kv.keys(0, slot, 3).data_ptr() == place
    assert kv.keys(0, slot, 3).flatten().tolist() == [0.0, 1.0, 3.0]


def test_a_pool_too_large_for_memory_is_refused_in_words() -> None:
    with pytest.raises(CapacityError, match=r"4 slots of 1000000000000 tokens needs .* GB"):
        ContiguousKV(32, 8, 128, 4, 10**12, 64)


def test_a_long_context_costs_nothing_until_it_is_used() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kv = ContiguousKV(16, 4, 64, 8, 32768, 64, torch.bfloat16)
    assert kv._pool.numel() * 2 > 4e9
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kB"


def test_damage_is_found() -> None:
    kv = ContiguousKV(1, 1, 1, 2, 8, 8)
    slot = kv.acquire()
    kv.check_integrity()
    kv._free.append(slot)
    with pytest.raises(InvariantError, match="held and"):
        kv.check_integrity()
    kv._free.pop()
    kv._slots[slot].length = 9
    with pytest.raises(InvariantError, match="holds 9"):
        kv.check_integrity()
