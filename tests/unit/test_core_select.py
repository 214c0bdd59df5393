"""core.select: how children are picked from a row, and by which keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hedgerow.core.errors import UsageError
from hedgerow.core.rng import Rng, Tape, enumerate_branches
from hedgerow.core.select import pick, top_ids
from hedgerow.core.tree import Selection

Q = np.array([0.2, 0.5, 0.0, 0.3])


def laws(k: int, how: Selection, q: np.ndarray = Q) -> dict[tuple[tuple[int, ...], tuple[int, ...]], float]:
    out: dict[Any, float] = {}
    for w, got in enumerate_branches(lambda tape: pick(q, k, how, tape.request(0), 3)):
        key = (tuple(got.token), tuple(got.mult))
        out[key] = out.get(key, 0.0) + w
    return out


@pytest.mark.parametrize("size", [5, 400])
def test_top_ids_sorts_and_breaks_ties_low(size: int, rng: np.random.Generator) -> None:
    row = np.round(rng.random(size), 1)
    for k in (0, 1, 3, 5, size, size + 3):
        want = sorted(range(size), key=lambda i: (-row[i], i))[:k]
        assert top_ids(row, k).tolist() == want


@pytest.mark.parametrize("how, k, tokens", [
    (Selection.TOP_K, 2, [1, 3]), (Selection.TOP_K, 9, [1, 3, 0]), (Selection.TOP_K, 0, []),
    (Selection.GREEDY_PLUS_ONE, 0, []), (Selection.IID, 0, []),
])
def test_without_luck(how: Selection, k: int, tokens: list[int]) -> None:
    got = pick(Q, k, how, Rng(0), 0)
    assert got.token == tokens and np.allclose(got.log_q, np.log(Q[tokens])) and got.mult == [1] * len(tokens)


def test_iid_draws_are_merged_in_order_of_first_appearance() -> None:
    law = laws(2, Selection.IID)
    assert abs(law[((1,), (2,))] - 0.25) < 1e-12
    assert abs(law[((1, 3), (1, 1))] - 0.15) < 1e-12
    three = laws(3, Selection.IID)
    assert abs(three[((1, 0), (2, 1))] - 2 * 0.5 * 0.5 * 0.2) < 1e-12, "1,1,0 and 1,0,1"


def test_draws_without_replacement_end_with_the_support() -> None:
    law = laws(9, Selection.WITHOUT_REPLACEMENT)
    assert all(len(tokens) == 3 for tokens, _ in law)
    assert abs(law[((1, 0, 3), (1, 1, 1))] - 0.5 * 0.4) < 1e-12


def test_greedy_plus_one() -> None:
    assert laws(2, Selection.GREEDY_PLUS_ONE).keys() == {((1, 0), (1, 1)), ((1, 3), (1, 1))}
    assert abs(laws(2, Selection.GREEDY_PLUS_ONE)[((1, 3), (1, 1))] - 0.6) < 1e-12
    assert laws(9, Selection.GREEDY_PLUS_ONE) == {((1, 3, 0), (1, 1, 1)): 1.0}


def test_hub_pairs() -> None:
    law = laws(2, Selection.HUB)
    assert {k[0] for k in law} == {(0, 1), (3, 1), (1, 0), (1, 3)}
    assert abs(law[((1, 3), (1, 1))] - 0.5 * 0.6) < 1e-12 and abs(law[((3, 1), (1, 1))] - 0.3) < 1e-12
    assert laws(2, Selection.HUB, np.array([0.0, 1.0])) == {((1,), (1,)): 1.0}


def test_what_a_row_cannot_answer() -> None:
    with pytest.raises(UsageError, match="3 children were asked for, 2 are allowed"):
        pick(Q, 3, Selection.HUB, Rng(0), 0)
    with pytest.raises(UsageError, match="retrieval drafter"):
        pick(Q, 1, Selection.RETRIEVED, Rng(0), 0)


@pytest.mark.parametrize("how", [s for s in Selection if s.drawn], ids=lambda s: s.label)
def test_nodes_and_drafters_draw_independently(how: Selection) -> None:
    """One tape for two nodes and two drafters at one position: it raises if a number is used twice."""
    picks: list[Callable[[Tape], Any]] = [
        lambda tape, i=i, s=s: pick(Q, 2, how, tape.request(0), 3, i, s) for i in (0, 1, 2) for s in (0, 1)
    ]
    tape = Tape([])
    for one in picks:
        one(tape)
    for other in (Selection.IID, Selection.HUB, Selection.WITHOUT_REPLACEMENT):
        pick(Q, 2, other, tape.request(0), 3, 40, 2)
        tape.used.clear()
    pairs = [[pick(Q, 2, how, Rng(seed), 3, 1, source).token for source in (0, 1)] for seed in range(60)]
    drawn = {one == other for one, other in pairs}
    assert drawn == {True, False}


def test_coupled_children_use_the_targets_noise() -> None:
    for seed in range(100):
        rng = Rng(seed)
        assert pick(Q, 1, Selection.COUPLED, rng, 7).token == [rng.categorical(Q, 7)]
