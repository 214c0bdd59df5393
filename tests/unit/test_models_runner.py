"""The runner: packing, chunks, features, what has logits, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hedgerow.core.errors import CapacityError, InvariantError
from hedgerow.core.parts import Capacity, Needs, RowGroup
from hedgerow.core.tree import TokenTree
from hedgerow.target.tiny import TinyTarget
from tests.unit.models_kit import call, plain, prefill, prompt_group, tree_group

VOCAB = 30
PROMPT = np.random.default_rng(0).integers(0, VOCAB, 50).tolist()


def tiny(**options: int) -> TinyTarget:
    return TinyTarget(**{"seed": 2, "vocab": VOCAB, "max_len": 200, "slots": 4, **options})


@pytest.mark.parametrize("chunk", [1, 7, 16, 49, 50, 64])
def test_a_prompt_in_chunks_is_the_prompt(chunk: int) -> None:
    whole, cut = tiny(), tiny(chunk=chunk)
    needs = Needs(taps=(1,), last_hidden=True, top_k=4)
    results = []
    for target in (whole, cut):
        slot = target.acquire()
        rows, feats = call(target, [prompt_group(slot, PROMPT)], needs)
        target.commit(slot, range(50))
        results.append((rows, feats[0], plain(target, slot, 3, 50)))
    (a, fa, na), (b, fb, nb) = results
    assert len(b.passes) == -(-50 // chunk)
    assert np.array_equal(a.argmax(0), b.argmax(0)) and np.array_equal(fa.top_ids, fb.top_ids)
    np.testing.assert_allclose(a.logits(0, 49), b.logits(0, 49), atol=1e-5)
    np.testing.assert_allclose(fa.top_logits, fb.top_logits, atol=1e-5)
    torch.testing.assert_close(fa.taps, fb.taps, atol=1e-5, rtol=0)
    torch.testing.assert_close(fa.last_hidden, fb.last_hidden, atol=1e-5, rtol=0)
    np.testing.assert_allclose(na, nb, atol=1e-5)


def test_prompts_and_trees_share_a_call() -> None:
    target = tiny(chunk=16)
    busy = prefill(target, PROMPT[:9])
    new, long = target.acquire(), target.acquire()
    tree = TokenTree.of([1, 2, 3], [-1, 0, -1])
    rows, _ = call(target, [prompt_group(long, PROMPT), tree_group(busy, 4, 9, tree), prompt_group(new, PROMPT[:5])])
    other = tiny()
    alone = [call(other, [prompt_group(other.acquire(), p)])[0].logits(0, len(p) - 1) for p in (PROMPT, PROMPT[:5])]
    np.testing.assert_allclose(rows.logits(0, 49), alone[0], atol=1e-5)
    np.testing.assert_allclose(rows.logits(2, 4), alone[1], atol=1e-5)
    again = call(target, [tree_group(busy, 4, 9, tree)])[0]
    for row in range(4):
        np.testing.assert_allclose(rows.logits(1, row), again.logits(0, row), atol=1e-5)


def test_only_the_last_row_of_a_prompt_has_logits() -> None:
    target = tiny(chunk=16)
    rows, feats = call(target, [prompt_group(target.acquire(), PROMPT)])
    assert rows.logits(0, 49).shape == (VOCAB,)
    assert rows.argmax(0)[:49].tolist() == [-1] * 49 and rows.argmax(0)[49] == rows.logits(0, 49).argmax()
    for row in (0, 48, 50):
        with pytest.raises(InvariantError, match=f"row {row} of group 0 has no logits"):
            rows.logits(0, row)
    assert feats[0] == type(feats[0])(), "nothing was asked for"


def test_ranks_of_every_prompt_row_are_the_row_s_own() -> None:
    target = tiny(chunk=16)
    rows, feats = call(target, [prompt_group(target.acquire(), PROMPT)], Needs(top_k=5))
    other = tiny()
    slot = other.acquire()
    call(other, [prompt_group(slot, PROMPT[:20])])
    other.commit(slot, range(20))
    logits = plain(other, slot, PROMPT[20], 20)
    assert feats[0].top_ids.shape == feats[0].top_logits.shape == (50, 5)
    assert feats[0].top_ids[20].tolist() == np.argsort(-logits, kind="stable")[:5].tolist()
    np.testing.assert_allclose(feats[0].top_logits[20], np.sort(logits)[::-1][:5], atol=1e-5)
    assert np.array_equal(feats[0].top_ids[:, 0], rows.argmax(0))


def test_features_of_a_tree() -> None:
    target = tiny()
    slot = prefill(target, PROMPT[:6])
    rows, feats = call(target, [tree_group(slot, 1, 6, TokenTree.of([2, 3], [-1, 0]))], Needs((0, 2), True, 100))
    assert feats[0].taps.shape == (2, 3, 64) and feats[0].last_hidden.shape == (3, 64)
    assert torch.equal(feats[0].taps[1], feats[0].last_hidden), "the last hidden state is behind the final norm"
    embedding = target.runner.net.embedding
    assert torch.equal(feats[0].taps[0], embedding[[1, 2, 3]]), "hidden state 0 is the embedding"
    assert feats[0].top_ids.shape == (3, VOCAB), "no more than there are"
    logits = feats[0].last_hidden @ target.runner.net.head.T
    np.testing.assert_allclose(rows.logits(0, 2), logits[2].numpy(), atol=1e-5)
    assert torch.equal(rows.device_logits(0)[2], torch.from_numpy(rows.logits(0, 2)))


def test_a_group_may_go_on_from_pending_rows() -> None:
    """A drafter runs its tree round by round; the rows of a round see pending rows of earlier ones."""
    target, other = tiny(), tiny()
    slot, whole = prefill(target, PROMPT[:8]), prefill(other, PROMPT[:8])
    tree = TokenTree.of([5, 6, 7, 8], [-1, -1, 0, 1])
    want = call(other, [tree_group(whole, 4, 8, tree)])[0]
    group = tree_group(slot, 4, 8, tree)
    got = []
    for begin, end in ((0, 1), (1, 3), (3, 5)):
        new = slice(begin, end)
        part = RowGroup("tree", slot, group.tokens[new], group.positions[new], group.ancestors[new, :end])
        rows = call(target, [part])[0]
        got += [rows.logits(0, i) for i in range(end - begin)]
    for row in range(5):
        np.testing.assert_allclose(got[row], want.logits(0, row), atol=1e-5)
    target.commit(slot, [0, 2, 4])
    other.commit(whole, [0, 2, 4])
    np.testing.assert_allclose(plain(target, slot, 9, 11), plain(other, whole, 9, 11), atol=1e-5)


def test_impossible_groups_are_refused() -> None:
    target = tiny(max_len=40, max_rows=24)
    slot = prefill(target, PROMPT[:8])
    one = tree_group(slot, 1, 8, TokenTree.empty())
    with pytest.raises(InvariantError, match=f"two groups of one call belong to slot {slot}"):
        target.submit([one, one], Needs())
    with pytest.raises(InvariantError, match="0 rows have 0 positions"):
        target.submit([RowGroup("tree", slot, np.empty(0, int), np.empty(0, int), np.empty((0, 0), bool))], Needs())
    with pytest.raises(InvariantError, match="1 pending rows, the group counts 2"):
        target.submit([RowGroup("tree", slot, np.array([1]), np.array([10]), np.ones((1, 3), bool))], Needs())
    with pytest.raises(CapacityError, match="a prompt of 41 tokens does not fit the context of 40"):
        target.submit([prompt_group(target.acquire(), [1] * 41)], Needs())
    with pytest.raises(CapacityError, match="8 tokens and 60 more rows"):
        target.submit([tree_group(slot, 1, 8, TokenTree.of([1] * 59, range(-1, 58)))], Needs())
    target.submit([one], Needs())
    assert target.capacity() == Capacity(slots=2, rows=24, max_len=40)


def test_the_same_seed_is_the_same_model() -> None:
    logits = [call(t, [prompt_group(t.acquire(), PROMPT)])[0].logits(0, 49) for t in (tiny(), tiny(), tiny(seed=3))]
    assert np.array_equal(logits[0], logits[1]) and not np.array_equal(logits[0], logits[2])


def test_margins_are_clear() -> None:
    """Greedy decoding of the tiny model is decided by far more than rounding."""
    target = TinyTarget(seed=0, vocab=64)
    slot = prefill(target, [1, 2, 3])
    token, gaps = 4, []
    for position in range(3, 103):
        logits = plain(target, slot, token, position)
        best = np.sort(logits)[::-1]
        gaps.append(best[0] - best[1])
        token = int(logits.argmax())
    assert min(gaps) > 1e-3 and np.median(gaps) > 0.5
