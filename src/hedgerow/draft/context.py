"""What a drafter keeps of a text whose features it reads: keys and values in slots, and the features not yet run.

Features of committed tokens are recorded as they come and run in the first call of the next step that drafts, so that
a drafter that was skipped for long catches up at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float

from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Feats, Step
from hedgerow.draft.layers import attention
from hedgerow.systems.attention import MIN_ROWS
from hedgerow.systems.kv import KVStore, open_store


def taps_of(feats: Feats, taps: tuple[int, ...]) -> Float[torch.Tensor, "taps rows hidden"]:
    """The hidden states a drafter reads: its taps in its order, or the last hidden state where it has none.

    Raises: InvariantError where the target did not return them.
    """
    found = feats.taps if taps else feats.last_hidden
    if found is None:
        raise InvariantError("the target returned no features, which this drafter's `needs` ask for")
    if not taps:
        return found[None]
    return found if feats.tapped in ((), taps) else found[[feats.tapped.index(k) for k in taps]]


def kept_rows(step: Step) -> list[int]:
    """Rows of a step's features that stand for committed positions: the root's, then the accepted path's.

    >>> from hedgerow.core.parts import Verdict
    >>> from hedgerow.core.tree import TokenTree
    >>> tree = TokenTree.of([5, 6, 7], [-1, 0, 0])
    >>> kept_rows(Step(tree, Verdict((0, 2), 9, "bonus"), Feats(), 1, 0, 0.0))
    [0, 1, 3]
    """
    return [0, *(node + 1 for node in step.verdict.path)]


@dataclass
class _Text:
    """One request: its place in the store, and features [taps, rows, hidden] of the positions behind what is in it."""

    place: int
    lag: list[torch.Tensor] = field(default_factory=list)


class Context:
    """Keys, values and pending features of every request of a drafter."""

    def __init__(
        self, taps: tuple[int, ...], layers: int, kv_heads: int, head_dim: int, slots: int, max_len: int, rows: int,
        dtype: torch.dtype, device: torch.device,
    ) -> None:
        self.taps = taps
        self.kv: KVStore = open_store(
            "contiguous", layers, kv_heads, head_dim, slots, max_len, rows, dtype, device
        )
        self._texts: dict[int, _Text] = {}

    def begin(self, slot: int, feats: Feats) -> None:
        """Record the features of a prompt."""
        self.release(slot)
        self._texts[slot] = _Text(self.kv.acquire(), [taps_of(feats, self.taps)])

    def commit(self, slot: int, step: Step) -> None:
        """Record the features of a step's accepted path; the others are let go."""
        some = taps_of(step.feats, self.taps)
        rows = torch.tensor(kept_rows(step), device=some.device)
        self._texts[slot].lag.append(some.index_select(1, rows))

    def place(self, slot: int) -> int:
        """The slot's place in the store."""
        return self._texts[slot].place

    def known(self, slot: int) -> int:
        """Positions in the store."""
        return self.kv.length(self._texts[slot].place)

    def waiting(self, slot: int) -> int:
        """Positions whose features wait."""
        return sum(t.shape[1] for t in self._texts[slot].lag)

    def take(self, slot: int) -> Float[torch.Tensor, "taps rows hidden"]:
        """The waiting features, which wait no more; a caller that stores nothing of them loses them."""
        text = self._texts[slot]
        out = text.lag[0] if len(text.lag) == 1 else torch.cat(text.lag, 1)
        text.lag = []
        return out

    def check(self, slot: int, position: int) -> None:
        """Raises InvariantError unless there are features of every position before the root's."""
        have = self.known(slot) + self.waiting(slot)
        if have != position:
            raise InvariantError(f"slot {slot}: the root stands at {position}, features of {have} positions are known")

    def attend(
        self, slot: int, layer: int, q: Float[torch.Tensor, "heads rows head_dim"], keys: int,
        sees: Bool[torch.Tensor, "rows keys"] | None,
    ) -> Float[torch.Tensor, "rows features"]:
        """Attention of some rows of a slot over its first `keys` keys."""
        seen = self.kv.read(self._texts[slot].place, keys)
        return attention(q, seen.tensor(2 * layer), seen.tensor(2 * layer + 1), sees)

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` know what `src` knows of the positions before the last of `length` tokens."""
        old, before = self._texts[src], length - 1
        self.release(dst)
        new = self._texts[dst] = _Text(self.kv.acquire())
        have = min(before, self.kv.length(old.place))
        self.kv.fork(old.place, new.place, have)
        for piece in old.lag:
            if have < before:
                new.lag.append(piece[:, : before - have])
                have += new.lag[-1].shape[1]

    def release(self, slot: int) -> None:
        """Forget a slot; one that is not known is no error."""
        if slot in self._texts:
            self.kv.release(self._texts.pop(slot).place)


def causal(known: int, rows: int, device: torch.device) -> Bool[torch.Tensor, "rows keys"]:
    """Rows behind `known` keys: each sees those and the rows up to itself.

    >>> causal(1, 2, torch.device("cpu")).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    at = torch.arange(known + rows, device=device)
    return at <= at[known:, None]


def windowed(
    sees: Bool[torch.Tensor, "rows keys"] | None, known: int, rows: int, window: int, device: torch.device
) -> Bool[torch.Tensor, "rows keys"]:
    """The same without keys `window` or more positions back.

    >>> windowed(None, 2, 1, 2, torch.device("cpu")).int().tolist()
    [[0, 1, 1]]
    """
    at = torch.arange(known + rows, device=device)
    near = at > at[known:, None] - window
    return near if sees is None else sees & near


def packed(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of several requests behind one another."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def padded(rows: Float[torch.Tensor, "rows hidden"]) -> Float[torch.Tensor, "rows_or_more hidden"]:
    """At least `MIN_ROWS` rows: below, matrix products round another way, and a draft would depend on its company."""
    return rows if len(rows) >= MIN_ROWS else F.pad(rows, (0, 0, 0, MIN_ROWS - len(rows)))
