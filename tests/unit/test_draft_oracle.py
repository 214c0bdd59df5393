"""The oracle is as good as it was told to be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from hedgerow.core.errors import InvariantError, UsageError
from hedgerow.core.parts import Ask, Children, Feats, Frontier, Sampling, View
from hedgerow.core.rng import Rng, Source, enumerate_branches
from hedgerow.core.tree import Growth, Selection
from hedgerow.draft.oracle import OracleDrafter
from hedgerow.target.table import TableLaw
from tests.unit.draft_kit import chain, step

LAW = TableLaw.of({(): [0.1, 0.6, 0.3], (1,): [0.5, 0.2, 0.3], (1, 2): [0.0, 0.1, 0.9]})


def answer(
    oracle: OracleDrafter, selection: Selection, k: int, path: Sequence[int] = (), rng: Source | None = None,
    growth: Growth | None = None, node: int = -1,
) -> Children:
    if growth is None:
        growth, node = chain(path)
    view = View(0, 0, 1, 4, 9, Sampling(), rng or Rng(0).at(4), growth=growth)
    return oracle.children([Ask(0, Frontier([node], [k], selection=selection), view)])


def begun(quality: float) -> OracleDrafter:
    oracle = OracleDrafter(LAW, quality)
    oracle.begin(0, [0, 1], Feats())
    return oracle


@pytest.mark.parametrize("selection", [Selection.TOP_K, Selection.RETRIEVED])
@pytest.mark.parametrize("quality", [0.0, 0.3, 0.8, 1.0])
def test_a_guess_is_right_as_often_as_dialled(selection: Selection, quality: float) -> None:
    oracle, rounds = begun(quality), 2000
    rank = [0, 0, 0, 0]
    for seed in range(rounds):
        got = answer(oracle, selection, 2, (2,), Rng(seed).at(4))        # after 1 2: token 2
        tokens = list(got.token)
        assert len(set(tokens)) == len(tokens) == 2
        rank[tokens.index(2) if 2 in tokens else 3] += 1
    want = [quality, quality * (1 - quality)]
    for r, p in enumerate(want):
        assert abs(rank[r] / rounds - p) <= 4 * math.sqrt(p * (1 - p) / rounds)
        assert got.log_q[r] == pytest.approx(math.log(max(p, 1e-12)))


def test_wrong_guesses_are_the_next_likely_tokens() -> None:
    assert list(answer(begun(0.0), Selection.TOP_K, 3, (2,)).token) == [1, 0]
    assert list(answer(begun(1.0), Selection.TOP_K, 3, (2,)).token) == [2, 1, 0]


def test_a_coin_belongs_to_a_path_not_to_an_arrival() -> None:
    oracle = begun(0.5)
    for seed in range(50):
        alone = answer(oracle, Selection.TOP_K, 2, (2, 1), Rng(seed).at(4))
        growth = Growth()
        a, b = growth.add([-1], [2], [0, 2], [0.0, 0.0])
        growth.add([a], [1], [1], [0.0])
        [node] = growth.add([b], [1], [1], [0.0])
        assert answer(oracle, Selection.TOP_K, 2, rng=Rng(seed).at(4), growth=growth, node=node).token == alone.token
        assert list(answer(oracle, Selection.TOP_K, 1, (2, 1), Rng(seed).at(4)).token) == list(alone.token)[:1]


@pytest.mark.parametrize("selection", [s for s in Selection if s.drawn or s is Selection.COUPLED])
def test_drawn_children_come_from_the_mixture(selection: Selection) -> None:
    oracle = begun(0.75)
    got = answer(oracle, selection, 2)
    q = 0.75 * np.array([0.5, 0.2, 0.3]) + 0.25 * np.array([0.3, 0.5, 0.2])
    for token, log_q, origin in zip(got.token, got.log_q, got.origin or (), strict=True):
        assert oracle.row(0, origin) == pytest.approx(q)
        assert log_q == pytest.approx(math.log(q[token]))
    assert sum(got.mult or ()) == 2
    assert got.aux["confidence"][0] == pytest.approx(q.max())
    assert got.aux["entropy"][0] == pytest.approx(-(q * np.log(q)).sum())


def test_the_law_of_drawn_children_is_the_mixture() -> None:
    oracle = begun(0.5)
    law = np.zeros((3, 3))
    for weight, pair in enumerate_branches(
        lambda tape: tuple(answer(oracle, Selection.WITHOUT_REPLACEMENT, 2, rng=tape.request(0, 4)).token)
    ):
        law[pair] += weight
    q = oracle.row(0, 0)
    want = np.outer(q, q) / (1 - q)[:, None]
    np.fill_diagonal(want, 0.0)
    assert law == pytest.approx(want, abs=1e-12)


def test_the_law_sees_the_text_and_the_path() -> None:
    seen: list[list[int]] = []

    def law(tokens: Sequence[int]) -> np.ndarray:
        seen.append(list(tokens))
        return LAW(tokens)

    oracle = OracleDrafter(law, 1.0)
    oracle.begin(0, [0, 1], Feats())
    answer(oracle, Selection.TOP_K, 1, (2, 0))
    oracle.commit(0, step(1, [2, 1], [(2,)]))
    answer(oracle, Selection.TOP_K, 1)
    oracle.fork(0, 1, 3)
    assert seen == [[0, 1, 2, 0], [0, 1, 2, 1]] and oracle._text[1] == [0, 1, 2]


def test_rows_live_until_the_next_commit() -> None:
    oracle = begun(0.5)
    answer(oracle, Selection.IID, 1)
    oracle.row(0, 0)
    oracle.commit(0, step(1, [2]))
    with pytest.raises(UsageError, match="slot 0 has no draft row 0"):
        oracle.row(0, 0)
    oracle.release(0)
    with pytest.raises(InvariantError, match="slot 0 was not begun"):
        oracle.commit(0, step(1, [2]))


@pytest.mark.parametrize("quality", [-0.1, 1.1])
def test_quality_out_of_range(quality: float) -> None:
    with pytest.raises(UsageError, match="quality is"):
        OracleDrafter(LAW, quality)
