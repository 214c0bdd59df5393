"""Recorded steps: padding, buckets and buffers are right, proved with a tape that repeats operators on fixed memory.

The tape freezes every number Python computed while it recorded, as a CUDA graph does: a step that replays right for
other trees, contexts and slots of its bucket reads them from its buffers.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Needs
from hedgerow.core.tree import TokenTree
from hedgerow.systems import captured, mask
from hedgerow.systems.attends import Attention
from hedgerow.systems.attention import Span
from hedgerow.systems.captured import ROWS, Bucket, Captured, bucket_of, lengths
from hedgerow.systems.kv import Kind, open_store
from hedgerow.systems.recorders import TapeRecorder
from hedgerow.systems.static import Inputs
from hedgerow.target.tiny import TinyTarget
from tests.unit.models_kit import call, held, prefill, random_tree, tree_group

KINDS: tuple[Kind, ...] = ("paged", "contiguous")


def pair(kind: Kind = "paged", slots: int = 4) -> tuple[TinyTarget, TinyTarget]:
    """The same tiny target twice: eager, and with recorded steps."""
    both = TinyTarget(kv=kind, slots=slots, max_len=600), TinyTarget(kv=kind, slots=slots, max_len=600)
    both[1].runner.net.captured = Captured(TapeRecorder())
    return both


def recorded(target: TinyTarget) -> int:
    kept = target.runner.net.captured
    assert kept is not None
    return kept.count(target.runner.kv)


def tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 64, count).tolist()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 16), st.integers(1, 140)), min_size=1, max_size=3),
    seed=st.integers(0, 1000), taps=st.booleans(), top_k=st.sampled_from((0, 5)),
)
@example(sizes=[(5, 300), (1, 20)], seed=1, taps=True, top_k=5)
def test_steps_of_ragged_trees_equal_those_that_are_not_recorded(
    kind: Kind, sizes: list[tuple[int, int]], seed: int, taps: bool, top_k: int
) -> None:
    """Logits, best tokens, features, and the keys and values left behind, over three steps of every request."""
    rng = np.random.default_rng(seed)
    eager, fast = pair(kind)
    needs = Needs(taps=(0, 2) if taps else (), last_hidden=taps, top_k=top_k)
    slots = [(prefill(eager, tokens(n, seed)), prefill(fast, tokens(n, seed))) for _, n in sizes]
    lengths_ = [n for _, n in sizes]
    for _ in range(3):
        trees = [random_tree(rng, int(rng.integers(0, size)), 64) for size, _ in sizes]
        roots = rng.integers(0, 64, len(sizes))
        results = []
        for which, target in enumerate((eager, fast)):
            groups = [
                tree_group(s[which], int(r), n, t) for s, r, n, t in zip(slots, roots, lengths_, trees, strict=True)
            ]
            results.append(call(target, groups, needs))
        (rows, feats), (again, more) = results
        for i, tree in enumerate(trees):
            for row in range(tree.nodes + 1):
                np.testing.assert_allclose(again.logits(i, row), rows.logits(i, row), atol=2e-4)
            assert again.argmax(i).tolist() == rows.argmax(i).tolist()
            for a, b in ((feats[i].taps, more[i].taps), (feats[i].last_hidden, more[i].last_hidden)):
                assert (a is None) == (b is None) == (not taps)
                if taps:
                    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
            if top_k:
                assert np.array_equal(feats[i].top_ids, more[i].top_ids)
            kept = [0, *(v + 1 for v in tree.path(tree.nodes - 1))] if tree.nodes else [0]
            for which, target in enumerate((eager, fast)):
                target.commit(slots[i][which], kept)
            lengths_[i] += len(kept)
    for (a, b), n in zip(slots, lengths_, strict=True):
        torch.testing.assert_close(held(fast.runner.kv, b, n), held(eager.runner.kv, a, n), atol=1e-4, rtol=1e-4)
    assert recorded(fast) >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_one_recording_serves_every_tree_and_context_of_its_bucket(kind: Kind) -> None:
    eager, fast = pair(kind)
    rng = np.random.default_rng(1)
    for n, size in ((2, 4), (100, 7), (40, 5), (240, 6)):  # the first makes the recording, the others only replay it
        tree, text = random_tree(rng, size, 64), tokens(n, n)
        slots = [prefill(t, text) for t in (eager, fast)]
        both = [call(t, [tree_group(s, 3, n, tree)])[0] for t, s in zip((eager, fast), slots, strict=True)]
        for row in range(size + 1):
            np.testing.assert_allclose(both[1].logits(0, row), both[0].logits(0, row), atol=2e-4)
        for target, slot in zip((eager, fast), slots, strict=True):
            target.release(slot)
    assert recorded(fast) == 1


def test_a_drafter_that_stages_its_tree_round_by_round_is_served() -> None:
    """Twice: the second, shorter tree must not see what the first one's last round saw."""
    eager, fast = pair()
    tree = TokenTree.of([1, 2, 3, 4, 5, 6, 7], [-1, -1, 0, 2, 3, 4, 5])
    found = []
    for target in (eager, fast):
        slot = prefill(target, tokens(20, 0))
        whole = tree_group(slot, 9, 20, tree)
        rounds = []
        for begin, end in ((0, 3), (3, 7), (7, 8), (0, 3), (3, 5)):
            part = type(whole)(
                "tree", slot, whole.tokens[begin:end], whole.positions[begin:end], whole.ancestors[begin:end, :end]
            )
            rows, _ = call(target, [part])
            rounds += [rows.logits(0, r) for r in range(end - begin)]
        found.append(rounds)
    np.testing.assert_allclose(found[1], found[0], atol=2e-4)
    assert recorded(fast) == 2


