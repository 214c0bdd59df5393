"""Pairs (feature of a position, token after it) of every request: which have run, which wait, and the passes over them.

Pairs of committed tokens carry the target's own features; their keys stay, at places that are their positions. Rows of
drafted tokens stand behind them while a step grows its tree, and are dropped with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from hedgerow.core.parts import Feats, Step
from hedgerow.draft.lag import Lag, rows_of
from hedgerow.draft.nets.base import HeadNet
from hedgerow.systems import mask
from hedgerow.systems.attention import Span
from hedgerow.systems.kv import Kind, open_store


class Group(NamedTuple):
    """Rows of one slot in a pass: `sees` has a column for each pending row of the slot, theirs last.

    Logits are wanted of the last `kept` rows.
    """

    slot: int
    tokens: Int[np.ndarray, " rows"]
    features: Float[torch.Tensor, "rows hidden"]
    positions: Int[np.ndarray, " rows"]
    sees: Bool[np.ndarray, "rows width"]
    kept: int


class Said(NamedTuple):
    """What a pass said of one group: logits of the rows that were wanted, the state of every row.

    `ranks` of each wanted row, on the host: its best ids, their logits, log-sum-exp, entropy; None: it was not asked.
    """

    logits: Float[torch.Tensor, "kept draft_vocab"]
    hidden: Float[torch.Tensor, "rows hidden"]
    ranks: Float[np.ndarray, "kept ranks"] | None


@dataclass
class _State:
    """One slot: its place in the keys, how long its text is, what waits, and what the last committed pair said."""

    place: int
    length: int                                           # committed tokens, the root included
    lag: Lag = field(default_factory=Lag)
    last: Said | None = None                              # None: not known, or pairs wait


class States:
    """The states of a growing tree's rows, in order, from which children take their parents'.

    >>> states = States()
    >>> states.extend(torch.tensor([[1.0], [2.0]])); states.extend(torch.tensor([[3.0]]))
    >>> len(states), states.take([2, 0, 2]).flatten().tolist()
    (3, [3.0, 1.0, 3.0])
    """

    def __init__(self) -> None:
        self._blocks: list[torch.Tensor] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def extend(self, hidden: Float[torch.Tensor, "rows hidden"]) -> None:
        """Append the states of a pass."""
        self._ends.append(len(self) + hidden.shape[0])
        self._blocks.append(hidden)

    def take(self, rows: Sequence[int]) -> Float[torch.Tensor, "rows hidden"]:
        """The states of some rows: of one pass, as a rule."""
        first = bisect_right(self._ends, min(rows))
        begin = self._ends[first - 1] if first else 0
        near = self._blocks[first] if first == len(self._ends) - 1 else torch.cat(self._blocks[first:])
        return near.index_select(0, torch.tensor([r - begin for r in rows], device=near.device))


class Pairs:
    """The committed text of every slot, as a head's network has seen it.

    `max_lag`: pairs recorded while nothing was asked; beyond, they are run, `chunk` at a time, so that features do not
    pile up. `max_rows`: most rows of one slot's tree.
    """

    def __init__(
        self, net: HeadNet, slots: int, max_len: int, max_rows: int = 1024, max_lag: int = 512, chunk: int = 256,
        kv: Kind = "paged",
    ) -> None:
        self.net, self.max_lag, self.chunk = net, max_lag, chunk
        self.kv = open_store(
            kv, net.layers, net.kv_heads, net.head_dim, slots, max_len, max_rows, net.dtype, net.device
        )
        self._of: dict[int, _State] = {}
        self._causal = mask.causal(chunk)

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Record a prompt; pairs whose beginning an earlier request of the tenant left in the keys need not run."""
        state = self._of[slot] = _State(self.kv.acquire(), len(tokens))
        known = len(self.kv.reuse(state.place, tokens[1:], f"{tokens[0]}/{tenant}"))
        state.lag.add(rows_of(feats, slice(known, None)), tokens[known + 1 :])

    def commit(self, slot: int, step: Step) -> None:
        """Record the accepted path with its rows' real features; what was drafted is dropped."""
        state = self._of[slot]
        committed = step.verdict.committed(step.tree)
        self.kv.drop(state.place)
        state.last = None
        state.lag.add(rows_of(step.feats, [0, *(v + 1 for v in step.verdict.path)]), committed)
        state.length += len(committed)
        if len(state.lag) > self.max_lag:
            self.catch_up(slot, 0)

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` tokens of `src`; what can no longer be known waits for a step."""
        old = self._of[src]
        pairs, ran = length - 1, self.kv.length(old.place)
        new = self._of[dst] = _State(self.kv.acquire(), length, old.lag.first(max(0, pairs - ran)))
        self.kv.fork(old.place, new.place, min(pairs, ran))
        new.last = old.last if length == old.length else None

    def release(self, slot: int) -> None:
        """Free a slot's keys and features."""
        self.kv.release(self._of.pop(slot).place)

    def waiting(self, slot: int) -> int:
        """Pairs that have not run."""
        return len(self._of[slot].lag)

    def last(self, slot: int) -> Said | None:
        """What the pair before the root said, [1, draft_vocab] and its state; None where it is not known."""
        return self._of[slot].last

    # ------------------------------------------------------------------------------------------ passes

    def refresh(self, slots: Sequence[int], top: int = 0) -> None:
        """Run what waits, of all slots in one pass; long lags alone and in chunks before it."""
        late = [slot for slot in slots if self.waiting(slot)]
        groups = [self.front(slot) for slot in late]
        for slot, group, out in zip(late, groups, self.run(groups, top), strict=True):
            self.keep(slot, len(group.tokens), out)

    def catch_up(self, slot: int, leave: int) -> None:
        """Run the front of a lag until at most `leave` pairs wait."""
        while self.waiting(slot) > leave:
            group = self._take(slot)
            [out] = self.run([group])
            self.keep(slot, len(group.tokens), out)

    def front(self, slot: int) -> Group:
        """The last pairs that wait, at most a chunk, as rows of a pass; those before them are run."""
        self.catch_up(slot, self.chunk)
        return self._take(slot)

    def _take(self, slot: int) -> Group:
        state = self._of[slot]
        tokens, features = state.lag.take(self.chunk, self.net.fuse)
        begin, rows = self.kv.length(state.place), len(tokens)
        return Group(slot, tokens, features, np.arange(begin, begin + rows), self._causal[:rows, :rows], kept=1)

    def keep(self, slot: int, rows: int, out: Said) -> None:
        """Commit the first `rows` pending rows; `out` is what was said of them."""
        state = self._of[slot]
        self.kv.commit(state.place, range(rows))
        ranks = None if out.ranks is None else out.ranks[:1]
        state.last = None if len(state.lag) else Said(out.logits[:1], out.hidden[rows - 1 : rows], ranks)

    def run(self, groups: Sequence[Group], top: int = 0) -> list[Said]:
        """One pass over groups of different slots; `top` ranks of every row that is wanted, 0 for none."""
        if not groups:
            return []
        spans, keep, start = [], list[int](), 0
        for g in groups:
            place, rows = self._of[g.slot].place, len(g.tokens)
            self.kv.stage(place, rows, g.tokens.tolist())
            spans.append(Span(place, start, rows, self.kv.length(place), g.sees))
            start += rows
            keep += range(start - g.kept, start)
        _, tokens, features, positions, _, _ = groups[0]
        if len(groups) > 1:
            tokens = np.concatenate([g.tokens for g in groups])
            features = torch.cat([g.features for g in groups])
            positions = np.concatenate([g.positions for g in groups])
        out = self.net.run(self.kv, tokens, features, positions, spans, keep, top)
        ranks = None
        if top and out.law is not None:
            ranks = _host(out.ranks, out.law)
        if len(groups) == 1:
            return [Said(out.logits, out.hidden, ranks)]
        at, parts = 0, []
        for g, s in zip(groups, spans, strict=True):
            kept = slice(at, at + g.kept)
            at = kept.stop
            own = None if ranks is None else ranks[kept]
            parts.append(Said(out.logits[kept], out.hidden[s.start : s.start + s.rows], own))
        return parts


def _host(ranks: torch.Tensor, law: torch.Tensor) -> Float[np.ndarray, "kept ranks"]:
    """Ranks but the first, and what is known of each row, in one transfer; few operators, for they run every round."""
    if ranks.device.type == "cpu":
        return np.concatenate([ranks.numpy()[:, 1:], law.numpy()], 1)
    return torch.cat([ranks[:, 1:], law], 1).cpu().numpy()
