"""The buffers of a recorded step, and attention over them: every shape fixed, every number read on the device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int

from hedgerow.systems.attention import Span
from hedgerow.systems.kv import KVStore

_BITS = 32                                # of a word of ancestors; a word is an int64, so that none is negative


class Inputs:
    """All numbers of a step of at most `rows` packed rows and `groups` × `width` cells, as one buffer.

    `tokens`, `positions` [rows]; `page`, `offset` [rows]: the place of each packed row's key; `cell` [rows]: its cell
    of the grid; `row` [groups · width]: the packed row of each cell; `length` [groups]: committed tokens; `words`
    [groups, width, words]: ancestors of each cell, bit j for place length + j; `pages` [groups, pages]: the pages of
    each group's `kv_len` places.
    """

    def __init__(self, kv: KVStore, rows: int, groups: int, width: int, kv_len: int) -> None:
        self.rows, self.groups, self.width, self.kv_len = rows, groups, width, kv_len
        self.page_len = kv.pool.shape[3]
        self.by_slot = self.page_len == kv.room        # every slot is a page: a group sits at its slot's number
        self.shapes = {
            "tokens": (rows,), "positions": (rows,), "page": (rows,), "offset": (rows,), "cell": (rows,),
            "row": (groups * width,), "length": (groups,), "words": (groups, width, -(-width // _BITS)),
            "pages": (groups, -(-kv_len // self.page_len)),
        }
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        cuda = kv.device.type == "cuda"
        staged = torch.zeros(sum(sizes), dtype=torch.int64, pin_memory=cuda)
        self._staged, self._device = staged, staged if not cuda else torch.zeros_like(staged, device=kv.device)
        self._copied = torch.cuda.Event() if cuda else None
        at = [0, *accumulate(sizes)]
        parts = {
            name: slice(a, b) for (name, a), b in zip(zip(self.shapes, at, strict=False), at[1:], strict=True)
        }
        numbers = staged.numpy()
        self._host = {name: numbers[parts[name]].reshape(shape) for name, shape in self.shapes.items()}
        view = {name: self._device[parts[name]].view(shape) for name, shape in self.shapes.items()}
        self.tokens, self.positions, self.page, self.offset = (
            view[name] for name in ("tokens", "positions", "page", "offset")
        )
        self.cell, self.row, self.length, self.words, self.pages = (
            view[name] for name in ("cell", "row", "length", "words", "pages")
        )
        self._bits = np.zeros((groups, width, self.shapes["words"][2] * _BITS), np.bool_)

    def fill(
        self, kv: KVStore, tokens: Int[np.ndarray, " rows"], positions: Int[np.ndarray, " rows"], spans: Sequence[Span]
    ) -> None:
        """Lay out a step, and start its copy to the device. Padding rows repeat row 0, padding cells see one key."""
        if self._copied is not None:
            self._copied.synchronize()    # the copy before may still be reading
        host, count = self._host, len(tokens)
        bits = self._bits
        bits[:] = False
        bits[:, :, 0] = True
        host["length"][:] = 0
        host["row"][:] = 0
        host["pages"][:] = 0
        place = np.empty(count, np.int64)
        group = np.empty(count, np.int64)
        columns = self.shapes["pages"][1]
        for i, s in enumerate(spans):
            g = s.slot if self.by_slot else i
            width = s.ancestors.shape[1]
            own = slice(s.start, s.start + s.rows)
            bits[g, : s.rows, :width] = s.ancestors
            host["length"][g] = s.prefix
            first = s.prefix + width - s.rows
            place[own] = np.arange(first, first + s.rows)
            group[own] = g
            host["cell"][own] = np.arange(g * self.width, g * self.width + s.rows)
            if not self.by_slot:
                table = kv.table(s.slot)[0][:columns]
                host["pages"][g, : len(table)] = table
        host["tokens"][:count], host["positions"][:count] = tokens, positions
        host["row"][host["cell"][:count]] = np.arange(count)
        if self.by_slot:
            host["page"][:count], host["offset"][:count] = group, place
        else:
            host["page"][:count] = host["pages"][group, place // self.page_len]
            host["offset"][:count] = place % self.page_len
        for name in ("tokens", "positions", "page", "offset", "cell"):
            host[name][count:] = host[name][0]
        host["words"][:] = np.packbits(bits, axis=-1, bitorder="little").view(f"<u{_BITS // 8}")
        self._send()

    def blank(self) -> None:
        """A step of one row that writes place 0 of page 0 and sees it."""
        self._staged.zero_()
        self._host["words"][..., 0] = 1
        self._send()

    def _send(self) -> None:
        if self._copied is not None:
            self._device.copy_(self._staged, non_blocking=True)
            self._copied.record()


class StaticAttention:
    """Attention of a recorded pass; `begin` comes first in it. Twin of `attention.StepAttention`."""

    def __init__(self, kv: KVStore, inputs: Inputs, heads: int) -> None:
        self.inputs, self.heads, self.kv_heads = inputs, heads, kv.kv_heads
        self.fold = heads // kv.kv_heads
        self._dtype = kv.dtype
        self._sides = kv.pool.unbind(0)   # [pages, kv_heads, page_len, head_dim] each
        self._bias = self._index = torch.empty(0)

    def begin(self) -> None:
        """Make what all layers share of the inputs: the mask, and where keys stand."""
        x = self.inputs
        shift = torch.arange(_BITS, device=x.words.device)
        bits = (x.words[..., None] >> shift).bitwise_and(1).flatten(2) > 0            # [groups, width, words · 32]
        own = torch.arange(x.kv_len, device=x.words.device) - x.length[:, None]       # [groups, kv_len]
        column = own.clamp(0, x.width - 1)[:, None].expand(x.groups, x.width, x.kv_len)
        inside = ((own >= 0) & (own < x.width))[:, None]
        seen = (own < 0)[:, None] | (inside & bits.gather(2, column))
        bias = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device).masked_fill(~seen, float("-inf"))
        self._bias = bias[:, None].expand(-1, self.fold, -1, -1).reshape(x.groups, 1, self.fold * x.width, x.kv_len)
        if not x.by_slot:                 # rows of a pool seen as [pages · kv_heads, page_len · head_dim]
            heads = torch.arange(self.kv_heads, device=x.pages.device)
            self._index = (x.pages[:, None] * self.kv_heads + heads[None, :, None]).reshape(-1)

    def write(
        self, layer: int, k: Float[torch.Tensor, "kv_heads total head_dim"],
        v: Float[torch.Tensor, "kv_heads total head_dim"],
    ) -> None:
        """Store the keys and values of all rows in their places."""
        for side, new in ((2 * layer, k), (2 * layer + 1, v)):
            places = self._sides[side].transpose(1, 2)  # [pages, page_len, kv_heads, head_dim]
            places.index_put_((self.inputs.page, self.inputs.offset), new.transpose(0, 1))

    def attend(
        self, layer: int, q: Float[torch.Tensor, "heads total head_dim"], scale: float
    ) -> Float[torch.Tensor, "total heads head_dim"]:
        """softmax(q kᵀ · scale + mask) v for every packed row, over its own group's keys."""
        x, dim = self.inputs, q.shape[-1]
        grid = q.transpose(0, 1).index_select(0, x.row).view(x.groups, x.width, self.kv_heads, self.fold, dim)
        folded = grid.permute(0, 2, 3, 1, 4).reshape(x.groups, self.kv_heads, self.fold * x.width, dim)
        out = F.scaled_dot_product_attention(
            folded, self._seen(2 * layer), self._seen(2 * layer + 1), attn_mask=self._bias, scale=scale
        )
        cells = out.view(x.groups, self.kv_heads, self.fold, x.width, dim).permute(0, 3, 1, 2, 4)
        return cells.reshape(x.groups * x.width, self.heads, dim).index_select(0, x.cell)

    def _seen(self, side: int) -> Float[torch.Tensor, "groups kv_heads kv_len head_dim"]:
        """Keys or values of all groups: a view where slots are pages of their own, else gathered."""
        x, pool = self.inputs, self._sides[side]
        if x.by_slot:
            return pool[: x.groups, :, : x.kv_len]
        pages, heads, tokens, dim = pool.shape
        rows = pool.reshape(pages * heads, tokens * dim).index_select(0, self._index)
        return rows.view(x.groups, heads, -1, dim)[:, :, : x.kv_len]
