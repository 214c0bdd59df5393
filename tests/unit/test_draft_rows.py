"""Rows of learned drafters: ranks agree with a sort of the whole law, draws come from it, blocks say their table."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Ask, Frontier, Sampling, View
from hedgerow.core.probs import entropy, law
from hedgerow.core.rng import Purpose, Rng
from hedgerow.core.select import top_ids
from hedgerow.core.tree import Selection
from hedgerow.draft.rows import DRAWN, Rows, answer, depth_of
from hedgerow.engine.processors import Processors

VOCAB = 50


def view(sampling: Sampling, slot: int = 0) -> View:
    return View(
        slot, slot, root=1, position=4, room=9, sampling=sampling, rng=Rng(3).at(4),
        draw=lambda row, depth, ids=None: law(row, sampling),
    )


def rows_for(sampling: Sampling, columns: int = VOCAB, seed: int = 0, slot: int = 0) -> Rows:
    draw = np.random.default_rng(seed)
    ids = None if columns == VOCAB else np.sort(draw.permutation(VOCAB)[:columns])
    out = Rows(view(sampling, slot), VOCAB)
    for depth in (1, 2, 3):
        out.add(torch.from_numpy(draw.normal(0, 3, columns).astype(np.float32)), depth, ids)
    return out


def asked(rows: Rows, selection: Selection, counts: tuple[int, ...] = (4,)) -> Ask:
    return Ask(rows.view.slot, Frontier([-1] * len(counts), counts, selection=selection), rows.view)


@pytest.mark.parametrize("columns", [VOCAB, 17])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7), Sampling(1.0, top_k=5, top_p=0.9)])
@pytest.mark.parametrize("selection", [s for s in Selection if s is not Selection.RETRIEVED])
def test_children_are_what_the_whole_law_gives(selection: Selection, sampling: Sampling, columns: int) -> None:
    rows = rows_for(sampling, columns)
    k = 2 if selection is Selection.HUB else 4
    got = answer([asked(rows, selection, (k,))], {0: rows}, lambda ask, node: 1)
    greedy = sampling.temperature == 0.0 and not selection.drawn
    ranked = greedy or selection is Selection.TOP_K                   # by the unfiltered law, greedy ones at 1
    whole = np.full(VOCAB, -np.inf)
    whole[slice(None) if rows.ids[1] is None else rows.ids[1]] = rows.logits[1].numpy()
    q = law(whole, Sampling(sampling.temperature or 1.0)) if ranked else rows.law(1)
    assert q.sum() == pytest.approx(1.0) and np.count_nonzero(q) <= columns
    np.testing.assert_allclose(got.log_q, np.log(q[list(got.token)]), atol=1e-5)
    best = [t for t in top_ids(q, k).tolist() if q[t] > 0]
    if ranked:
        assert list(got.token) == best
    assert got.aux["top"][0][: len(best)] == pytest.approx(np.log(q[best]).tolist(), abs=1e-5)
    assert got.aux["confidence"][0] == pytest.approx(q.max(), abs=1e-5)
    assert got.aux["entropy"][0] == pytest.approx(entropy(q), abs=1e-4)
    assert got.origin == [1] * len(got.token) and sum(got.count) == len(got.token) > 0


@pytest.mark.parametrize("sampling", [Sampling(0.7), Sampling(1.0, top_p=0.8), Sampling(1.3, top_k=40)])
def test_what_is_drawn_from_is_the_law_of_the_best(sampling: Sampling) -> None:
    noise = np.random.default_rng(5)
    rows = Rows(replace(view(sampling), position=9), 4 * DRAWN)
    rows.add(torch.from_numpy(noise.normal(0, 2, 3 * DRAWN).astype(np.float32)), 1, np.arange(7, 3 * DRAWN + 7))
    got = answer([asked(rows, Selection.WITHOUT_REPLACEMENT, (200,))], {0: rows}, lambda ask, node: 0)
    row = rows.logits[0].numpy()
    kept = np.sort(top_ids(row, DRAWN if not sampling.top_k else sampling.top_k))
    want = np.zeros(4 * DRAWN)
    want[kept + 7] = law(row[kept], sampling)
    np.testing.assert_allclose(rows.law(0), want, atol=1e-6)
    assert set(got.token) == set(np.flatnonzero(want).tolist()), "drawn to the last"
    first = Rng(3).at(4).race(want, 3, 10, Purpose.DRAFT, 0)
    assert got.token[:3] == first


def test_barred_tokens_are_not_drawn() -> None:
    process = Processors(Sampling(1.0), min_tokens=3, stop_ids=frozenset({5, 60}))
    rows = Rows(replace(view(Sampling(1.0)), draw=lambda row, depth, ids=None: process(row, depth, ids)), 100)
    rows.add(torch.arange(50.0), 1, np.arange(11, 61))
    rows.add(torch.arange(50.0), 3, np.arange(11, 61))
    assert rows.law(0)[60] == 0.0 < rows.law(1)[60]


def test_requests_are_ranked_together_and_answered_apart() -> None:
    both = {slot: rows_for(Sampling(0.5 * slot), seed=slot, slot=slot) for slot in (0, 1)}
    got = answer([asked(r, Selection.TOP_K, (3, 12)) for r in both.values()], both, lambda ask, node: ask.slot)
    for slot, part in enumerate(got.split([2, 2])):
        alone = rows_for(Sampling(0.5 * slot), seed=slot, slot=slot)
        want = answer([asked(alone, Selection.TOP_K, (3, 12))], {slot: alone}, lambda ask, node: ask.slot)
        assert part.token == want.token and part.log_q == pytest.approx(want.log_q) and part.count == [3, 12]


def test_more_children_than_columns_are_all_of_them_and_no_row_is_no_child() -> None:
    rows = rows_for(Sampling(), columns=6)
    got = answer([asked(rows, Selection.TOP_K, (30, 2))], {0: rows}, lambda ask, node: 0)
    assert got.count == [6, 2] and sorted(got.token[:6]) == sorted(rows.ids[0].tolist())
    none = answer([asked(rows, Selection.TOP_K)], {0: rows}, lambda ask, node: None)
    assert none.count == [0] and none.token == [] and none.aux["confidence"] == [0.0] and none.aux["top"] == [[]]


def test_a_block_says_its_whole_table_with_the_root() -> None:
    rows = rows_for(Sampling())
    got = answer([asked(rows, Selection.TOP_K)], {0: rows}, depth_of, block=True)
    table = got.aux["block"][0]
    assert len(table) == 3
    for depth, row in enumerate(table):
        q = law(rows.logits[depth].numpy(), Sampling(1.0))
        assert row[:4] == pytest.approx(sorted(np.log(q).tolist(), reverse=True)[:4], abs=1e-5)
    drawn = rows_for(Sampling(1.0))
    assert "block" not in answer([asked(drawn, Selection.IID)], {0: drawn}, depth_of, block=True).aux


def test_a_broken_drafter_drafts_nothing() -> None:
    rows = Rows(view(Sampling()), VOCAB)
    rows.add(torch.full((VOCAB,), math.nan), 1)
    assert answer([asked(rows, Selection.TOP_K)], {0: rows}, depth_of).count == [0]


def test_a_row_of_another_step_is_refused() -> None:
    with pytest.raises(UsageError, match="draft row 3 was asked for; this step has 3"):
        rows_for(Sampling()).law(3)
