"""The guard of the Fixed controller: it rests when drafts do not pay, probes, and never touches the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hedgerow.control.controller import REMEMBERED, Fixed
from hedgerow.core.parts import Observation, Plan, Sampling, Verdict, View
from hedgerow.core.rng import Rng
from hedgerow.core.tree import TokenTree
from hedgerow.target.table import TableLaw, TableTarget
from tests.unit.engine_kit import Dictated, ask, chain, continuation, engine, guess, ids, run

TREE = TokenTree.of([1, 2], [-1, 0])


def view(request: int = 0) -> View:
    return View(request, request, 0, 0, 99, Sampling(), Rng(0))


def seen(plan: Plan, committed: int, request: int = 0, finished: bool = False, found: bool = True) -> Observation:
    tree = TREE if plan.nodes and found else TokenTree.empty()
    return Observation(request, plan, tree, Verdict((), 0, "bonus"), committed, finished, 0.01, tree.rows, 1)


def play(control: Fixed, committed: Callable[[int], int], steps: int) -> list[bool]:
    """Which of `steps` steps were drafted, where a drafted step number n gains `committed(n)` tokens, a plain one 1."""
    drafted = []
    for _ in range(steps):
        plan = control.plan([view()])[0]
        control.observe([seen(plan, committed(sum(drafted)) if plan.nodes else 1)])
        drafted.append(plan.nodes > 0)
    return drafted


def rests(drafted: Sequence[bool]) -> list[int]:
    """Lengths of the plain stretches between drafted steps, the last open one left out."""
    out, run_ = [], 0
    for d in drafted:
        if d and run_:
            out.append(run_)
        run_ = 0 if d else run_ + 1
    return out


def test_its_caps_are_the_same_every_step() -> None:
    control = Fixed(7, depth=3, width=2, source=1)
    assert control.plan([view(0), view(1)]) == [Plan(7, 3, 2, 1)] * 2
    assert control.cut([TREE, TokenTree.empty()], [view(0), view(1)]) == [2, 0]
    assert control.looks_ahead is False


def test_no_nodes_is_plain_decoding_with_a_reason() -> None:
    assert Fixed(0).plan([view()]) == [Plan(0, reason="nodes is 0: plain decoding was asked for")]


def test_it_never_rests_where_drafts_pay() -> None:
    assert all(play(Fixed(7, price=lambda: 1.4), lambda n: 2, 300))
    assert all(play(Fixed(7, price=lambda: 1.4), lambda n: 1 + n % 2, 300))        # τ 1.5 in turns
    # without a price every drafted step pays: it gains a token, as a plain one does
    assert all(play(Fixed(7), lambda n: 1, 300))


def test_it_rests_where_they_do_not_and_probes_ever_more_rarely() -> None:
    drafted = play(Fixed(7, price=lambda: 1.4), lambda n: 1, 400)
    first = drafted.index(False)
    assert 5 <= first <= 15                                             # it takes some steps to be convinced
    assert rests(drafted)[:6] == [8, 16, 32, 64, 64, 64]                # doubling, to eight times the first
    assert all(drafted[i - 1] is False and drafted[i + 1] is False for i in range(first + 1, 390) if drafted[i])


def test_a_probe_that_pays_brings_drafting_back() -> None:
    convinced = play(Fixed(7, price=lambda: 1.4), lambda n: 1, 100).index(False)
    drafted = play(Fixed(7, price=lambda: 1.4), lambda n: 3 if n > convinced else 1, 400)
    assert rests(drafted) == [8, 16]                                    # the second probe paid, and so did all others
    assert all(drafted[convinced + 8 + 1 + 16 :])


def test_a_probe_that_only_just_pays_does_so_too() -> None:
    convinced = play(Fixed(7, price=lambda: 1.95), lambda n: 1, 100).index(False)
    drafted = play(Fixed(7, price=lambda: 1.95), lambda n: 2 if n >= convinced else 1, 200)
    assert rests(drafted) == [8] and all(drafted[convinced + 8 :])


def test_after_it_paid_for_good_the_next_rest_is_short_again() -> None:
    control = Fixed(7, price=lambda: 1.4)
    drafted = play(control, lambda n: 1, 8 + 8 + 16 + 32 + 8)
    assert max(rests(drafted)) >= 16
    play(control, lambda n: 4, 200)
    assert rests([*play(control, lambda n: 1, 60), True])[0] == 8


def test_a_probe_is_marked() -> None:
    control = Fixed(7, price=lambda: 1.4)
    assert not control.plan([view()])[0].probe
    for _ in range(40):
        plan = control.plan([view()])[0]
        if plan.nodes and plan.probe:
            break
        control.observe([seen(plan, 1)])
    else:
        pytest.fail("no probe in 40 steps")


def test_the_reason_of_a_rest_has_both_numbers() -> None:
    control = Fixed(7, price=lambda: 1.5, margin=1.2)
    plan = control.plan([view()])[0]
    while plan.nodes:
        control.observe([seen(plan, 1)])
        plan = control.plan([view()])[0]
    words = plan.reason.split()
    assert plan.reason.startswith("guard: 1.7") and plan.reason.endswith("1.80 needed to pay")
    assert float(words[1]) < 1.8


def test_price_and_margin_are_asked_every_time() -> None:
    asked: list[float] = []

    def price() -> float:
        asked.append(1.2 if len(asked) < 200 else 3.0)
        return asked[-1]

    drafted = play(Fixed(7, price=price), lambda n: 2, 300)
    assert len(asked) >= 300 and all(drafted[:50]) and not all(drafted)
    assert all(play(Fixed(7, price=lambda: 1.4, margin=1.0), lambda n: 2, 99))
    assert not all(play(Fixed(7, price=lambda: 1.4, margin=1.6), lambda n: 2, 99))


def test_steps_that_found_nothing_to_draft_are_not_held_against_it() -> None:
    control = Fixed(7, price=lambda: 1.4)
    for _ in range(200):
        plan = control.plan([view()])[0]
        assert plan.nodes == 7
        control.observe([seen(plan, 1, found=False)])


def test_without_the_guard_it_drafts_for_ever() -> None:
    assert all(play(Fixed(7, price=lambda: 9.0, guard=False), lambda n: 1, 100))


def test_requests_are_judged_apart_and_forgotten_when_finished() -> None:
    control = Fixed(7, price=lambda: 1.4)
    for _ in range(30):
        plans = control.plan([view(0), view(1)])
        control.observe([seen(plans[0], 1, 0), seen(plans[1], 3, 1)])
    assert [p.nodes for p in control.plan([view(1)])] == [7]
    assert set(control._seen) == {0, 1}
    control.observe([seen(Plan(7), 1, 0, finished=True), seen(Plan(7), 1, 1, finished=True)])
    assert not control._seen
    assert control.plan([view(0)])[0].nodes == 7


def test_requests_that_never_finish_are_forgotten_in_time() -> None:
    control = Fixed(7)
    for i in range(REMEMBERED + 50):
        control.observe([seen(Plan(7), 1, i)])
    assert len(control._seen) == REMEMBERED and min(control._seen) == 50


LAW = TableLaw.random(vocab=6, order=2, seed=0, temperature=0.5)


def wrong(text: Sequence[int]) -> Dictated:
    """Drafts that are right in the first 20 tokens, then wrong, from 120 on right again."""
    right = continuation(LAW, text, 4)
    return chain(right) if len(text) < 20 or len(text) > 120 else chain([(t + 1) % 6 for t in right])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_guard_changes_steps_and_not_the_text(temperature: float) -> None:
    requests = [ask(i, seed=i, temperature=temperature, max_tokens=200) for i in range(4)]
    guarded = run(engine(TableTarget(LAW), wrong, controller=Fixed(4, price=lambda: 1.4)), requests)
    always = run(engine(TableTarget(LAW), wrong, controller=Fixed(4, guard=False)), requests)
    assert ids(guarded) == ids(always) == ids(run(engine(TableTarget(LAW)), requests))
    for g, a in zip(guarded, always, strict=True):
        assert g.drafted < a.drafted and g.forms["plain"] > 40
        assert any(reason.startswith("guard: ") for reason in g.reasons)
    if temperature == 0.0:
        assert all(r.histogram[4] > 10 for r in guarded)        # it came back when drafts paid again


def test_the_guard_leaves_good_drafts_alone() -> None:
    requests = [ask(i, seed=i, max_tokens=60) for i in range(4)]
    guarded = run(engine(TableTarget(LAW), guess(LAW, (1, 1)), controller=Fixed(4, price=lambda: 1.4)), requests)
    always = run(engine(TableTarget(LAW), guess(LAW, (1, 1)), controller=Fixed(4, guard=False)), requests)
    assert [r.histogram for r in guarded] == [r.histogram for r in always]
