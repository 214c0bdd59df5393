"""Keys that several requests have in common: read once, and no bit of any row tells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.systems import lse
from hedgerow.systems.attention import MIN_ROWS, WHOLE, Parts, Span, StepAttention
from hedgerow.systems.kv_contiguous import ContiguousKV
from hedgerow.systems.kv_paged import PagedKV
from hedgerow.systems.ordered import BLOCK, segments
from tests.unit.models_kit import held, random_tree
from tests.unit.test_systems_attention import DIM, HEADS, KV_HEADS, dense


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=6))
def test_segments_are_the_tree_of_the_chains(chains: list[list[int]]) -> None:
    chains = [[(i, *c[: i + 1]) for i, _ in enumerate(c)] for c in chains]  # a block is what stands before it, too
    found = segments(chains)
    for i, chain in enumerate(chains):
        mine = sorted(s for s in found if i in s.members)
        assert [s.begin for s in mine] == [0, *(s.end for s in mine)][: len(mine)], "one after another"
        assert (mine[-1].end if mine else 0) == len(chain)
    blocks = [(b, chains[s.members[0]][b]) for s in found for b in range(s.begin, s.end)]
    assert len(blocks) == len(set(blocks)) == len({block for c in chains for block in c}), "every block once"
    for s in found:
        assert all(chains[i][s.begin : s.end] == chains[s.members[0]][s.begin : s.end] for i in s.members)


def batch(
    shared: Sequence[int], tails: Sequence[int], dtype: torch.dtype, kind: type = PagedKV, seed: int = 0
) -> tuple[PagedKV, list[Span], torch.Tensor, torch.Tensor]:
    """Requests of which number i begins with `shared[i]` tokens of one text; trees of random shapes behind them."""
    rng, source = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    kv = kind(1, KV_HEADS, DIM, len(tails) + 1, max(map(sum, zip(shared, tails, strict=True))) + 64, 256, dtype)

    def extend(slot: int, count: int) -> None:
        for begin in range(0, count, 200):
            n, at = min(200, count - begin), kv.length(slot)
            kv.stage(slot, n)
            kv.write(0, slot, at, *torch.randn(2, KV_HEADS, n, DIM, generator=source).to(dtype))
            kv.commit(slot, range(n))

    base, spans, start = kv.acquire(), list[Span](), 0
    extend(base, max(shared))
    for common, tail in zip(shared, tails, strict=True):
        slot, tree = kv.acquire(), random_tree(rng, int(rng.integers(0, 24)), 9)
        kv.fork(base, slot, common)
        extend(slot, tail)
        length = kv.length(slot)
        kv.stage(slot, tree.rows)
        spans.append(Span(slot, start, tree.rows, length, tree.mask, tree.positions(length)))
        start += tree.rows
    total = max(start, MIN_ROWS)
    q, k, v = (torch.randn(n, total, DIM, generator=source).to(dtype) for n in (HEADS, KV_HEADS, KV_HEADS))
    StepAttention(kv, spans, total, HEADS).write(0, k, v)
    return kv, spans, q, torch.stack([k, v])


CASES = [
    ([600, 600, 600], [0, 130, 7]), ([300, 700, 520, 0], [3, 0, 200, 40]), ([128, 128], [0, 1]),
    ([130, 1024], [700, 9]),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shared", "tails"), CASES)
def test_a_row_has_the_bits_it_has_alone(shared: Sequence[int], tails: Sequence[int], dtype: torch.dtype) -> None:
    kv, spans, q, _ = batch(shared, tails, dtype)
    total = q.shape[1]
    whole = StepAttention(kv, spans, total, HEADS, parts=WHOLE).attend(0, q, 0.3)
    once = StepAttention(kv, spans, total, HEADS, parts=Parts(1, 1))
    assert any(len(c.groups) > 1 for c in once._clusters), "some keys are shared here"
    assert torch.equal(once.attend(0, q, 0.3), whole)
    assert torch.equal(StepAttention(kv, spans, total, HEADS).attend(0, q, 0.3), whole)
    for span in spans:
        mine = slice(span.start, span.start + span.rows)
        padded = torch.zeros(HEADS, max(span.rows, MIN_ROWS), DIM, dtype=dtype)
        padded[:, : span.rows] = q[:, mine]
        alone = StepAttention(kv, [span._replace(start=0)], padded.shape[1], HEADS)
        assert torch.equal(alone.attend(0, padded, 0.3)[: span.rows], whole[mine])


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(("shared", "tails"), CASES)
def test_rows_equal_the_dense_reference(shared: Sequence[int], tails: Sequence[int], ordered: bool) -> None:
    kv, spans, q, _ = batch(shared, tails, torch.float32)
    out = StepAttention(kv, spans, q.shape[1], HEADS, ordered=ordered, parts=Parts(1, 1)).attend(0, q, 0.3)
    for span in spans:
        mine, end = slice(span.start, span.start + span.rows), span.prefix + span.rows
        seen = np.ones((span.rows, end), np.bool_)
        seen[:, span.prefix :] = span.ancestors
        want = dense(q[:, mine], *held(kv, span.slot, end), seen, 0.3)
        torch.testing.assert_close(out[mine].double(), want, atol=2e-6, rtol=1e-5)


def test_shared_keys_are_read_once_and_no_mask_is_as_long_as_the_context() -> None:
    kv, spans, q, _ = batch([1024, 1024, 640], [0, 300, 5], torch.float32)
    (cluster,) = StepAttention(kv, spans, q.shape[1], HEADS, parts=Parts(1, 1))._clusters
    assert [p.layout.kv_len for p in cluster.parts[:2]] == [5 * BLOCK, 3 * BLOCK], "what three share, then two"
    assert sum(p.layout.kv_len for p in cluster.parts) < 1024 + 300 + 5 + 3 * 2 * BLOCK
    assert all(p.bias is None for p in cluster.parts[:2])
    assert max(p.bias.shape[2] for p in cluster.parts if p.bias is not None) <= 2 * BLOCK
    whole = StepAttention(kv, spans, q.shape[1], HEADS, parts=WHOLE)._clusters
    assert max(p.bias.shape[2] for c in whole for p in c.parts if p.bias is not None) > 1024


def test_slots_of_their_own_share_nothing() -> None:
    kv, spans, q, _ = batch([300, 300], [0, 5], torch.float32, ContiguousKV)
    assert [len(c.groups) for c in StepAttention(kv, spans, q.shape[1], HEADS, parts=Parts(1, 1))._clusters] == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [16, 12])
def test_fused_and_plain_parts_merge_to_the_whole(dtype: torch.dtype, dim: int) -> None:
    """The log-sum-exp of the fused kernel is that of the scores, and parts at any cut merge to all keys at once."""
    source = torch.Generator().manual_seed(0)
    q = torch.randn(2, 6, dim, generator=source).to(dtype)
    k, v = torch.randn(2, 2, 90, dim, generator=source).to(dtype)
    want = lse.masked(q.double(), k.double(), v.double(), None, 0.3)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    for cut in (1, 40, 89):
        before = lse.unmasked(q, k[:, :cut], v[:, :cut], 0.3)
        found = lse.merged(before, lse.masked(q, k[:, cut:], v[:, cut:], None, 0.3))
        assert found.out.dtype == found.lse.dtype == torch.float32
        torch.testing.assert_close(found.out, want.out.float(), **close)
        torch.testing.assert_close(found.lse, want.lse.float(), **close)


def test_a_part_nobody_reads_changes_nothing() -> None:
    """A merge with an empty part (log-sum-exp −∞) is the other part."""
    one = lse.Partial(torch.ones(1, 2, 8), torch.zeros(1, 2, 1))
    empty = lse.Partial(torch.zeros(1, 2, 8), torch.full((1, 2, 1), float("-inf")))
    for found in (lse.merged(one, empty), lse.merged(empty, one)):
        assert torch.equal(found.out, one.out) and torch.equal(found.lse, one.lse)
