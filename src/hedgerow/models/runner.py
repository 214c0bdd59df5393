"""One runner for target and draft models: rows of many requests in, one forward pass, features and logits out.

The runner owns a network's keys and values, packs ragged groups behind one another, cuts prefill in chunks, and ranks
tokens on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from hedgerow.core.errors import CapacityError, InvariantError
from hedgerow.core.parts import Feats, Needs, RowGroup
from hedgerow.systems import mask
from hedgerow.systems.attends import Attention
from hedgerow.systems.attention import MIN_ROWS, Span, StepAttention, Workspace
from hedgerow.systems.captured import Captured, Forward
from hedgerow.systems.kv import Kind, KVStore, open_store
from hedgerow.systems.rank import ranks_of


class NetOut(NamedTuple):
    """What a forward pass returns: logits of the rows asked for, features of all rows."""

    logits: Float[torch.Tensor, "kept vocab"]
    taps: Float[torch.Tensor, "taps rows hidden"] | None
    last_hidden: Float[torch.Tensor, "rows hidden"] | None
    ranks: Float[torch.Tensor, "kept ranks"] | None = None  # as `_Pass.ranks`, from networks that rank themselves


class Network:
    """A decoder whose attention is ours: what a runner needs to know of it, and its forward pass.

    A network implements `forward`, over torch's operators and an `Attention`, or `run` as a whole. Its steps may be
    `captured`.
    """

    vocab: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    captured: Captured | None = None

    def forward(
        self, tokens: Int[torch.Tensor, " rows"], positions: Int[torch.Tensor, " rows"], step: Attention,
        keep: Int[torch.Tensor, " kept"] | None, taps: Sequence[int], last_hidden: bool,
    ) -> NetOut:
        """All rows through all layers; logits of rows `keep` (None: all). Taps are indices of hidden states."""
        raise NotImplementedError

    @property
    def tolerance(self) -> float:
        """How far rounding may take its logits from the model's own, in units of their spread (root mean square)."""
        return 0.25 if self.dtype == torch.bfloat16 else 0.005

    @cached_property
    def workspace(self) -> Workspace:
        """Memory of the reference attention, kept from step to step."""
        return Workspace()

    def run(
        self, kv: KVStore, tokens: Int[np.ndarray, " rows"], positions: Int[np.ndarray, " rows"], spans: Sequence[Span],
        keep: Sequence[int], needs: Needs,
    ) -> NetOut:
        """One pass over the packed rows of `spans`; their keys and values are written to `kv`. Logits of rows `keep`.

        The reference path never runs fewer than `MIN_ROWS` rows: below, matrix products take another way.
        """
        if self.captured is not None and len(keep) == len(tokens):
            forward = self.static(needs)
            if outs := self.captured.run(forward, kv, self.heads, tokens, positions, spans, needs):
                return unpacked(outs, needs)
        rows = len(tokens)
        total = max(rows, MIN_ROWS)
        if total > rows:
            blank = np.zeros(total - rows, np.int64)
            tokens, positions = np.concatenate([tokens, blank]), np.concatenate([positions, blank])
        kept = None if len(keep) == total else torch.tensor(list(keep), dtype=torch.int64, device=self.device)
        few = kept is not None and total <= MIN_ROWS  # too few to be worth leaving any out of the head
        out = self.forward(
            torch.from_numpy(tokens).to(self.device), torch.from_numpy(positions).to(self.device),
            StepAttention(kv, spans, total, self.heads, self.workspace), None if few else kept,
            needs.taps, needs.last_hidden,
        )
        return out._replace(logits=out.logits[kept]) if few else out

    def static(self, needs: Needs) -> Forward:
        """The pass as `systems.captured` records it: what `unpacked` takes apart, the best tokens ranked in it too."""

        def forward(tokens: torch.Tensor, positions: torch.Tensor, step: Attention) -> list[torch.Tensor]:
            out = self.forward(tokens, positions, step, None, needs.taps, needs.last_hidden)
            more = (None if out.taps is None else out.taps.transpose(0, 1)), out.last_hidden
            return [ranks_of(out.logits.float(), needs.top_k), out.logits, *(x for x in more if x is not None)]

        return forward


def unpacked(outs: Sequence[torch.Tensor], needs: Needs) -> NetOut:
    """The results of a recorded pass as those of any other."""
    ranks, logits, *more = outs
    taps = more.pop(0).transpose(0, 1) if needs.taps else None
    return NetOut(logits, taps, more[0] if needs.last_hidden else None, ranks)


