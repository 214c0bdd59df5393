"""Attention of one forward pass over packed rows of several slots.

Rows of all groups lie behind one another in one sequence, as the linear layers want them; attention runs group by
group, each against its slot's keys. Query heads that share a key head are folded into rows, so that keys are read once.

Row invariance. A row must come out bit for bit the same whatever other rows the step has, or plain and speculative
decoding drift apart. In a tree the keys of a path stand scattered among its siblings', so a kernel that sums in lanes
or pairs adds the same numbers in another order. On the CPU sums are therefore taken so that order cannot matter:

* scores, weights and the weighted sum are computed in float32 by plain matrix products, which add key after key: keys
  between that are not seen add exact zeros;
* the sum over keys is cut where *positions* cross multiples of `BLOCK`, not where places do, and the products of a cut
  stay short enough (`BLOCK` + pending keys ≤ 192) for the library not to cut them itself;
* cuts are added, and weights summed, in float64, whose rounding disappears in the result;
* no group has fewer than `MIN_ROWS` rows: below, matrix products take another path.

Elsewhere PyTorch's own kernel runs with an additive mask, on key lengths rounded up alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int

from hedgerow.systems import mask
from hedgerow.systems.kv import KVStore, Reader
from hedgerow.systems.slots import Places

MIN_ROWS = 4
BLOCK = 128
_PAD = 64                                 # lengths of products are multiples of this


class Span(NamedTuple):
    """`rows` rows of the packed sequence, from `start`: they belong to `slot`, which has `prefix` keys all of them see.

    `ancestors` has a column for each pending row of the slot, earlier passes' first; the last `rows` are the rows' own.
    `positions` are those of the columns (None: the order of the columns).
    """

    slot: int
    start: int
    rows: int
    prefix: int
    ancestors: Bool[np.ndarray, "rows width"]
    positions: Int[np.ndarray, " width"] | None = None


class Layout(NamedTuple):
    """How the keys of a group are laid out for the products.

    `order`: place of each key, −1 for padding; None when keys stand as in the slot. The first `full` blocks of `BLOCK`
    keys are one batched product, each of `cuts` is one of its own.
    """

    order: Int[np.ndarray, " kv_len"] | None
    kv_len: int
    full: int
    cuts: list[tuple[int, int]]


def layout(prefix: int, positions: Int[np.ndarray, " width"] | None, width: int) -> Layout:
    """Keys grouped by the block of their position; committed keys stand at their positions already.

    >>> layout(126, np.array([126, 127, 127, 128]), 4)[1:]
    (256, 0, [(0, 192), (192, 256)])
    >>> layout(126, None, 4)[1:]
    (192, 1, [(128, 192)])
    """
    end = prefix + width
    places = np.arange(prefix, end)
    at = places if positions is None else positions
    if np.array_equal(at, places):        # a chain: places are positions
        full, kv_len = end // BLOCK, -(-end // _PAD) * _PAD
        return Layout(None, kv_len, full, [(full * BLOCK, kv_len)] if kv_len > full * BLOCK else [])
    full = prefix // BLOCK
    block = np.concatenate([np.arange(full * BLOCK, prefix) // BLOCK, at // BLOCK])
    inside = np.concatenate([np.arange(full * BLOCK, prefix), places])
    parts, cuts, begin = [np.arange(full * BLOCK)], [], full * BLOCK
    for b in np.unique(block):
        part = inside[block == b]
        length = -(-len(part) // _PAD) * _PAD
        parts += [part, np.full(length - len(part), -1)]
        cuts.append((begin, begin + length))
        begin += length
    order = np.concatenate(parts)
    if len(cuts) == 1:                    # one cut: siblings stand behind the committed keys, as in the slot
        return Layout(None, begin, full, cuts)
    return Layout(order, begin, full, cuts)


@dataclass(frozen=True)
class _Group:
    start: int
    rows: int
    padded: int
    layout: Layout
    bias: torch.Tensor                    # [1, fold * padded, kv_len], 0 or −inf
    new: list[Places]                     # where the rows' own keys and values go
    seen: Reader                          # all keys and values the group reads, as laid out


class Workspace:
    """Memory for the keys and values of one layer in float32, kept from step to step."""

    def __init__(self) -> None:
        self._memory = {side: torch.empty(0) for side in "kv"}
        self._views = dict(self._memory)

    def get(self, side: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor of this shape with anything in it, until the next call for the same side."""
        view = self._views[side]
        if view.shape != shape:           # layers of one step ask for one shape again and again
            size = math.prod(shape)
            if self._memory[side].numel() < size:
                self._memory[side] = torch.empty(size + size // 2)
            view = self._views[side] = self._memory[side][:size].view(shape)
        return view


class StepAttention:
    """What every attention layer of one forward pass needs: which rows are whose, where keys go, who sees what.

    `total` packed rows, of which the spans cover the first ones; rows beyond them are padding and come out as zeros.

    >>> from hedgerow.systems.kv_paged import PagedKV
    >>> kv = PagedKV(layers=1, kv_heads=1, head_dim=2, slots=1, max_len=8, max_rows=8)
    >>> slot = kv.acquire(); kv.stage(slot, 1)
    >>> step = StepAttention(kv, [Span(slot, 0, 1, 0, mask.causal(1))], total=1, heads=2)
    >>> row = torch.ones(1, 1, 2)
    >>> step.write(0, row, row)
    >>> step.attend(0, torch.ones(2, 1, 2), scale=1.0).tolist()
    [[[1.0, 1.0], [1.0, 1.0]]]
    """

    def __init__(
        self, kv: KVStore, spans: Sequence[Span], total: int, heads: int, workspace: Workspace | None = None,
        ordered: bool | None = None,
    ) -> None:
        self.kv, self.total = kv, total
        self.fold = heads // kv.kv_heads
        self.ordered = kv.device.type == "cpu" if ordered is None else ordered
        self._workspace = workspace or Workspace()
        self._groups = [self._group(span) for span in spans]

    def _group(self, span: Span) -> _Group:
        padded = max(span.rows, MIN_ROWS)
        width = span.ancestors.shape[1]
        plan = layout(span.prefix, span.positions if self.ordered else None, width)
        seen = np.zeros((padded, plan.kv_len), np.bool_)
        seen[: span.rows] = mask.boolean(span.ancestors, span.prefix, plan.kv_len if plan.order is None else None)[
            :, slice(None) if plan.order is None else plan.order
        ]
        order = None
        if plan.order is not None:
            seen[:, plan.order < 0] = False
            order = torch.from_numpy(np.maximum(plan.order, 0)).to(self.kv.device)
        seen[span.rows :, 0] = True       # a row that sees nothing would divide by zero
        bias = mask.additive(seen, torch.float32 if self.ordered else self.kv.dtype).to(self.kv.device)
        end = span.prefix + width
        return _Group(
            span.start, span.rows, padded, plan, bias.repeat(self.fold, 1)[None],
            new=self.kv.places(span.slot, end - span.rows, end),
            seen=self.kv.read(span.slot, plan.kv_len if order is None else end, order),
        )

    def write(
        self, layer: int, k: Float[torch.Tensor, "kv_heads total head_dim"],
        v: Float[torch.Tensor, "kv_heads total head_dim"],
    ) -> None:
        """Store the keys and values of all rows in their slots."""
        for g in self._groups:
            for begin, end, views in g.new:
                views[2 * layer].copy_(k[:, g.start + begin : g.start + end])
                views[2 * layer + 1].copy_(v[:, g.start + begin : g.start + end])

    def attend(
        self, layer: int, q: Float[torch.Tensor, "heads total head_dim"], scale: float
    ) -> Float[torch.Tensor, "total heads head_dim"]:
        """softmax(q kᵀ · scale + mask) v for every row, over its own slot's keys."""
        outs = [self._attend(layer, q, g, scale) for g in self._groups]
        done = sum(g.rows for g in self._groups)
        if done < self.total:
            outs.append(outs[0].new_zeros(self.total - done, *outs[0].shape[1:]))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend(self, layer: int, q: torch.Tensor, g: _Group, scale: float) -> torch.Tensor:
        heads, total, dim = q.shape
        if g.start or total != g.padded:
            q = q[:, g.start : g.start + g.padded]  # the rows of the next group serve as padding
            if q.shape[1] < g.padded:
                q = F.pad(q, (0, 0, 0, g.padded - q.shape[1]))
        folded = q.reshape(self.kv.kv_heads, self.fold * g.padded, dim)
        out = (self._ordered if self.ordered else self._library)(folded, layer, g, scale)
        return out.view(heads, g.padded, dim)[:, : g.rows].transpose(0, 1)

    def _library(self, q: torch.Tensor, layer: int, g: _Group, scale: float) -> torch.Tensor:
        """PyTorch's own kernel, always with a mask: without one it takes another path."""
        keys, values = g.seen.tensor(2 * layer)[None], g.seen.tensor(2 * layer + 1)[None]
        return F.scaled_dot_product_attention(q[None], keys, values, attn_mask=g.bias, scale=scale)

    def _float(self, side: int, g: _Group) -> Float[torch.Tensor, "kv_heads kv_len head_dim"]:
        """Keys or values of a group as the products want them."""
        shape = (self.kv.kv_heads, g.layout.kv_len, self.kv.head_dim)
        return g.seen.into(side, self._workspace.get("kv"[side % 2], shape))

    def _ordered(self, q: torch.Tensor, layer: int, g: _Group, scale: float) -> torch.Tensor:
        """Attention whose sums do not depend on where keys stand; see the head of this file."""
        heads, rows, dim = q.shape
        keys, values = self._float(2 * layer, g), self._float(2 * layer + 1, g)
        weight = torch.baddbmm(g.bias, q.float(), keys.transpose(1, 2), alpha=scale)
        weight = weight.sub_(weight.amax(-1, keepdim=True)).exp_()
        total = weight.sum(-1, keepdim=True, dtype=torch.float64)
        sums = [torch.bmm(weight[:, :, a:b], values[:, a:b]).double() for a, b in g.layout.cuts]
        if g.layout.full:
            full, end = g.layout.full, g.layout.full * BLOCK
            blocks = torch.bmm(
                weight[:, :, :end].reshape(heads, rows, full, BLOCK).transpose(1, 2).reshape(-1, rows, BLOCK),
                values[:, :end].reshape(-1, BLOCK, dim),
            )
            sums.append(blocks.view(heads, full, rows, dim).sum(1, dtype=torch.float64))
        return (reduce(torch.add, sums) / total).to(q.dtype)
