"""Votes become probabilities, and probabilities become right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hedgerow.draft.mixing import MAX_SLOPE, Mixer, Prior

PRIORS = [Prior(0.5, 1.0, -0.1), Prior(0.5, 1.0), Prior(0.3, 2.0, 0.2)]


def vote(bucket: int, **share: float) -> tuple[int, list[int], list[float]]:
    """vote(0, t7=0.5): bucket 0 says token 7 with share 0.5."""
    return bucket, [int(t[1:]) for t in share], [math.log(s) for s in share.values()]


def probabilities(mixer: Mixer, votes: list) -> dict[int, float]:
    return {t: math.exp(v) for t, v in mixer.rank(votes, 99)}


def test_a_law_with_room_for_none_of_these() -> None:
    mixer = Mixer(PRIORS, base=1.0)
    got = probabilities(mixer, [vote(0, t3=0.75, t4=0.25), vote(1, t4=0.5, t5=0.5)])
    score = {3: 1.0 + 0.5 * math.log(0.75), 4: 2.0 + 0.5 * math.log(0.125), 5: 1.0 + 0.5 * math.log(0.5)}
    z = math.exp(1.0 - 0.1) + sum(math.exp(s) for s in score.values())
    assert got == pytest.approx({t: math.exp(s) / z for t, s in score.items()}, rel=1e-12)
    assert sum(got.values()) < 1.0


def test_likeliest_first_and_ties_as_voted_for() -> None:
    mixer = Mixer(PRIORS, base=0.0)
    assert [t for t, _ in mixer.rank([vote(0, t2=0.25, t5=0.5, t9=0.25)], 3)] == [5, 2, 9]
    assert [t for t, _ in mixer.rank([vote(0, t9=0.25, t2=0.25, t5=0.5)], 2)] == [5, 9]


def test_nobody_knows() -> None:
    mixer = Mixer(PRIORS, base=0.0)
    assert mixer.rank([], 4) == []
    mixer.learn([], 3)
    assert mixer.base == 0.0


def test_agreement_makes_surer() -> None:
    mixer = Mixer(PRIORS, base=2.0)
    alone = max(probabilities(mixer, [vote(0, t3=1.0)])[3], probabilities(mixer, [vote(1, t3=1.0)])[3])
    assert probabilities(mixer, [vote(0, t3=1.0), vote(1, t3=1.0)])[3] > alone + 0.1


@pytest.mark.parametrize("right", [0.9, 0.5, 0.1])
def test_weights_follow_how_often_a_bucket_was_right(right: float, rng: np.random.Generator) -> None:
    mixer = Mixer(PRIORS, base=1.0)
    for _ in range(3000):
        mixer.learn([vote(0, t3=1.0)], 3 if rng.random() < right else 8)
        mixer.learn([vote(2, t3=1.0)], 3)
    assert probabilities(mixer, [vote(0, t3=1.0)])[3] == pytest.approx(right, abs=0.06)
    assert probabilities(mixer, [vote(2, t3=1.0)])[3] > 0.95


def test_the_share_is_learned_to_matter_or_not(rng: np.random.Generator) -> None:
    honest, noise = Mixer(PRIORS, base=0.0), Mixer(PRIORS, base=0.0)
    votes = [vote(0, t3=0.95, t4=0.05)]
    for _ in range(2000):
        honest.learn(votes, 3 if rng.random() < 0.95 else 4)
        noise.learn(votes, 3 if rng.random() < 0.5 else 4)
    assert honest.slope[0] > 0.8 > 0.3 > noise.slope[0]


def test_slopes_stay_in_range(rng: np.random.Generator) -> None:
    mixer = Mixer(PRIORS, base=0.0, rate=2.0)
    for _ in range(500):
        mixer.learn([vote(0, t3=0.99, t4=0.01)], 4)
        mixer.learn([vote(1, t3=0.99, t4=0.01)], 3)
        assert all(0.0 <= s <= MAX_SLOPE for s in mixer.slope)
    assert mixer.slope[0] == 0.0


def test_equal_histories_give_equal_weights(rng: np.random.Generator) -> None:
    history = rng.integers(0, 6, 200).tolist()
    one, two = Mixer(PRIORS, base=1.0), Mixer(PRIORS, base=1.0)
    for mixer in (one, two):
        for token in history:
            mixer.learn([vote(0, t1=0.5, t2=0.5), vote(2, t2=1.0)], token)
    assert (one.slope, one.bias, one.other, one.base) == (two.slope, two.bias, two.other, two.base)


def test_learning_is_the_gradient_of_the_log_likelihood() -> None:
    votes = [vote(0, t3=0.75, t4=0.25), vote(2, t4=1.0)]

    def likelihood(mixer: Mixer, token: int) -> float:
        got = probabilities(mixer, votes)
        return math.log(got.get(token, 1.0 - sum(got.values())))

    for token in (3, 4, 8):
        for weights, index in (("slope", 0), ("bias", 0), ("bias", 2), ("other", 2)):
            up, down, moved = (Mixer(PRIORS, base=1.0, rate=1e-4, inertia=1e12) for _ in range(3))
            getattr(up, weights)[index] += 1e-5
            getattr(down, weights)[index] -= 1e-5
            slope = (likelihood(up, token) - likelihood(down, token)) / 2e-5
            before = getattr(moved, weights)[index]
            moved.learn(votes, token)
            assert (getattr(moved, weights)[index] - before) * 1e10 == pytest.approx(slope, rel=1e-3, abs=1e-4)
