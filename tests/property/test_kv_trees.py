"""Trees on the tiny target: a row equals its path alone, an accepted path leaves the state plain decoding leaves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core.parts import Needs
from hedgerow.core.tree import TokenTree
from hedgerow.target.tiny import TinyTarget
from tests.unit.models_kit import call, held, plain, prefill, random_tree, scattered, tree_group

VOCAB = 40
CLOSE = {"atol": 1e-5, "rtol": 0.0}


@pytest.fixture(scope="module")
def tiny() -> TinyTarget:
    return TinyTarget(seed=1, vocab=VOCAB, max_len=400)


def keys(target: TinyTarget, slot: int) -> torch.Tensor:
    kv = target.runner.kv
    return held(kv, slot, kv.length(slot))


def tokens_of(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


@given(length=st.integers(1, 150), nodes=st.integers(0, 24), seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_every_row_of_a_tree_equals_its_path_alone(tiny: TinyTarget, length: int, nodes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prompt, root = tokens_of(seed, length), 7
    tree = random_tree(rng, nodes, VOCAB)
    slot = prefill(tiny, prompt)
    rows, _ = call(tiny, [tree_group(slot, root, length, tree)])
    assert tree.positions(length).tolist() == [length, *(length + tree.depth)]
    for node in rng.permutation(np.arange(-1, nodes))[:4]:
        path = [int(tree.tokens[i]) for i in tree.path(int(node))]
        alone = prefill(tiny, prompt)
        for depth, token in enumerate([root, *path]):
            want = plain(tiny, alone, token, length + depth)
        np.testing.assert_allclose(rows.logits(0, int(node) + 1), want, **CLOSE)
        assert rows.argmax(0)[int(node) + 1] == want.argmax()
        tiny.release(alone)
    tiny.release(slot)


def test_siblings_stand_at_one_position(tiny: TinyTarget) -> None:
    prompt = tokens_of(0, 12)
    slot = prefill(tiny, prompt)
    tree = TokenTree.of([3, 4], [-1, -1])
    group = tree_group(slot, 9, 12, tree)
    assert group.positions.tolist() == [12, 13, 13]
    rows, _ = call(tiny, [group])
    for row, token in ((1, 3), (2, 4)):
        alone = prefill(tiny, prompt)
        plain(tiny, alone, 9, 12)
        np.testing.assert_allclose(rows.logits(0, row), plain(tiny, alone, token, 13), **CLOSE)
        tiny.release(alone)
    tiny.release(slot)


@given(length=st.integers(1, 140), rows=st.integers(2, 24), depth=st.integers(1, 6), seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_scattered_accepted_path_leaves_what_plain_decoding_leaves(
    tiny: TinyTarget, length: int, rows: int, depth: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    prompt, path = tokens_of(seed, length), tokens_of(seed + 1, min(depth, rows - 1))
    tree, at = scattered(path, rows, rng, VOCAB)
    slot, other = prefill(tiny, prompt), prefill(tiny, prompt)
    call(tiny, [tree_group(slot, 5, length, tree)])
    tiny.commit(slot, [0, *at])
    for d, token in enumerate([5, *path]):
        plain(tiny, other, token, length + d)
    torch.testing.assert_close(keys(tiny, slot), keys(tiny, other), **CLOSE)
    end = length + 1 + len(path)
    np.testing.assert_allclose(plain(tiny, slot, 8, end), plain(tiny, other, 8, end), **CLOSE)
    tiny.release(slot)
    tiny.release(other)
    tiny.runner.kv.check_integrity()


def test_three_requests_in_one_call_equal_each_alone(tiny: TinyTarget, rng: np.random.Generator) -> None:
    lengths, sizes = [5, 130, 61], [0, 4, 17]
    trees = [random_tree(rng, n, VOCAB) for n in sizes]
    slots = [prefill(tiny, tokens_of(i, n)) for i, n in enumerate(lengths)]
    needs = Needs(taps=(0, 1, 2), last_hidden=True, top_k=3)
    groups = [tree_group(s, 2, n, t) for s, n, t in zip(slots, lengths, trees, strict=True)]
    together, feats = call(tiny, groups, needs)
    for i, group in enumerate(groups):
        alone, own = call(tiny, [group], needs)
        assert np.array_equal(together.argmax(i), alone.argmax(0))
        assert np.array_equal(feats[i].top_ids, own[0].top_ids)
        for row in range(len(group.tokens)):
            np.testing.assert_allclose(together.logits(i, row), alone.logits(0, row), **CLOSE)
        torch.testing.assert_close(feats[i].taps, own[0].taps, **CLOSE)
        torch.testing.assert_close(feats[i].last_hidden, own[0].last_hidden, **CLOSE)
    for slot in slots:
        tiny.release(slot)


def test_accepted_lengths_of_0_2_4_in_one_step(tiny: TinyTarget) -> None:
    rng = np.random.default_rng(3)
    prompts = [tokens_of(i, 9 + i) for i in range(3)]
    paths = [tokens_of(10 + i, n) for i, n in enumerate((1, 2, 4))]
    kept = (0, 2, 4)
    slots = [prefill(tiny, p) for p in prompts]
    grown = [scattered(path, 8, rng, VOCAB) for path in paths]
    groups = [tree_group(s, 1, len(p), t) for s, p, (t, _) in zip(slots, prompts, grown, strict=True)]
    rows, _ = call(tiny, groups)
    for i, slot in enumerate(slots):
        accepted = [0, *grown[i][1][: kept[i]]]
        tiny.commit(slot, accepted)
        other = prefill(tiny, prompts[i])
        for d, token in enumerate([1, *paths[i][: kept[i]]]):
            want = plain(tiny, other, token, len(prompts[i]) + d)
        np.testing.assert_allclose(rows.logits(i, accepted[-1]), want, **CLOSE)
        torch.testing.assert_close(keys(tiny, slot), keys(tiny, other), **CLOSE)
        tiny.release(slot)
        tiny.release(other)


def test_a_fork_goes_its_own_way(tiny: TinyTarget) -> None:
    prompt = tokens_of(4, 30)
    slot = prefill(tiny, prompt)
    copy = tiny.acquire()
    tiny.fork(slot, copy, 20)
    other = prefill(tiny, prompt[:20])
    plain(tiny, slot, 3, 30)
    np.testing.assert_allclose(plain(tiny, copy, 6, 20), plain(tiny, other, 6, 20), **CLOSE)
    for s in (slot, copy, other):
        tiny.release(s)


def test_a_step_that_was_never_committed_leaves_no_trace(tiny: TinyTarget) -> None:
    slot, other = prefill(tiny, tokens_of(5, 10)), prefill(tiny, tokens_of(5, 10))
    call(tiny, [tree_group(slot, 1, 10, random_tree(np.random.default_rng(0), 9, VOCAB))])
    np.testing.assert_allclose(plain(tiny, slot, 2, 10), plain(tiny, other, 2, 10), **CLOSE)
    tiny.release(slot)
    tiny.release(other)
