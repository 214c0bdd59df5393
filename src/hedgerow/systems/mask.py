"""Ancestor masks: one boolean matrix per group of rows, and every form a kernel may want made from it.

The canonical form is `ancestors[i, j]`: row i may attend to row j of its own group. All committed keys of the slot are
visible to every row, and stand before the group's own keys in slot order; keys beyond them are padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt, UInt8

from hedgerow.core.errors import InvariantError


def boolean(
    ancestors: Bool[np.ndarray, "rows width"], prefix: int, kv_len: int | None = None
) -> Bool[np.ndarray, "rows kv_len"]:
    """Which keys each row sees: `prefix` committed keys, then its ancestors in slot order, then padding up to `kv_len`.

    The last `rows` columns of `ancestors` are the rows themselves; columns before them are rows of earlier passes.

    Raises: InvariantError if `kv_len` is too short, or a row does not see itself (its softmax could be empty).

    >>> boolean(np.array([[True, False], [True, True]]), prefix=1, kv_len=4).astype(int).tolist()
    [[1, 1, 0, 0], [1, 1, 1, 0]]
    """
    rows, width = ancestors.shape
    kv_len = prefix + width if kv_len is None else kv_len
    if kv_len < prefix + width:
        raise InvariantError(f"a mask of {kv_len} keys cannot hold {prefix} committed keys and {width} rows")
    own = np.diagonal(ancestors, width - rows)
    if not own.all():
        raise InvariantError(f"row {int(np.argmin(own))} of a group does not attend to itself")
    out = np.zeros((rows, kv_len), np.bool_)
    out[:, :prefix] = True
    out[:, prefix : prefix + width] = ancestors
    return out


def causal(rows: int) -> Bool[np.ndarray, "rows rows"]:
    """The ancestors of a chain, as prefill uses.

    >>> causal(2).astype(int).tolist()
    [[1, 0], [1, 1]]
    """
    return np.tri(rows, dtype=np.bool_)


def additive(
    visible: Bool[np.ndarray, "rows kv_len"], dtype: torch.dtype = torch.float32
) -> Float[torch.Tensor, "rows kv_len"]:
    """The same mask as a term added to scores: 0 where visible, −inf elsewhere.

    >>> additive(np.array([[True, False]])).tolist()
    [[0.0, -inf]]
    """
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(torch.from_numpy(~visible), float("-inf"))


def words(
    ancestors: Bool[np.ndarray, "rows width"], bits: Literal[8, 16, 32, 64] = 64
) -> UInt[np.ndarray, "rows words"]:
    """One bit a pair of rows: bit j mod `bits` of word j // `bits` in row i is `ancestors[i, j]`; spare bits are 0.

    Committed keys have no bits: every row sees them. A kernel that holds a tree in one word a row takes the narrowest
    one that fits.

    Source: sgl-project/sglang, `TreeMaskMode.QLEN_ONLY_BITPACKING`; differs in that a row may have several words.

    >>> words(np.array([[True, False, False], [True, True, False], [True, False, True]]), 8).tolist()
    [[1], [3], [5]]
    """
    rows, width = ancestors.shape
    padded = np.zeros((rows, max(-(-width // bits), 1) * bits), np.bool_)
    padded[:, :width] = ancestors
    packed = np.packbits(padded, axis=1, bitorder="little")
    return packed.view(np.dtype(f"<u{bits // 8}"))


def flat(masks: Sequence[Bool[np.ndarray, "rows kv_len"]]) -> Bool[np.ndarray, " pairs"]:
    """Ragged masks one behind the other, each row-major, committed keys included.

    Source: arXiv 2501.01005 (FlashInfer), the `custom_mask` of its batch prefill wrappers, which pack it themselves.

    >>> flat([np.array([[True, False], [True, True]]), np.array([[True]])]).astype(int).tolist()
    [1, 0, 1, 1, 1]
    """
    return np.concatenate([m.reshape(-1) for m in masks]) if masks else np.empty(0, np.bool_)


def packed_bits(
    masks: Sequence[Bool[np.ndarray, "rows kv_len"]],
) -> tuple[UInt8[np.ndarray, " bytes"], Int[np.ndarray, " groups_plus_1"]]:
    """Ragged masks as bits, and the byte where each begins: row-major per group, 8 per byte, lowest bit first.

    Each group starts on a byte of its own; spare bits of its last byte are 0. The second value is what the kernel wants
    in `mask_indptr`; a `plan()` that is handed packed bits may fill that buffer with offsets in bits, which are right
    for the first group only, so write this over it, or hand it `flat` masks.

    Source: arXiv 2501.01005 (FlashInfer), the `packed_custom_mask` and `mask_indptr` of its prefill wrappers.

    >>> bits, at = packed_bits([np.array([[True, False], [True, True]]), np.array([[True]])])
    >>> bits.tolist(), at.tolist()
    ([13, 1], [0, 1, 2])
    """
    parts = [np.packbits(m.reshape(-1), bitorder="little") for m in masks]
    at = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int32)
    return (np.concatenate(parts) if parts else np.empty(0, np.uint8)), at


def stacked(
    groups: Sequence[Bool[np.ndarray, "_ _"]], rows: int | None = None, width: int | None = None
) -> Bool[torch.Tensor, "batch rows width"]:
    """Ancestors of ragged groups in one tensor; `rows` and `width` of the largest, or as given (a bucket's).

    Padding rows see the first column only, so that no softmax is empty; padding columns are seen by nobody.

    Raises: InvariantError if a group is larger than what was given.

    >>> stacked([np.array([[True]]), causal(2)]).int().tolist()
    [[[1, 0], [1, 0]], [[1, 0], [1, 1]]]
    """
    most = max((g.shape[0] for g in groups), default=0), max((g.shape[1] for g in groups), default=0)
    size = most[0] if rows is None else rows, most[1] if width is None else width
    if size[0] < most[0] or size[1] < most[1]:
        raise InvariantError(f"ancestors of {most[0]} rows and {most[1]} columns do not fit {size[0]} and {size[1]}")
    out = torch.zeros(len(groups), *size, dtype=torch.bool)
    for one, g in zip(out, groups, strict=True):
        one[: g.shape[0], : g.shape[1]] = torch.from_numpy(g)
        one[g.shape[0] :, :1] = True
    return out


def flex_mask_mod(ancestors: Bool[torch.Tensor, "*batch rows width"], prefix: Any) -> Callable[..., Any]:
    """The same mask as a function (batch, head, row, key) for FlexAttention's `create_block_mask`.

    `ancestors` is captured as a tensor (padded rows included) and `prefix` may be a 0-d tensor, so a compiled kernel is
    reused when their contents change. With a batch in front (`stacked`), `prefix` [batch] has a length for each group.

    Source: arXiv 2412.05496.
    """
    width, batched = ancestors.shape[-1], ancestors.ndim == 3

    def mask_mod(batch: Any, head: Any, q: Any, kv: Any) -> Any:
        before = prefix[batch] if batched else prefix
        own = kv - before
        inside = (own >= 0) & (own < width)
        index = own.clamp(0, width - 1) if isinstance(own, torch.Tensor) else min(max(own, 0), width - 1)
        seen = ancestors[batch, q, index] if batched else ancestors[q, index]
        return (kv < before) | (inside & seen)

    return mask_mod