def test_results_are_not_overwritten_by_later_steps() -> None:
    _, target = pair()
    slot = prefill(target, tokens(10, 0))
    first, feats = call(target, [tree_group(slot, 1, 10, TokenTree.of([2, 3], [-1, 0]))], Needs(last_hidden=True))
    logits, hidden = first.device_logits(0).clone(), feats[0].last_hidden.clone()
    call(target, [tree_group(slot, 5, 10, TokenTree.of([7, 8], [-1, -1]))], Needs(last_hidden=True))
    assert torch.equal(first.device_logits(0), logits) and torch.equal(feats[0].last_hidden, hidden)


def test_prompts_and_what_is_too_large_run_as_ever() -> None:
    _, target = pair()
    slot = prefill(target, tokens(300, 0))
    assert recorded(target) == 0
    call(target, [tree_group(slot, 1, 300, random_tree(np.random.default_rng(0), 140, 64))])
    assert recorded(target) == 0, "140 nodes are more cells than a group has"


def test_recording_ahead_is_by_size_and_changes_nothing() -> None:
    eager, fast = pair()
    kept, kv = fast.runner.net.captured, fast.runner.kv
    assert kept is not None
    seen: list[int] = []
    needs = Needs()
    forward = fast.runner.net.static(needs)

    def watched(ids: torch.Tensor, positions: torch.Tensor, step: Attention) -> captured.Outs:
        seen.append(len(ids))
        return forward(ids, positions, step)

    kept.prepare(watched, kv, 4, [Bucket(4, 1, 4, 256), Bucket(16, 1, 16, 256), Bucket(8, 1, 8, 256)], needs)
    assert list(dict.fromkeys(seen)) == [16, 8, 4] and recorded(fast) == 3
    text = tokens(5, 3)
    a, b = (call(t, [tree_group(prefill(t, text), 3, 5, TokenTree.of([1], [-1]))])[0] for t in (eager, fast))
    np.testing.assert_allclose(b.logits(0, 1), a.logits(0, 1), atol=2e-4)
    assert recorded(fast) == 3
    with pytest.raises(InvariantError, match="1 slots are in use"):
        kept.prepare(watched, kv, 4, [Bucket(4, 1, 4, 256)], needs)


def test_a_failure_is_told_once_and_everything_runs_without() -> None:
    eager, target = pair()
    told: list[str] = []
    net = target.runner.net
    net.captured = Captured(TapeRecorder(), told.append)
    true = net.forward

    def waits(*args: object) -> object:
        out = true(*args)
        float(out.logits.sum())
        return out

    net.forward = waits
    text = tokens(12, 0)
    for turn in range(2):
        a, b = (call(t, [tree_group(prefill(t, text), turn, 12, TokenTree.empty())])[0] for t in (eager, target))
        np.testing.assert_allclose(b.logits(0, 0), a.logits(0, 0), atol=1e-5)
    assert told == [net.captured.why_not]
    assert "steps run without recorded operators: " in told[0] and "\n" not in told[0]


def test_recordings_go_with_their_store_and_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MOST", 2)
    _, target = pair()
    slot = prefill(target, tokens(4, 0))
    for nodes in (0, 7, 15, 30, 0):
        call(target, [tree_group(slot, 1, 4, random_tree(np.random.default_rng(0), nodes, 64))])
    assert recorded(target) == 2
    kept = target.runner.net.captured
    assert kept is not None and len(kept._stores) == 1
    target.runner.kv = None
    gc.collect()
    assert len(kept._stores) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_buckets_hold_what_they_are_chosen_for(kind: Kind) -> None:
    kv = open_store(kind, 1, 1, 2, 5, 600, 64, torch.float32, torch.device("cpu"))
    slots = [kv.acquire() for _ in range(5)]
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = rng.integers(1, 40, rng.integers(1, 6))
        chosen = rng.permutation(slots)[: len(rows)]
        start = np.cumsum([0, *rows])
        spans = [
            Span(int(s), int(a), int(n), int(rng.integers(0, 560)), mask.causal(int(n)))
            for s, a, n in zip(chosen, start, rows, strict=False)
        ]
        bucket = bucket_of(kv, spans)
        assert bucket is not None and bucket.rows in ROWS and bucket.rows >= rows.sum() and bucket.width >= max(rows)
        assert bucket.groups >= (len(rows) if kind == "paged" else 1 + max(chosen)) and bucket.groups <= 5
        assert bucket.kv_len >= max(s.prefix + s.rows for s in spans) and bucket.kv_len in lengths(kv.room)
    many = [Span(slots[0], 0, 600, 0, mask.causal(600))]
    assert bucket_of(kv, many) is None


def test_padding_repeats_the_first_row() -> None:
    kv = open_store("paged", 1, 1, 2, 2, 600, 64, torch.float32, torch.device("cpu"))
    slot = kv.acquire()
    kv.stage(slot, 70)
    kv.commit(slot, range(70))
    kv.stage(slot, 2)
    x = Inputs(kv, 4, 2, 4, 256)
    x.fill(kv, np.array([5, 6]), np.array([70, 71]), [Span(slot, 0, 2, 70, mask.causal(2))])
    assert x.tokens.tolist() == [5, 6, 5, 5] and x.positions.tolist() == [70, 71, 70, 70]
    assert x.page.tolist() == [int(kv.table(slot)[0][1])] * 4 and x.offset.tolist() == [6, 7, 6, 6]
    assert x.cell.tolist() == [0, 1, 0, 0] and x.row.tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    assert x.length.tolist() == [70, 0] and x.words[:, :, 0].tolist() == [[1, 3, 1, 1], [1, 1, 1, 1]]
