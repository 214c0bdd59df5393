"""core.rng: keyed numbers and the tape that enumerates them."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.core.rng import Purpose, Rng, Tape, enumerate_branches

W = np.array([0.2, 0.0, 0.5, 0.3])


def test_numbers_depend_on_every_part_of_their_key() -> None:
    base = Rng(3, 1, 2).uniform(5, Purpose.ACCEPT, 7)
    assert base == Rng(3, 1, 2).uniform(5, Purpose.ACCEPT, 7) and 0.0 <= base < 1.0
    others = [
        Rng(4, 1, 2).uniform(5, Purpose.ACCEPT, 7), Rng(3, 2, 2).uniform(5, Purpose.ACCEPT, 7),
        Rng(3, 1, 3).uniform(5, Purpose.ACCEPT, 7), Rng(3, 1, 2).uniform(6, Purpose.ACCEPT, 7),
        Rng(3, 1, 2).uniform(5, Purpose.DRAFT, 7), Rng(3, 1, 2).uniform(5, Purpose.ACCEPT, 8),
    ]
    assert len({base, *others}) == 7


def test_the_targets_numbers_do_not_depend_on_where_a_step_began() -> None:
    for purpose in Purpose:
        same = Rng(1).at(4).uniform(9, purpose) == Rng(1).at(5).uniform(9, purpose)
        assert same == (purpose == Purpose.TARGET)
    assert Rng(1, 2).at(4) == Rng(1, 2, 4)


def test_the_noise_of_an_id_does_not_depend_on_the_others() -> None:
    rng = Rng(8)
    whole = rng.noise(np.arange(50), 3, Purpose.TARGET)
    assert np.array_equal(rng.noise(np.array([7, 31]), 3, Purpose.TARGET), whole[[7, 31]])
    assert np.all(whole > 0) and np.all(np.isfinite(whole))


def test_uniforms_and_noise_have_their_moments() -> None:
    u = np.array([Rng(1).uniform(i, Purpose.DRAFT) for i in range(20_000)])
    assert abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.005
    e = Rng(1).noise(np.arange(20_000), 0, Purpose.DRAFT)
    assert abs(e.mean() - 1.0) < 0.03 and abs(e.var() - 1.0) < 0.08


def test_bernoulli_is_strict() -> None:
    assert not any(Rng(s).bernoulli(0.0, 1) for s in range(100))
    assert all(Rng(s).bernoulli(1.0, 1) for s in range(100))


def test_impossible_tokens_are_never_drawn() -> None:
    assert {Rng(s).categorical(W, 1) for s in range(200)} == {0, 2, 3}
    assert Rng(0).categorical(np.array([0.0, 0.0, 4.0]), 1) == 2
    assert Rng(0).race(W, 9, 1) != [] and 1 not in Rng(0).race(W, 9, 1)
    assert Rng(0).race(np.zeros(3), 2, 1) == []


@pytest.mark.parametrize("draw", [Rng(0).categorical, Tape([]).request(0).categorical, Tape([]).categorical])
def test_nothing_to_draw_is_an_error(draw: object) -> None:
    with pytest.raises(ValueError, match="without mass"):
        draw(np.zeros(3), 1)  # type: ignore[operator]


# ------------------------------------------------------------------------------------------------ the tape

def test_every_branch_once_and_probabilities_sum_to_one() -> None:
    def run(tape: Tape) -> tuple[int, ...]:
        rng = tape.request(0, 3)
        first = rng.categorical(W, 4)
        if rng.bernoulli(0.25, 4):
            return (first, *rng.race(W, 2, 5))
        return (first, rng.categorical(np.array([1.0, 3.0]), 6, Purpose.RESIDUAL))

    found = list(enumerate_branches(run))
    assert abs(sum(w for w, _ in found) - 1.0) < 1e-12
    assert len(found) == 3 * (6 + 2) and len({r for _, r in found}) == 3 * 8
    law = {r: w for w, r in found}
    assert abs(law[(2, 3, 0)] - 0.5 * 0.25 * 0.3 * 0.2 / 0.7) < 1e-12
    assert abs(law[(0, 1)] - 0.2 * 0.75 * 0.75) < 1e-12


def test_certain_decisions_do_not_branch() -> None:
    def run(tape: Tape) -> tuple[bool, bool, int]:
        return tape.bernoulli(1.5, 0), tape.bernoulli(-0.5, 1), tape.categorical(np.array([0.0, 2.0]), 0)

    assert list(enumerate_branches(run)) == [(1.0, (True, False, 1))]


def test_the_tape_itself_answers_as_request_zero() -> None:
    def run(tape: Tape) -> list[int]:
        return tape.race(np.array([1.0, 1.0]), 5, 2)

    assert sorted(r for _, r in enumerate_branches(run)) == [[0, 1], [1, 0]]


def test_keys_tell_requests_steps_and_purposes_apart() -> None:
    tape = Tape([])
    one = tape.request(0, 7)
    one.bernoulli(0.5, 8)
    tape.request(1, 7).bernoulli(0.5, 8)
    one.at(8).bernoulli(0.5, 8)
    one.bernoulli(0.5, 8, index=1)
    one.categorical(W, 8)
    assert len(tape.used) == 5
    for again in (lambda: one.bernoulli(0.5, 8), lambda: one.at(9).categorical(W, 8)):
        with pytest.raises(ValueError, match="used twice"):
            again()


def test_a_race_takes_one_key() -> None:
    tape = Tape([])
    tape.request(0).race(W, 3, 1)
    with pytest.raises(ValueError, match="used twice"):
        tape.request(0).race(W, 1, 1)
