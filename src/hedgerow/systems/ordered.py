"""Attention in parts whose sums do not depend on the order of keys or on who else attends.

A row must come out bit for bit the same whatever other rows the step has, or plain and speculative decoding drift
apart. In a tree the keys of a path stand scattered among its siblings', so a kernel that sums in lanes or pairs adds
the same numbers in another order. Here sums are taken so that order cannot matter:

* scores, weights and the weighted sum are computed in float32 by plain matrix products, which add key after key: keys
  between that are not seen add exact zeros;
* the sum over keys is cut where *positions* cross multiples of `BLOCK`, not where places do, and the products of a cut
  stay short enough (`BLOCK` + pending keys ≤ 192) for the library not to cut them itself;
* cuts are added, and weights summed, in float64, whose rounding disappears in the result.

So the mask can be short: whole blocks of committed keys, which every row sees, need none (LongSpec). And keys can be
read in parts: blocks that several requests share once for the rows of all of them (DeFT). All parts of a row have its
one maximum, so what they sum to is simply added: a row has the bits it has alone, in one part, under a whole mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from hedgerow.systems.kv import Reader

BLOCK = 128
PAD = 64                                  # lengths of products are multiples of this


class Layout(NamedTuple):
    """How the keys of a part are laid out for the products.

    `order`: place of each key, −1 for padding; None when keys stand as in the slot. The first `full` blocks of `BLOCK`
    keys are one batched product, each of `cuts` is one of its own.
    """

    order: Int[np.ndarray, " kv_len"] | None
    kv_len: int
    full: int
    cuts: list[tuple[int, int]]


def layout(prefix: int, positions: Int[np.ndarray, " width"] | None, width: int, opened: int = 0) -> Layout:
    """Keys behind the first `opened` blocks, grouped by the block of their position.

    Committed keys stand at their positions already; the first `opened` blocks hold such keys only.

    >>> layout(126, np.array([126, 127, 127, 128]), 4)[1:]
    (256, 0, [(0, 192), (192, 256)])
    >>> layout(126, None, 4)[1:]
    (192, 1, [(128, 192)])
    >>> layout(300, None, 4, opened=2)
    Layout(order=None, kv_len=64, full=0, cuts=[(0, 64)])
    """
    end, start = prefix + width, opened * BLOCK
    places = np.arange(prefix, end)
    at = places if positions is None else positions
    if np.array_equal(at, places):        # a chain: places are positions
        full, kv_len = end // BLOCK - opened, -(-end // PAD) * PAD - start
        return Layout(None, kv_len, full, [(full * BLOCK, kv_len)] if kv_len > full * BLOCK else [])
    whole = prefix // BLOCK
    block = np.concatenate([np.arange(whole * BLOCK, prefix) // BLOCK, at // BLOCK])
    inside = np.concatenate([np.arange(whole * BLOCK, prefix), places])
    full = whole - opened
    parts, cuts, begin = [np.arange(start, whole * BLOCK)], [], full * BLOCK
    for b in np.unique(block):
        part = inside[block == b]
        length = -(-len(part) // PAD) * PAD
        parts += [part, np.full(length - len(part), -1)]
        cuts.append((begin, begin + length))
        begin += length
    if len(cuts) == 1:                    # one cut: siblings stand behind the committed keys, as in the slot
        return Layout(None, begin, full, cuts)
    return Layout(np.concatenate(parts), begin, full, cuts)


class Segment(NamedTuple):
    """Blocks `begin` … `end` of all `members` are the same keys."""

    begin: int
    end: int
    members: tuple[int, ...]


def segments(chains: Sequence[Sequence[Hashable]]) -> list[Segment]:
    """Chains of blocks as the tree they form, each of its edges once, with everybody who passes it.

    Source: DeFT (arXiv 2404.00242) section 3, the grouping of queries by the keys they read; differs from the paper in
    that a segment is not cut into pieces of equal size, since a few large products are what a CPU is good at.

    >>> [tuple(s) for s in segments([["a", "b", "c"], ["a", "b"], ["d"]])]
    [(0, 2, (0, 1)), (0, 1, (2,)), (2, 3, (0,))]
    """
    out = []
    todo = [(0, tuple(range(len(chains))))]
    while todo:
        begin, group = todo.pop()
        by_block: dict[Hashable, list[int]] = {}
        for i in group:
            if len(chains[i]) > begin:
                by_block.setdefault(chains[i][begin], []).append(i)
        below = []
        for members in by_block.values():
            end, first = begin + 1, chains[members[0]]
            while end < len(first) and all(len(chains[i]) > end and chains[i][end] == first[end] for i in members):
                end += 1
            out.append(Segment(begin, end, tuple(members)))
            below.append((end, tuple(members)))
        todo += below[::-1]
    return out


class Part(NamedTuple):
    """Keys that some rows attend to: which rows, where the keys are, how they are laid out, who sees which.

    `rows` of the folded queries. `pieces`: readers, each with the number of keys it gives, one behind the other. `bias`
    [1, rows, last keys] is 0 or −∞ for the last keys of the part; those before it, or without it all, every row sees.
    """

    rows: slice | Int[torch.Tensor, " part"]
    pieces: tuple[tuple[Reader, int], ...]
    layout: Layout
    bias: torch.Tensor | None


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


Fetch = Callable[[str, Part], Float[torch.Tensor, "kv_heads kv_len head_dim"]]


def attend(
    q: Float[torch.Tensor, "kv_heads rows head_dim"], parts: Sequence[Part], fetch: Fetch, scale: float
) -> Float[torch.Tensor, "kv_heads rows head_dim"]:
    """softmax(q kᵀ · scale + bias) v over all parts of a row, float32. Every row has a key that it sees.

    `fetch`: keys (`k`) or values (`v`) of a part in float32, good until it is called for the same side again.

    Source: LongSpec (arXiv 2502.17421) section 4.3; differs from the paper in that parts share a row's maximum instead
    of being weighed by their log-sum-exp afterwards: where a context is cut must not show in the bits of a row.
    """
    scores = [_scores(q[:, p.rows], fetch("k", p), p.bias, scale) for p in parts]
    if len(parts) == 1:
        weight = scores[0].sub_(scores[0].amax(-1, keepdim=True)).exp_()
        summed = _summed(weight, fetch("v", parts[0]), parts[0].layout)
        return (summed / weight.sum(-1, keepdim=True, dtype=torch.float64)).float()
    heads, rows, dim = q.shape
    peak = q.new_full((heads, rows, 1), -math.inf)
    for p, s in zip(parts, scores, strict=True):
        peak[:, p.rows] = torch.maximum(peak[:, p.rows], s.amax(-1, keepdim=True))
    summed, total = (q.new_zeros((heads, rows, n), dtype=torch.float64) for n in (dim, 1))
    for p, s in zip(parts, scores, strict=True):
        weight = s.sub_(peak[:, p.rows]).exp_()
        total[:, p.rows] += weight.sum(-1, keepdim=True, dtype=torch.float64)
        summed[:, p.rows] += _summed(weight, fetch("v", p), p.layout)
    return (summed / total).float()


def _scores(q: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor | None, scale: float) -> torch.Tensor:
    if bias is not None and bias.shape[2] == keys.shape[1]:
        return torch.baddbmm(bias, q, keys.transpose(1, 2), alpha=scale)
    s = torch.baddbmm(q.new_empty(1), q, keys.transpose(1, 2), beta=0, alpha=scale)
    if bias is not None:
        s[:, :, -bias.shape[2] :] += bias
    return s


def _summed(weight: torch.Tensor, values: torch.Tensor, plan: Layout) -> torch.Tensor:
    """Σ weight · value over the keys of a part, cut after cut, in float64."""
    out: torch.Tensor | None = None
    for a, b in plan.cuts:
        cut = torch.bmm(weight[:, :, a:b], values[:, a:b]).double()
        out = cut if out is None else out.add_(cut)
    if plan.full:
        heads, rows, _ = weight.shape
        full, end = plan.full, plan.full * BLOCK
        blocks = torch.bmm(
            weight[:, :, :end].reshape(heads, rows, full, BLOCK).transpose(1, 2).reshape(-1, rows, BLOCK),
            values[:, :end].reshape(-1, BLOCK, values.shape[2]),
        ).view(heads, full, rows, -1).sum(1, dtype=torch.float64)
        out = blocks if out is None else out.add_(blocks)
    return out  # type: ignore[return-value]  # a part has keys
