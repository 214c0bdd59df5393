"""Every form of the ancestor mask says the same thing, entry by entry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core.errors import InvariantError
from hedgerow.core.tree import TokenTree
from hedgerow.systems import mask


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    nodes = draw(st.integers(0, 20))
    return TokenTree.of([0] * nodes, [draw(st.integers(-1, i - 1)) for i in range(nodes)])


def sees(tree: TokenTree, row: int, prefix: int, key: int) -> bool:
    """The definition: committed keys, the root, and nodes on the way to the row."""
    return key < prefix or (row > 0 and key - prefix - 1 in tree.path(row - 1)) or key == prefix


@given(trees(), st.integers(0, 9), st.integers(0, 5))
def test_all_forms_agree_with_the_definition(tree: TokenTree, prefix: int, extra: int) -> None:
    kv_len = prefix + tree.rows + extra
    want = np.array([[sees(tree, r, prefix, k) for k in range(kv_len)] for r in range(tree.rows)])
    seen = mask.boolean(tree.mask, prefix, kv_len)
    assert np.array_equal(seen, want)

    bias = mask.additive(seen, torch.bfloat16)
    assert bias.dtype == torch.bfloat16
    assert torch.equal(bias == 0, torch.from_numpy(want))
    assert torch.equal(bias == float("-inf"), torch.from_numpy(~want))

    bits, at = mask.packed_bits([seen])
    flat = want.reshape(-1)
    assert at.tolist() == [0, -(-len(flat) // 8)]
    for i, bit in enumerate(flat):
        assert (bits[i // 8] >> (i % 8)) & 1 == bit, "lowest bit first"
    assert not np.unpackbits(bits, bitorder="little")[len(flat) :].any()

    plain = mask.flex_mask_mod(torch.from_numpy(tree.mask), prefix)
    tensor = mask.flex_mask_mod(torch.from_numpy(tree.mask), torch.tensor(prefix))
    rows, keys = torch.meshgrid(torch.arange(tree.rows), torch.arange(kv_len), indexing="ij")
    assert torch.equal(tensor(0, 0, rows, keys), torch.from_numpy(want))
    assert all(bool(plain(0, 0, r, k)) == want[r, k] for r in range(tree.rows) for k in range(kv_len))


@given(trees(), st.sampled_from([8, 16, 32, 64]))
def test_words_have_a_bit_a_pair(tree: TokenTree, bits: int) -> None:
    packed = mask.words(tree.mask, bits)  # type: ignore[arg-type]
    assert packed.dtype.itemsize * 8 == bits and packed.shape == (tree.rows, -(-tree.rows // bits))
    for row in range(tree.rows):
        for column in range(packed.shape[1] * bits):
            bit = int(packed[row, column // bits]) >> (column % bits) & 1
            assert bit == (column < tree.rows and sees(tree, row, 0, column)), "spare bits are 0"


@given(st.lists(st.tuples(trees(), st.integers(0, 40)), min_size=1, max_size=4), st.integers(0, 3))
def test_all_forms_of_a_batch_agree(batch: list[tuple[TokenTree, int]], extra: int) -> None:
    """Boolean, flat, packed bytes, words and the function of a batch, pair by pair."""
    masks = [mask.boolean(t.mask, prefix) for t, prefix in batch]
    flat, (packed, at) = mask.flat(masks), mask.packed_bits(masks)
    assert len(flat) == sum(t.rows * (prefix + t.rows) for t, prefix in batch)
    ancestors = mask.stacked([t.mask for t, _ in batch], max(t.rows for t, _ in batch) + extra)
    mod = mask.flex_mask_mod(ancestors, torch.tensor([prefix for _, prefix in batch]))
    kv_len, begin = max(prefix + t.rows for t, prefix in batch) + extra, 0
    groups, rows, keys = torch.arange(len(batch)), torch.arange(ancestors.shape[1]), torch.arange(kv_len)
    dense = mod(groups[:, None, None], None, rows[None, :, None], keys[None, None]).numpy()
    for i, ((tree, prefix), seen) in enumerate(zip(batch, masks, strict=True)):
        assert np.array_equal(flat[begin : begin + seen.size].reshape(seen.shape), seen)
        own = np.unpackbits(packed[at[i] : at[i + 1]], bitorder="little", count=seen.size).astype(bool)
        assert np.array_equal(own.reshape(seen.shape), seen)
        bits = mask.words(tree.mask, 32)
        assert np.array_equal(
            (bits[:, np.arange(tree.rows) // 32] >> (np.arange(tree.rows) % 32).astype(np.uint32) & 1).astype(bool),
            seen[:, prefix:],
        )
        assert np.array_equal(dense[i, : tree.rows, : seen.shape[1]], seen)
        assert not dense[i, : tree.rows, seen.shape[1] :].any(), "keys of longer requests are padding here"
        assert ancestors[i].any(1).all(), "no row of a stack sees nothing"
        begin += seen.size


def test_packed_bits_of_ragged_groups_begin_on_bytes_of_their_own() -> None:
    a, b = np.ones((3, 3), np.bool_), np.tri(4, dtype=np.bool_)
    bits, at = mask.packed_bits([a, b])
    assert at.tolist() == [0, 2, 4]
    assert np.array_equal(np.unpackbits(bits[:2], bitorder="little")[:9].reshape(3, 3), a)
    assert np.array_equal(np.unpackbits(bits[2:], bitorder="little")[:16].reshape(4, 4), b)
    empty, zero = mask.packed_bits([])
    assert len(empty) == 0 and zero.tolist() == [0]


def test_columns_of_earlier_passes_come_first() -> None:
    ancestors = np.array([[True, False, True, False], [False, True, False, True]])
    assert mask.boolean(ancestors, 1, 6).astype(int).tolist() == [[1, 1, 0, 1, 0, 0], [1, 0, 1, 0, 1, 0]]


def test_a_function_knows_columns_of_earlier_passes() -> None:
    ancestors = np.array([[True, False, True, False], [False, True, False, True]])
    mod = mask.flex_mask_mod(torch.from_numpy(ancestors), 3)
    dense = mod(0, 0, torch.arange(2)[:, None], torch.arange(9)[None])
    assert np.array_equal(dense.numpy(), mask.boolean(ancestors, 3, 9))


def test_impossible_masks_are_refused() -> None:
    with pytest.raises(InvariantError, match="3 rows and 3 columns do not fit 2 and 3"):
        mask.stacked([mask.causal(3)], rows=2)
    with pytest.raises(InvariantError, match="cannot hold 3 committed keys and 2 rows"):
        mask.boolean(mask.causal(2), 3, 4)
    with pytest.raises(InvariantError, match="row 1 of a group does not attend to itself"):
        mask.boolean(np.array([[True, False], [True, False]]), 0)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_the_mask_equals_sdpa() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tree = TokenTree.of([0] * 6, [-1, 0, 0, 1, -1, 4])
    prefix, rows = 5, 7
    source = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, rows, 16, generator=source)
    k, v = torch.randn(2, 1, 2, prefix + rows, 16, generator=source)
    block = create_block_mask(
        mask.flex_mask_mod(torch.from_numpy(tree.mask), torch.tensor(prefix)), None, None, rows, prefix + rows,
        device="cpu",
    )
    bias = mask.additive(mask.boolean(tree.mask, prefix))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=block), want, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_over_a_ragged_batch_equals_each_alone() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

    batch = [(TokenTree.of([0] * 6, [-1, 0, 0, 1, -1, 4]), 5), (TokenTree.empty(), 140), (TokenTree.of([0], [-1]), 0)]
    rows, kv_len = 8, 144
    mod = mask.flex_mask_mod(
        mask.stacked([t.mask for t, _ in batch], rows, rows), torch.tensor([prefix for _, prefix in batch])
    )
    source = torch.Generator().manual_seed(0)
    q = torch.randn(3, 2, rows, 16, generator=source)
    k, v = torch.randn(2, 3, 2, kv_len, 16, generator=source)
    block = create_block_mask(mod, 3, None, rows, kv_len, device="cpu")
    found, dense = flex_attention(q, k, v, block_mask=block), create_mask(mod, 3, None, rows, kv_len, device="cpu")
    for i, (tree, prefix) in enumerate(batch):
        seen, end = mask.boolean(tree.mask, prefix, kv_len), prefix + tree.rows
        assert np.array_equal(dense[i, 0, : tree.rows].numpy(), seen)
        want = torch.nn.functional.scaled_dot_product_attention(
            q[i, :, : tree.rows], k[i, :, :end], v[i, :, :end], attn_mask=mask.additive(seen[:, :end])
        )
        torch.testing.assert_close(found[i, :, : tree.rows], want, atol=1e-5, rtol=1e-5)
