"""Attention over packed groups against a dense reference; the layout of keys; row invariance of the operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from hedgerow.core.tree import TokenTree
from hedgerow.systems import mask
from hedgerow.systems.attention import MIN_ROWS, WHOLE, Parts, Span, StepAttention
from hedgerow.systems.kv import KVStore
from hedgerow.systems.kv_contiguous import ContiguousKV
from hedgerow.systems.kv_paged import PAGE, PagedKV
from hedgerow.systems.ordered import BLOCK, Layout, layout
from tests.unit.models_kit import held, random_tree, scattered

DIM, KV_HEADS, FOLD = 16, 2, 3
HEADS = KV_HEADS * FOLD


def store(
    dtype: torch.dtype = torch.float32, slots: int = 4, room: int = 900, kind: type = ContiguousKV
) -> KVStore:
    kv: KVStore = kind(1, KV_HEADS, DIM, slots, room, 128, dtype)
    return kv


def fill(kv: KVStore, length: int, seed: int) -> int:
    """A slot with `length` committed tokens of random keys and values."""
    slot = kv.acquire()
    source = torch.Generator().manual_seed(seed)
    if length:
        kv.stage(slot, length)
        kv.write(0, slot, 0, *torch.randn(2, KV_HEADS, length, DIM, generator=source).to(kv.dtype))
        kv.commit(slot, range(length))
    return slot


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: np.ndarray, scale: float) -> torch.Tensor:
    """[heads, rows, dim], [kv_heads, keys, dim] → [rows, heads, dim], in float64."""
    k, v = k.double().repeat_interleave(FOLD, 0), v.double().repeat_interleave(FOLD, 0)
    scores = (q.double() @ k.transpose(1, 2)) * scale
    scores = scores.masked_fill(torch.from_numpy(~seen), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1)


@pytest.mark.parametrize("parts", [WHOLE, Parts(1, 1)])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("prefixes", [[0], [1], [127], [128], [300], [5, 0, 130, 64], [126, 257]])
def test_equals_the_dense_reference(
    ordered: bool, prefixes: Sequence[int], parts: Parts, rng: np.random.Generator
) -> None:
    kv = store()
    slots = [fill(kv, n, i) for i, n in enumerate(prefixes)]
    trees = [random_tree(rng, int(rng.integers(0, 12)), 9) for _ in prefixes]
    spans, start = [], 0
    for slot, prefix, tree in zip(slots, prefixes, trees, strict=True):
        kv.stage(slot, tree.rows)
        spans.append(Span(slot, start, tree.rows, prefix, tree.mask, tree.positions(prefix)))
        start += tree.rows
    total = max(start, MIN_ROWS) + 2
    step = StepAttention(kv, spans, total, HEADS, ordered=ordered, parts=parts)
    source = torch.Generator().manual_seed(99)
    q = torch.randn(HEADS, total, DIM, generator=source)
    k, v = torch.randn(2, KV_HEADS, total, DIM, generator=source)
    step.write(0, k, v)
    out = step.attend(0, q, 0.3)
    assert out.shape == (total, HEADS, DIM)
    for span, prefix in zip(spans, prefixes, strict=True):
        end = prefix + span.rows
        rows = slice(span.start, span.start + span.rows)
        seen = mask.boolean(span.ancestors, prefix)
        want = dense(q[:, rows], *held(kv, span.slot, end), seen, 0.3)
        torch.testing.assert_close(out[rows].double(), want, atol=2e-6, rtol=1e-5)
    assert torch.equal(out[start:], torch.zeros_like(out[start:])), "padding rows come out as zeros"


def places(plan: Layout, end: int) -> list[int]:
    """Place of every key as laid out, padding and what lies behind the last key as −1."""
    order = np.arange(plan.kv_len) if plan.order is None else plan.order
    return [int(p) if p < end else -1 for p in order]


@pytest.mark.parametrize("prefix", [0, 1, 120, 126, 127, 128, 129, 255, 256, 300])
def test_keys_are_cut_where_positions_cross_blocks(prefix: int, rng: np.random.Generator) -> None:
    for nodes in (0, 1, 5, 40):
        tree = random_tree(rng, nodes, 9)
        end, positions = prefix + tree.rows, tree.positions(prefix)
        plan = layout(prefix, positions, tree.rows)
        order = places(plan, end)
        assert sorted(p for p in order if p >= 0) == list(range(end)), "every key once"
        assert plan.kv_len % 64 == 0 and len(order) == plan.kv_len
        edges = [(b * BLOCK, (b + 1) * BLOCK) for b in range(plan.full)] + plan.cuts
        assert [a for a, _ in edges[1:]] == [b for _, b in edges[:-1]] and edges[-1][1] == plan.kv_len
        where = np.concatenate([np.arange(prefix), positions])
        for a, b in edges:
            inside = [p for p in order[a:b] if p >= 0]
            assert len({int(where[p]) // BLOCK for p in inside}) <= 1, "one block of positions a cut"
            assert inside == sorted(inside), "ancestors before descendants"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prefix", [3, 60, 120, 126, 200, 250, 600])
@pytest.mark.parametrize("rows", [2, 4, 8, 16, 33, 60])
def test_a_row_does_not_depend_on_the_other_rows(dtype: torch.dtype, prefix: int, rows: int) -> None:
    """A path scattered in a tree gives bit for bit what plain steps give along it: 0 rows differ at every length."""
    rng = np.random.default_rng(rows)
    path = list(range(min(rows - 1, 6)))
    tree, at = scattered(path, rows, rng, 9)
    on_path = [0, *at]
    source = torch.Generator().manual_seed(prefix)
    q = torch.randn(HEADS, max(rows, MIN_ROWS), DIM, generator=source).to(dtype)
    k, v = torch.randn(2, KV_HEADS, max(rows, MIN_ROWS), DIM, generator=source).to(dtype)

    kv = store(dtype)
    slot = fill(kv, prefix, 1)
    kv.stage(slot, rows)
    step = StepAttention(kv, [Span(slot, 0, rows, prefix, tree.mask, tree.positions(prefix))], q.shape[1], HEADS)
    step.write(0, k, v)
    whole = step.attend(0, q, 0.4)

    alone = fill(kv, prefix, 1)
    for depth, row in enumerate(on_path):
        kv.stage(alone, 1)
        one = StepAttention(kv, [Span(alone, 0, 1, prefix + depth, mask.causal(1))], MIN_ROWS, HEADS)
        other = torch.randn(HEADS, MIN_ROWS, DIM, generator=source).to(dtype)
        other[:, 0] = q[:, row]
        keys = torch.zeros(2, KV_HEADS, MIN_ROWS, DIM, dtype=dtype)
        keys[0, :, 0], keys[1, :, 0] = k[:, row], v[:, row]
        one.write(0, *keys)
        assert torch.equal(one.attend(0, other, 0.4)[0], whole[row]), f"row {row}, {depth} below the root"
        kv.commit(alone, [0])


def scatter(kv: KVStore, length: int, seed: int) -> int:
    """As `fill`, but another slot takes a page after each of this one's: no two follow one another."""
    slot, other = kv.acquire(), kv.acquire()
    keys = torch.randn(2, KV_HEADS, length, DIM, generator=torch.Generator().manual_seed(seed)).to(kv.dtype)
    for begin in range(0, length, PAGE):
        part = keys[:, :, begin : begin + PAGE]
        for each in (slot, other):
            kv.stage(each, part.shape[2])
            kv.write(0, each, begin, *part)
            kv.commit(each, range(part.shape[2]))
    return slot


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prefix", [0, 3, 120, 126, 128, 257, 600])
def test_both_stores_give_the_same_bits(dtype: torch.dtype, prefix: int, ordered: bool) -> None:
    """Trees across pages and blocks, keys in places of any order; the paged store's also on scattered pages."""
    results = []
    for kind, make in ((ContiguousKV, fill), (PagedKV, fill), (PagedKV, scatter)):
        rng = np.random.default_rng(prefix)
        kv = store(dtype, kind=kind)
        slot = make(kv, prefix, 1)
        if make is scatter and prefix > PAGE:
            assert (np.diff(kv.table(slot)[0]) > 1).all()
        source, outs = torch.Generator().manual_seed(7), []
        for nodes in (0, 3, 40, 70):
            tree, at = scattered(list(range(min(nodes, 3))), nodes + 1, rng, 9)
            length, total = kv.length(slot), max(tree.rows, MIN_ROWS)
            kv.stage(slot, tree.rows)
            positions = tree.positions(length) if ordered else None
            span = Span(slot, 0, tree.rows, length, tree.mask, positions)
            steps = [
                StepAttention(kv, [span], total, HEADS, ordered=ordered, parts=parts)
                for parts in (WHOLE, Parts(1, 1), Parts())
            ]
            steps[0].write(0, *torch.randn(2, KV_HEADS, total, DIM, generator=source).to(dtype))
            q = torch.randn(HEADS, total, DIM, generator=source).to(dtype)
            outs += [step.attend(0, q, 0.3) for step in steps]
            if ordered:
                assert all(torch.equal(o, outs[-3]) for o in outs[-2:]), "a short mask changes no bit"
            kv.commit(slot, [0, *at])
        results.append([*outs, held(kv, slot, kv.length(slot))])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_groups_do_not_see_each_other(rng: np.random.Generator) -> None:
    kv = store()
    sizes = [3, 9, 1]
    trees = [random_tree(rng, n - 1, 9) for n in sizes]
    slots = [fill(kv, 40 + i, i) for i in range(3)]
    source = torch.Generator().manual_seed(5)
    q = torch.randn(HEADS, sum(sizes), DIM, generator=source)
    k, v = torch.randn(2, KV_HEADS, sum(sizes), DIM, generator=source)
    spans = [
        Span(slot, start, tree.rows, 40 + i, tree.mask, tree.positions(40 + i))
        for i, (slot, start, tree) in enumerate(zip(slots, np.cumsum([0, *sizes[:-1]]).tolist(), trees, strict=True))
    ]
    for slot, n in zip(slots, sizes, strict=True):
        kv.stage(slot, n)
    together = StepAttention(kv, spans, sum(sizes), HEADS)
    together.write(0, k, v)
    out = together.attend(0, q, 0.3)
    for span in spans:
        rows = slice(span.start, span.start + span.rows)
        total = max(span.rows, MIN_ROWS)
        single = StepAttention(kv, [span._replace(start=0)], total, HEADS)
        padded = torch.zeros(HEADS, total, DIM)
        padded[:, : span.rows] = q[:, rows]
        assert torch.equal(single.attend(0, padded, 0.3)[: span.rows], out[rows])


def test_a_step_reads_no_place_that_was_never_written() -> None:
    kv = store(slots=1, room=100)
    slot = kv.acquire()
    kv.stage(slot, 3)
    tree = TokenTree.of([1, 2], [-1, -1])
    step = StepAttention(kv, [Span(slot, 0, 3, 0, tree.mask, tree.positions(0))], 4, HEADS)
    k = torch.ones(KV_HEADS, 4, DIM)
    step.write(0, k, k)
    assert torch.equal(step.attend(0, torch.ones(HEADS, 4, DIM), 1.0)[:3], torch.ones(3, HEADS, DIM))