class _Piece(NamedTuple):
    """Rows `begin` to `end` of group `group`: one pass's share of it."""

    group: int
    begin: int
    end: int


class _Pass(NamedTuple):
    """One forward pass as it was run; tensors on the device."""

    logits: torch.Tensor                  # [kept, vocab] float32
    ranks: torch.Tensor                   # [kept, 1 + 2k]: best id, k best ids, their logits


class _Segment(NamedTuple):
    """Rows `begin` to `end` of a group stand at `at` … in a pass's ranks (or logits)."""

    run: int
    at: int
    begin: int
    end: int


@dataclass
class Ran:
    """A call of the runner: the ticket of a step. Its rows cross to the host once, with `ranks()`."""

    groups: Sequence[RowGroup]
    needs: Needs
    passes: list[_Pass] = field(default_factory=list)
    ranked: list[list[_Segment]] = field(default_factory=list)     # per group
    held: list[_Segment | None] = field(default_factory=list)      # per group: rows whose logits are kept
    taps: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    last: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    _host: list[np.ndarray] | None = None

    def ranks(self, group: int) -> Float[np.ndarray, "rows ranks"]:
        """Best id, k best ids, their logits of every row of a group; −1 where a row was not ranked."""
        if self._host is None:
            together = torch.cat([p.ranks for p in self.passes]).cpu().numpy()
            self._host = np.split(together, np.cumsum([len(p.ranks) for p in self.passes])[:-1])
        out = np.full((len(self.groups[group].tokens), self._host[0].shape[1]), -1.0, np.float32)
        for s in self.ranked[group]:
            out[s.begin : s.end] = self._host[s.run][s.at : s.at + s.end - s.begin]
        return out

    def argmax(self, group: int) -> Int[np.ndarray, " rows"]:
        """Most likely token of every row of a group, ties to the lowest id; −1 for rows inside a prefill."""
        return self.ranks(group)[:, 0].astype(np.int64)

    def logits(self, group: int, row: int) -> Float[np.ndarray, " vocab"]:
        """Raw logits of one row, float32 on the host. Raises InvariantError for a row inside a prefill."""
        s = self.held[group]
        if s is None or not s.begin <= row < s.end:
            raise InvariantError(f"row {row} of group {group} has no logits: a prefill has those of its last row only")
        return self.passes[s.run].logits[s.at + row - s.begin].cpu().numpy()

    def device_logits(self, group: int) -> Float[torch.Tensor, "rows vocab"]:
        """Logits of a group's rows (of a prefill: the last row) where they are, for those that stay on the device."""
        s = self.held[group]
        if s is None:
            raise InvariantError(f"group {group} has no logits")
        return self.passes[s.run].logits[s.at : s.at + s.end - s.begin]

    def feats(self, group: int) -> Feats:
        """What the needs asked for, over the rows of one group."""
        ids = logits = None
        if self.needs.top_k:
            rows = self.ranks(group)
            k = (rows.shape[1] - 1) // 2
            ids, logits = rows[:, 1 : 1 + k].astype(np.int64), rows[:, 1 + k :]
        taps, last = self.taps.get(group), self.last.get(group)
        return Feats(
            taps=None if taps is None else taps[0] if len(taps) == 1 else torch.cat(taps, 1),
            tapped=self.needs.taps,
            last_hidden=None if last is None else last[0] if len(last) == 1 else torch.cat(last),
            top_ids=ids, top_logits=logits,
        )


