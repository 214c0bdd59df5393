"""The life of requests: joining, leaving, interruption, errors; nothing is ever left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hedgerow.control.controller import Fixed
from hedgerow.core.errors import CapacityError, UsageError
from hedgerow.core.parts import Feats, Needs, RowGroup, TargetRows
from hedgerow.engine.request import Request, Running
from hedgerow.engine.scheduler import NO_SLOT, Scheduler
from hedgerow.target.table import TableLaw, TableTarget, TableTicket
from tests.unit.engine_kit import (
    Counted,
    Dictated,
    Scripted,
    ask,
    assert_clean,
    chain,
    continuation,
    engine,
    guess,
    ids,
    letters,
    one_hot,
    run,
)

LAW = TableLaw.random(vocab=6, order=2, seed=1, temperature=0.6)
COUNT_UP = one_hot({(i,): i + 1 for i in range(39)}, 40)


def many(count: int, seed: int = 0) -> list[Request]:
    """Random requests: prompts, limits, laws, stops."""
    rng = np.random.default_rng(seed)
    return [
        ask(
            *rng.integers(0, 6, rng.integers(1, 5)).tolist(), max_tokens=int(rng.integers(1, 16)),
            seed=int(rng.integers(5)), temperature=float(rng.choice([0.0, 0.7, 1.0])),
            ignore_eos=bool(rng.integers(2)), logprobs=bool(rng.integers(2)),
            stop_ids=frozenset(rng.integers(0, 6, rng.integers(0, 2)).tolist()), tenant=str(rng.choice(["", "a", "b"])),
        )
        for _ in range(count)
    ]


def test_200_requests_through_a_batch_of_8_leave_nothing_behind() -> None:
    requests = many(200)
    target = Counted(LAW, slots=8, eos=[5])
    done = run(engine(target, guess(LAW, (2, 2, 1))), requests, batch=8)
    assert [r.request for r in done] == requests
    assert all(r.finish.reason in ("stop", "length") for r in done)
    assert target.capacity().slots == 8
    alone = [run(engine(TableTarget(LAW, eos=[5])), [request])[0] for request in requests[::10]]
    assert ids(done[::10]) == ids(alone)
    assert max(len(call) for call in target.groups) == 8


def test_fewer_slots_than_the_batch_allows() -> None:
    requests = many(20, seed=1)
    target = Counted(LAW, slots=3, eos=[5])
    done = run(engine(target, guess(LAW)), requests, batch=8)
    assert ids(done) == ids(run(engine(TableTarget(LAW, eos=[5])), requests, batch=1))
    assert max(len(call) for call in target.groups) == 3


def test_requests_join_and_leave_between_any_two_steps() -> None:
    requests = [ask(i % 6, seed=i, temperature=1.0, max_tokens=4 + 5 * (i % 3)) for i in range(9)]
    loop = engine(Counted(LAW, slots=4), guess(LAW))
    scheduler = Scheduler(loop, max_batch=4)
    waiting, seen, sizes = list(enumerate(requests)), {}, set()
    while waiting or scheduler.running or scheduler.waiting:
        if waiting:
            number, request = waiting.pop(0)
            assert scheduler.add(request) == number
        for r in scheduler.advance():
            seen[r.number] = r
        sizes.add(len(scheduler.running))
    assert_clean(loop, scheduler)
    assert len(sizes) > 2
    assert ids([seen[i] for i in range(9)]) == ids(run(engine(TableTarget(LAW)), requests, batch=1))


def test_a_freed_slot_starts_anew() -> None:
    target = TableTarget(LAW, slots=1)
    loop = engine(target, guess(LAW))
    requests = [ask(i, 1, 2, i, temperature=1.0, max_tokens=7) for i in range(4)]
    together = run(loop, requests, batch=1)
    assert {r.slot for r in together} == {0}
    assert ids(together) == [run(engine(TableTarget(LAW)), [r])[0].finish.ids for r in requests]


def test_progress_is_told_and_every_token_is_in_it() -> None:
    lengths: dict[int, list[int]] = {}
    scheduler = Scheduler(engine(TableTarget(LAW), guess(LAW)))
    done = scheduler.run(
        [ask(i, max_tokens=9) for i in range(3)], lambda r: lengths.setdefault(r.number, []).append(len(r.finish.ids))
    )
    for r in done:
        assert lengths[r.number] == sorted(lengths[r.number]) and lengths[r.number][-1] == 9
    assert sum(map(len, lengths.values())) <= sum(r.steps + 1 for r in done)


def test_numbers_begin_where_they_are_told_to() -> None:
    scheduler = Scheduler(engine(TableTarget(LAW)), first=7)
    assert [scheduler.add(ask(0)) for _ in range(3)] == [7, 8, 9]


# ------------------------------------------------------------------------------------------------------------ refusals

def test_a_prompt_longer_than_the_context_is_refused_in_words() -> None:
    scheduler = Scheduler(engine(TableTarget(LAW, max_len=4)))
    for length in (4, 5, 100):
        with pytest.raises(CapacityError, match=f"the prompt has {length} tokens; the context limit of table is 4"):
            scheduler.add(ask(*[0] * length))
    assert not scheduler.waiting
    assert len(scheduler.run([ask(0, 0, 0, max_tokens=99)])[0].finish.ids) == 1


def test_a_token_the_target_has_not_is_refused() -> None:
    with pytest.raises(UsageError, match="the prompt has token id 6; table has 0 to 5"):
        Scheduler(engine(TableTarget(LAW))).add(ask(0, 6))


@pytest.mark.parametrize(("bad", "words"), [
    ({"prompt": ()}, "the prompt is empty"),
    ({"max_tokens": 0}, "max_tokens is 0; at least 1"),
    ({"max_tokens": -3}, "max_tokens is -3"),
    ({"min_tokens": -1}, "min_tokens is -1; allowed: 0 to max_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, r"min_tokens is 9; allowed: 0 to max_tokens \(8\)"),
    ({"stop": ("a", "")}, "none of them empty"),
    ({"stop": tuple("abcdefghijklmnopq")}, "stop has 17 strings; allowed: up to 16"),
    ({"stop_ids": frozenset({-1})}, "token id -1 is negative"),
    ({"prompt": (1, -2)}, "token id -2 is negative"),
])
def test_a_request_out_of_range_is_refused(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Request(**{"prompt": (1,), **bad})


def test_slots_held_by_others_are_an_error_and_no_endless_wait() -> None:
    target = TableTarget(LAW, slots=2)
    held = [target.acquire(), target.acquire()]
    scheduler = Scheduler(engine(target))
    scheduler.add(ask(0))
    with pytest.raises(CapacityError, match="1 requests wait, but others hold all slots of table"):
        scheduler.advance()
    target.release(held[0])
    assert len(scheduler.advance()) == 1
    with pytest.raises(CapacityError, match=r"max_batch \(0\) is below 1"):
        Scheduler(engine(TableTarget(LAW)), max_batch=0).run([ask(0)])


# -------------------------------------------------------------------------------------------------------- interruption

def count_up(text: Sequence[int]) -> Dictated:
    return chain(continuation(COUNT_UP, text, 2))


def test_cancel_ends_after_the_step_and_frees_every_slot() -> None:
    loop = engine(TableTarget(COUNT_UP, slots=2), count_up)
    scheduler = Scheduler(loop, letters("abcdefghijklmnopqrstuvwxyz0123456789ABCD"), max_batch=2)

    def stop_at_4(r: Running) -> None:
        if len(r.finish.ids) >= 4:
            scheduler.cancel()

    done = scheduler.run([ask(i, max_tokens=30, logprobs=True) for i in range(4)], stop_at_4)
    assert [r.finish.reason for r in done] == ["interrupted"] * 4
    assert [r.finish.ids for r in done] == [[1, 2, 3, 4], [2, 3, 4, 5], [], []]
    assert [r.finish.text for r in done] == ["bcde", "cdef", "", ""]
    assert [len(r.logprobs) for r in done] == [4, 4, 0, 0]
    assert [r.slot == NO_SLOT for r in done] == [False, False, True, True]
    assert_clean(loop, scheduler)


def test_cancel_before_the_first_step() -> None:
    loop = engine(TableTarget(COUNT_UP), count_up)
    scheduler = Scheduler(loop)
    scheduler.cancel()
    done = scheduler.run([ask(0), ask(1)])
    assert [(r.finish.ids, r.finish.reason) for r in done] == [([], "interrupted")] * 2
    assert_clean(loop, scheduler)


def test_cancel_leaves_what_has_finished_as_it_is() -> None:
    loop = engine(TableTarget(COUNT_UP), count_up)
    scheduler = Scheduler(loop)
    done = scheduler.run([ask(0, max_tokens=2), ask(0, max_tokens=30)], lambda r: scheduler.cancel())
    assert [r.finish.reason for r in done] == ["length", "interrupted"]
    assert_clean(loop, scheduler)


def test_a_stream_that_nobody_reads_on_frees_its_slots() -> None:
    loop = engine(TableTarget(COUNT_UP), count_up)
    scheduler = Scheduler(loop)
    scheduler.add(ask(0, max_tokens=30))
    stream = scheduler.stream()
    next(stream)
    stream.close()
    assert_clean(loop, scheduler)


# -------------------------------------------------------------------------------------------------------------- errors

class Boom(Exception):
    """An error of a part."""


def failing(what: str, at: int) -> Callable[[str, int], None]:
    """Raises at the `at`-th call of a method."""
    calls = 0

    def fail(method: str, slot: int) -> None:
        nonlocal calls
        if method == what:
            calls += 1
            if calls == at:
                raise Boom(f"{what} of slot {slot}")

    return fail


@pytest.mark.parametrize("what", ["begin", "children", "commit"])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_an_error_in_a_drafter_releases_everything(what: str, at: int) -> None:
    broken = Scripted(guess(LAW), fail=failing(what, at))
    first, last = Scripted(guess(LAW)), Scripted(guess(LAW))
    target = TableTarget(LAW, slots=3)
    loop = engine(target, drafters=[broken, first, last] if what == "children" else [first, broken, last])
    scheduler = Scheduler(loop, max_batch=3)
    with pytest.raises(Boom, match=what):
        scheduler.run([ask(i, max_tokens=20) for i in range(6)])
    assert target.capacity().slots == 3 and not target._text and not target._pending
    assert not (scheduler.running or scheduler.waiting or first.text or last.text)
    # the same parts serve the next requests, once the drafter that failed half-way has nothing left either
    broken.fail = lambda method, slot: None
    broken.text.clear()
    assert ids(run(loop, [ask(i, max_tokens=9) for i in range(3)])) == ids(
        run(engine(TableTarget(LAW)), [ask(i, max_tokens=9) for i in range(3)])
    )


def test_an_error_in_release_keeps_no_other_part_from_it() -> None:
    bad, good = Scripted(guess(LAW), fail=failing("release", 1)), Scripted(guess(LAW))
    target = TableTarget(LAW, slots=3)
    scheduler = Scheduler(engine(target, drafters=[bad, good]), max_batch=3)
    with pytest.raises(Boom, match="release"):
        scheduler.run([ask(i, max_tokens=9) for i in range(3)])
    assert target.capacity().slots == 3 and not good.text and len(bad.text) == 1


def test_the_first_error_is_the_one_told() -> None:
    def fail(method: str, slot: int) -> None:
        if method in ("children", "release"):
            raise Boom(method)

    loop = engine(TableTarget(LAW), drafters=[Scripted(guess(LAW), fail=fail)])
    with pytest.raises(Boom, match="children"):
        Scheduler(loop).run([ask(0)])
    assert loop.target.capacity().slots == 64


class Breaks(TableTarget):
    """A target that fails at its n-th call, before or after the pass."""

    def __init__(self, at: int, late: bool, **options: Any) -> None:
        super().__init__(LAW, **options)
        self.at, self.late = at, late

    def submit(self, groups: Sequence[RowGroup], needs: Needs) -> TableTicket:
        self.at -= 1
        if self.at == 0 and not self.late:
            raise Boom("submit")
        return super().submit(groups, needs)

    def collect(self, ticket: TableTicket) -> tuple[TargetRows, list[Feats]]:
        if self.at == 0:
            raise Boom("collect")
        return super().collect(ticket)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 6])
def test_an_error_in_the_target_releases_everything(at: int, late: bool) -> None:
    told: list[str] = []
    drafter = Scripted(guess(LAW), fail=lambda method, slot: told.append(method))
    loop = engine(Breaks(at, late, slots=3), drafters=[drafter])
    scheduler = Scheduler(loop, max_batch=3)
    with pytest.raises(Boom, match="collect" if late else "submit"):
        scheduler.run([ask(i, max_tokens=20) for i in range(6)])
    assert_clean(loop, scheduler)
    assert told.count("release") == told.count("begin") == min(at - 1, 3)


def test_errors_in_controller_and_trace_release_everything() -> None:
    class Bad(Fixed):
        def observe(self, step: Sequence[Any]) -> None:
            raise Boom("observe")

    def trace(record: Any) -> None:
        raise Boom("trace")

    for loop in (
        engine(TableTarget(LAW), guess(LAW), controller=Bad(9)), engine(TableTarget(LAW), guess(LAW), trace=trace),
    ):
        scheduler = Scheduler(loop, max_batch=3)
        with pytest.raises(Boom):
            scheduler.run([ask(i, max_tokens=2 + i) for i in range(6)])
        assert_clean(loop, scheduler)


def test_an_interrupt_inside_a_step_releases_everything() -> None:
    def interrupt(method: str, slot: int) -> None:
        if method == "commit":
            raise KeyboardInterrupt

    broken = Scripted(guess(LAW), fail=interrupt)
    loop = engine(TableTarget(LAW), drafters=[broken])
    scheduler = Scheduler(loop)
    with pytest.raises(KeyboardInterrupt):
        scheduler.run([ask(0), ask(1)])
    assert_clean(loop, scheduler)


# ------------------------------------------------------------------------------------------------------------- tenants

def test_tenants_reach_the_drafters_and_stay_apart() -> None:
    class Memory(Scripted):
        """Remembers what each tenant's requests said, and drafts from that only."""

        shared: dict[str, list[int]]

        def commit(self, slot: int, step: Any) -> None:
            super().commit(slot, step)
            self.shared.setdefault(self.tenants[slot], []).extend(step.verdict.committed(step.tree))

    memory = Memory(lambda text: {})
    memory.shared = {}
    loop = engine(TableTarget(LAW), drafters=[memory])
    requests = [ask(i, max_tokens=8, seed=i, temperature=1.0, tenant="ab"[i % 2]) for i in range(6)]
    done = run(loop, requests, batch=4)
    said = {t: [x for r in done if r.request.tenant == t for x in r.finish.ids[1:]] for t in "ab"}
    assert {t: sorted(v) for t, v in memory.shared.items()} == {t: sorted(v) for t, v in said.items()}
