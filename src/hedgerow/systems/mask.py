"""Ancestor masks: one boolean matrix per group of rows, and every form a kernel may want made from it.

The canonical form is `ancestors[i, j]`: row i may attend to row j of its own group. All committed keys of the slot are
visible to every row, and stand before the group's own keys in slot order; keys beyond them are padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8

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


def packed_bits(
    masks: Sequence[Bool[np.ndarray, "rows kv_len"]],
) -> tuple[UInt8[np.ndarray, " bytes"], Int[np.ndarray, " groups_plus_1"]]:
    """Ragged masks as bits, and the byte where each begins: row-major per group, 8 per byte, lowest bit first.

    Each group starts on a byte of its own; spare bits of its last byte are 0.

    Source: arXiv 2501.01005 (FlashInfer), the `packed_custom_mask` and `mask_indptr` of its prefill wrappers.

    >>> bits, at = packed_bits([np.array([[True, False], [True, True]]), np.array([[True]])])
    >>> bits.tolist(), at.tolist()
    ([13, 1], [0, 1, 2])
    """
    parts = [np.packbits(m.reshape(-1), bitorder="little") for m in masks]
    at = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int32)
    return (np.concatenate(parts) if parts else np.empty(0, np.uint8)), at


def flex_mask_mod(ancestors: Bool[torch.Tensor, "rows rows"], prefix: Any) -> Callable[..., Any]:
    """The same mask as a function for FlexAttention's `create_block_mask`.

    `ancestors` is captured as a tensor (padded rows included) and `prefix` may be a 0-d tensor, so a compiled kernel is
    reused when their contents change. Source: arXiv 2412.05496.
    """
    rows = ancestors.shape[0]

    def mask_mod(batch: Any, head: Any, q: Any, kv: Any) -> Any:
        own = kv - prefix
        inside = (own >= 0) & (own < rows)
        index = own.clamp(0, rows - 1) if isinstance(own, torch.Tensor) else min(max(own, 0), rows - 1)
        return (kv < prefix) | (inside & ancestors[q, index])

    return mask_mod