class Runner:
    """A network with the state of its requests.

    `chunk`: most prefill rows in one pass, which bounds memory at any prompt length. Chunks of a prompt begin at
    multiples of it whatever else runs in the pass, so that a prompt's keys do not depend on its company. `kv`: the
    store; only a paged one can re-use what earlier requests left.
    """

    def __init__(
        self, net: Network, slots: int, max_len: int, max_rows: int = 512, chunk: int = 256, kv: Kind = "paged"
    ) -> None:
        self.net, self.chunk = net, chunk
        self.kv = open_store(
            kv, net.layers, net.kv_heads, net.head_dim, slots, max_len, max_rows, net.dtype, net.device
        )

    @torch.inference_mode()
    def run(self, groups: Sequence[RowGroup], needs: Needs) -> Ran:
        """All groups through the network; their rows are pending afterwards.

        A group whose `ancestors` is square replaces what its slot had pending. One with more columns than rows goes on
        from pending rows: the first columns are those rows, in order. The ancestors of a prefill are not read (it is a
        chain); an empty matrix will do.

        Raises: CapacityError when a slot has no room, InvariantError for an impossible group.
        """
        ran = Ran(groups, needs, ranked=[[] for _ in groups], held=[None] * len(groups))
        seen: set[int] = set()
        for g in groups:
            if g.slot in seen:
                raise InvariantError(f"two groups of one call belong to slot {g.slot}")
            seen.add(g.slot)
            self._stage(g)
        for pieces in self._passes(groups):
            self._run(ran, pieces)
        return ran

    def _stage(self, g: RowGroup) -> None:
        rows = len(g.tokens)
        before = 0 if g.kind == "prefill" else g.ancestors.shape[1] - rows
        if not rows or len(g.positions) != rows or before < 0:
            raise InvariantError(f"{rows} rows have {len(g.positions)} positions and ancestors {g.ancestors.shape}")
        if not before:
            self.kv.drop(g.slot)
        elif before != self.kv.pending(g.slot):
            raise InvariantError(f"slot {g.slot} has {self.kv.pending(g.slot)} pending rows, the group counts {before}")
        whole = self.kv.length(g.slot) + rows
        if g.kind == "prefill" and whole > self.kv.max_len:
            raise CapacityError(f"a prompt of {whole} tokens does not fit the context of {self.kv.max_len}")
        self.kv.stage(g.slot, rows, g.tokens.tolist())

    def _passes(self, groups: Sequence[RowGroup]) -> Iterator[list[_Piece]]:
        """Trees in the first pass, whole; prefill chunks as they fit, in order."""
        now = [_Piece(i, 0, len(g.tokens)) for i, g in enumerate(groups) if g.kind != "prefill"]
        load = 0
        for i, g in enumerate(groups):
            if g.kind != "prefill":
                continue
            for begin in range(0, len(g.tokens), self.chunk):
                piece = _Piece(i, begin, min(begin + self.chunk, len(g.tokens)))
                if load and load + piece.end - begin > self.chunk:
                    yield now
                    now, load = [], 0
                now.append(piece)
                load += piece.end - begin
        if now:
            yield now

    def _run(self, ran: Ran, pieces: Sequence[_Piece]) -> None:
        number, start = len(ran.passes), 0
        tokens, positions, spans = [], [], []
        keep: list[int] = []              # packed rows that go through the head
        hold: list[int] = []              # of those, the ones whose logits may be asked for
        for p in pieces:
            g = ran.groups[p.group]
            rows, last = p.end - p.begin, len(g.tokens) - 1
            chain = g.kind == "prefill"
            tokens.append(g.tokens[p.begin : p.end])
            positions.append(g.positions[p.begin : p.end])
            spans.append(self._span(g, p, start))
            ranked = p.begin if not chain or ran.needs.top_k else min(last, p.end)
            held = p.begin if not chain else min(last, p.end)
            if ranked < p.end:
                ran.ranked[p.group].append(_Segment(number, len(keep), ranked, p.end))
            if held < p.end:
                ran.held[p.group] = _Segment(number, len(hold), held, p.end)
            hold.extend(range(len(keep) + held - ranked, len(keep) + p.end - ranked))
            keep.extend(range(start + ranked - p.begin, start + p.end - p.begin))
            start += rows
        needs = ran.needs
        out = self.net.run(self.kv, np.concatenate(tokens), np.concatenate(positions), spans, keep, needs)
        logits = out.logits.float()
        ranks = ranks_of(logits, needs.top_k) if out.ranks is None else out.ranks
        ran.passes.append(_Pass(logits if len(hold) == len(keep) else logits[hold], ranks))
        for p, span in zip(pieces, spans, strict=True):
            rows_of = slice(span.start, span.start + span.rows)
            if out.taps is not None:
                ran.taps.setdefault(p.group, []).append(out.taps[:, rows_of])
            if out.last_hidden is not None:
                ran.last.setdefault(p.group, []).append(out.last_hidden[rows_of])

    def _span(self, g: RowGroup, p: _Piece, start: int) -> Span:
        rows, prefix = p.end - p.begin, self.kv.length(g.slot)
        if g.kind == "prefill":
            return Span(g.slot, start, rows, prefix + p.begin, mask.causal(rows))
        return Span(g.slot, start, rows, prefix, g.ancestors, g.positions if g.ancestors.shape[1] == rows else None)
