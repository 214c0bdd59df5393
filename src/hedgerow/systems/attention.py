"""Attention of one forward pass over packed rows of several slots.

Rows of all groups lie behind one another in one sequence, as the linear layers want them; attention runs group by
group, each against its slot's keys. Query heads that share a key head are folded into rows, so that keys are read once.

The committed keys of a long context are whole blocks that every row sees: they need no mask, so no mask of all rows
times all keys is ever made; the keys behind them, the tree's among them, have a small one. Blocks that several slots
have in common (one prompt, or a fork) are read once for the rows of all of them.

On the CPU a row comes out bit for bit the same in any tree, batch and number of parts (`systems.ordered`); no group has
fewer than `MIN_ROWS` rows, because below that matrix products take another path. Elsewhere PyTorch's own kernel runs
with an additive mask over all keys, on lengths rounded up alike, or on request in parts (`systems.lse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int

from hedgerow.systems import lse, mask, ordered
from hedgerow.systems.kv import KVStore
from hedgerow.systems.ordered import BLOCK, Layout, Part, Workspace, layout, segments
from hedgerow.systems.slots import Places

MIN_ROWS = 4
NEVER = 1 << 30


class Parts(NamedTuple):
    """The fewest blocks of committed keys of a slot that have no mask (`clear`), and that several read once (`shared`).

    They change no bit of a row on the CPU; elsewhere results are equal up to rounding. The defaults are where each
    begins to pay (`bench.attention`).
    """

    clear: int = 16
    shared: int = 4


WHOLE = Parts(NEVER, NEVER)


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


@dataclass(frozen=True)
class _Group:
    """A span as it is attended: its first row, rows, padded rows, and where the rows' own keys and values go."""

    start: int
    rows: int
    padded: int
    new: list[Places]


@dataclass(frozen=True)
class _Cluster:
    """Groups that share keys: their queries, folded and packed behind one another, meet these parts."""

    groups: list[_Group]
    parts: list[Part]


