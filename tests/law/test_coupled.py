"""Match is plain decoding, random number by random number; `coupled` drafts by racing on the very same numbers.

Equal laws would not be enough: the output must be the same tokens. So the noise itself is fixed: for a grid of noise
vectors the step's tokens are compared with plain decoding's under the same noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from hedgerow.core.rng import Purpose, Rng, Tape, enumerate_branches
from hedgerow.core.select import pick
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.testing.law import Grown, Request, pathwise, step_law
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection
from tests.law.cases import IID, WITHOUT, Given, P, Q, colder, levels, penalised

COUPLED = Selection.COUPLED


@dataclass(frozen=True)
class Noise:
    """A source whose target noise is given: position d has the vector `at[d − 1]`. The slow, obvious race."""

    at_: tuple[tuple[float, ...], ...]

    def at(self, root: int) -> Noise:
        return self

    def _order(self, w: np.ndarray, position: int, purpose: Purpose) -> list[int]:
        assert purpose == Purpose.TARGET, "match and coupled drafting use the target's own noise and nothing else"
        finish = [(e / w[x], x) for x, e in enumerate(self.at_[position - 1]) if w[x] > 0]
        return [x for _, x in sorted(finish)]

    def categorical(self, w: np.ndarray, position: int, purpose: Purpose = Purpose.TARGET, index: int = 0) -> int:
        return self._order(w, position, purpose)[0]

    def race(
        self, w: np.ndarray, k: int, position: int, purpose: Purpose = Purpose.DRAFT, index: int = 0
    ) -> list[int]:
        return self._order(w, position, purpose)[:k]

    def bernoulli(self, p: float, position: int, purpose: Purpose = Purpose.ACCEPT, index: int = 0) -> bool:
        raise AssertionError("a match rule tosses no coin")


def grid(depth: int = 3) -> Iterator[Noise]:
    """Noise vectors over three tokens from three values, ties included; deeper positions run through them shifted."""
    vectors = list(product((0.2, 0.7, 1.5), repeat=3))
    for shift in (0, 7, 13):
        for i in range(len(vectors)):
            yield Noise(tuple(vectors[(i * (d + 1) + shift * d) % len(vectors)] for d in range(depth)))


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (3, 3), (2, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("draft", [Q, P, colder(P, 2.0), penalised], ids=["other", "same", "warmer", "filtered"])
def test_coupled_drafts_change_no_token(counts: tuple[int, ...], draft: Any) -> None:
    request = Request(Grown.levels(*counts, selection=COUPLED), P, draft)
    report = pathwise(Match(), request, grid()).assert_lossless()
    assert report.leaves == 81
    if draft is P:
        assert report.accepted[0] == 2.0, "a drafter that is the target picks what the target will pick"


@pytest.mark.parametrize("request_", [
    levels(2, 2, selection=Selection.TOP_K), levels(2, 2, selection=COUPLED, p=penalised),
    Request(Given(TokenTree.of([0, 1, 2, 0, 1, 2], [-1, -1, -1, 0, 1, 1])), P, Q),
    Request(Given(TokenTree.empty()), P, Q),
], ids=["top_k", "filters and penalties", "any tree", "nothing"])
def test_match_is_plain_decoding_under_fixed_noise(request_: Request) -> None:
    pathwise(Match(), request_, grid()).assert_lossless()


@pytest.mark.parametrize("how", [IID, WITHOUT, COUPLED, Selection.TOP_K, Selection.HUB, Selection.GREEDY_PLUS_ONE],
                         ids=lambda s: s.label)
def test_match_is_plain_decoding_for_real_seeds(how: Selection) -> None:
    request = Request(Grown.levels(2, 2, selection=how), P, Q, position=17)
    report = pathwise(Match(), request, (Rng(seed) for seed in range(200))).assert_lossless()
    assert 0.2 < report.accepted[0] < 2.0


def test_rules_that_read_q_are_not_plain_decoding_number_by_number() -> None:
    """The check can fail: another exact rule gives other tokens from the same seed."""
    pathwise(Rejection(), levels(2, 2), (Rng(seed) for seed in range(50))).assert_biased()


def test_coupling_raises_agreement() -> None:
    """On the same noise a draft close to the target is accepted more often than an independent draw of it."""
    seeds = [Rng(seed) for seed in range(400)]
    near = colder(P, 1.3)
    coupled = pathwise(Match(), Request(Grown.levels(1, selection=COUPLED), P, near), seeds).accepted[0]
    drawn = pathwise(Match(), Request(Grown.levels(1, selection=IID), P, near), seeds).accepted[0]
    assert coupled > drawn + 0.2


# ------------------------------------------------------------------------------------------------ the race

def luce(w: np.ndarray, order: tuple[int, ...]) -> float:
    """Probability of an order of finish: Π w / (what is left)."""
    left, chance = float(w.sum()), 1.0
    for x in order:
        chance *= float(w[x]) / left
        left -= float(w[x])
    return chance


@pytest.mark.parametrize("how", [WITHOUT, COUPLED], ids=lambda s: s.label)
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_races_are_enumerated_as_plackett_luce(how: Selection, k: int) -> None:
    w = np.array([0.5, 0.0, 0.2, 0.3])
    found: dict[tuple[int, ...], float] = {}
    for weight, order in enumerate_branches(lambda tape: tuple(pick(w, k, how, tape.request(0), 3).token)):
        found[order] = found.get(order, 0.0) + weight
    want = {order: luce(w, order) for order in permutations([0, 2, 3], min(k, 3))}
    assert set(found) == set(want)
    assert all(abs(found[o] - want[o]) < 1e-12 for o in want)


def test_the_fast_race_returns_the_order_of_its_noise() -> None:
    """`Rng` on 500 keys against the definition: sort E/w, ties to the lowest id; the winner is the categorical draw."""
    w = np.array([0.0, 0.1, 0.4, 0.2, 0.0, 0.25, 0.05])
    ids = np.arange(len(w))
    for seed in range(250):
        for purpose in (Purpose.TARGET, Purpose.DRAFT):
            rng = Rng(seed, choice=seed % 3, root=seed % 5)
            noise = rng.noise(ids, 9, purpose, 2)
            order = sorted((i for i in range(len(w)) if w[i] > 0), key=lambda i, e=noise: (e[i] / w[i], i))
            for k in (1, 3, 9):
                assert rng.race(w, k, 9, purpose, 2) == order[:k]
            assert rng.categorical(w, 9, purpose, 2) == order[0]
            assert rng.categorical(w * 7.0, 9, purpose, 2) == order[0], "a race does not care for the total"


def test_the_fast_race_breaks_ties_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rng, "noise", lambda self, ids, *key: np.ones(len(ids)))
    assert Rng(0).race(np.array([0.0, 0.3, 0.4, 0.3]), 3, 1) == [2, 1, 3]
    assert Rng(0).categorical(np.array([0.0, 0.5, 0.5]), 1) == 1


def test_coupled_children_are_the_best_of_log_q_plus_the_targets_gumbel() -> None:
    q, rng = np.array([0.2, 0.5, 0.3]), Rng(11)
    for position in range(50):
        gumbel = -np.log(rng.noise(np.arange(3), position, Purpose.TARGET))
        best = np.argsort(-(np.log(q) + gumbel))[:2].tolist()
        assert pick(q, 2, COUPLED, rng, position).token == best


def test_real_races_follow_plackett_luce() -> None:
    """Once, seeded: chi-square of 20,000 real races and draws."""
    w, count = np.array([0.5, 0.2, 0.3]), 20_000
    orders = list(permutations(range(3), 2))
    seen = dict.fromkeys(orders, 0)
    first = np.zeros(3)
    for position in range(count):
        seen[tuple(Rng(5).race(w, 2, position))] += 1
        first[Rng(5).categorical(w, position)] += 1
    for got, want in (
        (np.array([seen[o] for o in orders]), np.array([luce(w, o) for o in orders])), (first, w),
    ):
        statistic = float(((got - count * want) ** 2 / (count * want)).sum())
        assert chi2.sf(statistic, len(want) - 1) > 1e-3


def test_the_tape_refuses_a_number_used_twice() -> None:
    """A coupled draft and the target's draw share their noise on purpose; a tape cannot stand for that, and says so."""
    with pytest.raises(ValueError, match="used twice"):
        step_law(Match(), Request(Grown.levels(2, selection=COUPLED), P, Q))
    tape = Tape([]).request(0)
    tape.bernoulli(0.5, 3)
    with pytest.raises(ValueError, match="used twice"):
        tape.bernoulli(0.5, 3)