class StepAttention:
    """What every attention layer of one forward pass needs: which rows are whose, where keys go, who sees what.

    `total` packed rows, of which the spans cover the first ones; rows beyond them are padding and come out as zeros.
    `ordered`: sums that do not depend on the order of keys (None: on the CPU). `parts`: how keys are read in parts
    (None: `Parts()` where rows keep their bits under it, `WHOLE` elsewhere, where nobody has measured what it brings).

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
        ordered: bool | None = None, parts: Parts | None = None,
    ) -> None:
        self.kv, self.total = kv, total
        self.fold = heads // kv.kv_heads
        self.ordered = kv.device.type == "cpu" if ordered is None else ordered
        self._workspace = workspace or Workspace()
        self._parts = parts or (Parts() if self.ordered else WHOLE)
        chains = [[] if self._parts == WHOLE else _blocks(kv, s) for s in spans]
        self._clusters = [
            self._cluster([spans[i] for i in members], [chains[i] for i in members])
            for members in _clusters(chains, self._parts.shared)
        ]
        self._groups = [g for c in self._clusters for g in c.groups]

    def _cluster(self, spans: Sequence[Span], chains: Sequence[Sequence[tuple[int, ...]]]) -> _Cluster:
        """Parts of spans that share their first blocks (or of one): shared blocks, then the rest of each."""
        groups = [self._group(s) for s in spans]
        ends = np.cumsum([self.fold * g.padded for g in groups]).tolist()
        rows = [slice(end - self.fold * g.padded, end) for g, end in zip(groups, ends, strict=True)]
        parts, opened = list[Part](), [0] * len(spans)
        for s in segments(chains):
            if len(s.members) == 1 or s.end - s.begin < self._parts.shared or opened[s.members[0]] < s.begin:
                continue
            for i in s.members:
                opened[i] = s.end
            keys = (s.end - s.begin) * BLOCK
            seen = self.kv.read(spans[s.members[0]].slot, s.end * BLOCK, begin=s.begin * BLOCK)
            mine = _joined([rows[i] for i in s.members], self.kv.device)
            parts.append(Part(mine, ((seen, keys),), Layout(None, keys, s.end - s.begin, []), None))
        parts += [self._rest(*x) for x in zip(spans, groups, rows, opened, strict=True)]
        return _Cluster(groups, parts)

    def _group(self, span: Span) -> _Group:
        end = span.prefix + span.ancestors.shape[1]
        return _Group(
            span.start, span.rows, max(span.rows, MIN_ROWS), self.kv.places(span.slot, end - span.rows, end)
        )

    def _rest(self, span: Span, group: _Group, rows: slice, opened: int) -> Part:
        """The keys behind the `opened` blocks, with a mask for those that are not whole blocks of committed ones."""
        width, start, whole = span.ancestors.shape[1], opened * BLOCK, span.prefix // BLOCK
        plan = layout(span.prefix, span.positions if self.ordered else None, width, opened)
        clear = (whole - opened) * BLOCK if whole - opened >= self._parts.clear else 0
        masked = plan.kv_len - clear
        seen = np.zeros((group.padded, masked), np.bool_)
        if plan.order is None:
            seen[: span.rows] = mask.boolean(span.ancestors, span.prefix - start - clear, masked)
            pieces = [(self.kv.read(span.slot, start + plan.kv_len, begin=start), plan.kv_len)]
        else:
            visible, at = mask.boolean(span.ancestors, span.prefix - start - clear), plan.order[clear:]
            seen[: span.rows] = visible[:, np.maximum(at - start - clear, 0)] & (at >= 0)
            pieces, places = [], plan.order[plan.full * BLOCK :]
            if plan.full:
                pieces.append((self.kv.read(span.slot, whole * BLOCK, begin=start), plan.full * BLOCK))
            order = torch.from_numpy(np.maximum(places, 0)).to(self.kv.device)
            pieces.append((self.kv.read(span.slot, span.prefix + width, order), len(places)))
        seen[span.rows :, 0] = True       # a row that sees nothing would divide by zero
        bias = mask.additive(seen, torch.float32 if self.ordered else self.kv.dtype).to(self.kv.device)
        return Part(rows, tuple(pieces), plan, bias.repeat(self.fold, 1)[None])

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
        heads, _, dim = q.shape
        outs: list[tuple[int, torch.Tensor]] = []
        for c in self._clusters:
            folded = [self._folded(q, g) for g in c.groups]
            whole = self._attend(layer, folded[0] if len(folded) == 1 else torch.cat(folded, 1), c.parts, scale)
            begin = 0
            for g in c.groups:
                mine = whole[:, begin : begin + self.fold * g.padded]
                begin += self.fold * g.padded
                out = mine.reshape(heads, g.padded, dim)[:, : g.rows].transpose(0, 1).to(q.dtype)
                outs.append((g.start, out))
        outs.sort(key=lambda x: x[0])
        rows = [out for _, out in outs]
        done = sum(map(len, rows))
        if done < self.total:
            rows.append(rows[0].new_zeros(self.total - done, *rows[0].shape[1:]))
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _folded(self, q: torch.Tensor, g: _Group) -> torch.Tensor:
        """[kv_heads, fold · padded, head_dim]: the queries of a group, all heads of a key head behind one another."""
        _, total, dim = q.shape
        if g.start or total != g.padded:
            q = q[:, g.start : g.start + g.padded]  # the rows of the next group serve as padding
            if q.shape[1] < g.padded:
                q = F.pad(q, (0, 0, 0, g.padded - q.shape[1]))
        return q.reshape(self.kv.kv_heads, self.fold * g.padded, dim)

    def _attend(self, layer: int, q: torch.Tensor, parts: Sequence[Part], scale: float) -> torch.Tensor:
        if self.ordered:
            return ordered.attend(q.float(), parts, lambda side, part: self._float(layer, side, part), scale)
        return lse.attend(q, parts, lambda side, part: self._stored(layer, side, part), scale)

    def _float(self, layer: int, side: str, part: Part) -> Float[torch.Tensor, "kv_heads kv_len head_dim"]:
        """Keys or values of a part in float32, in the workspace."""
        out = self._workspace.get(side, (self.kv.kv_heads, part.layout.kv_len, self.kv.head_dim))
        if len(part.pieces) == 1:
            return part.pieces[0][0].into(2 * layer + (side == "v"), out)
        for (seen, n), view in zip(part.pieces, out.split([n for _, n in part.pieces], 1), strict=True):
            view.copy_(seen.tensor(2 * layer + (side == "v"))[:, :n])
        return out

    def _stored(self, layer: int, side: str, part: Part) -> Float[torch.Tensor, "kv_heads kv_len head_dim"]:
        """Keys or values of a part as they are stored, without a copy where there is one."""
        found = [seen.tensor(2 * layer + (side == "v"))[:, :n] for seen, n in part.pieces]
        return found[0] if len(found) == 1 else torch.cat(found, 1)


def _blocks(kv: KVStore, span: Span) -> list[tuple[int, ...]]:
    """The blocks of committed keys of a slot, each by the pages it lies on and its place among them."""
    pages, tokens = kv.table(span.slot)
    ids, out = pages.tolist(), []
    for b in range(span.prefix // BLOCK):
        begin = b * BLOCK
        first, last = begin // tokens, (begin + BLOCK - 1) // tokens
        out.append((begin % tokens, *ids[first : last + 1]))
    return out


def _clusters(chains: Sequence[Sequence[tuple[int, ...]]], least: int) -> list[list[int]]:
    """Which spans begin with the same `least` blocks; the others alone."""
    found: dict[object, list[int]] = {}
    for i, chain in enumerate(chains):
        found.setdefault(tuple(chain[:least]) if len(chain) >= least else i, []).append(i)
    return list(found.values())


def _joined(rows: Sequence[slice], device: torch.device) -> slice | Int[torch.Tensor, " rows"]:
    """Some slices of rows as one, or as indices."""
    if all(a.stop == b.start for a, b in pairwise(rows)):
        return slice(rows[0].start, rows[-1].stop)
    return torch.cat([torch.arange(r.start, r.stop, device=device) for r in rows])
