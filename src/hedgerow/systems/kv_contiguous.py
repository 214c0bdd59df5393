"""Keys and values in static slots: written in place, committed in place, never concatenated.

Every slot owns `room` places in one pool, laid out [layer and side, slot, kv_heads, room, head_dim]. A slot's places
hold its committed tokens, then the pending rows of the step under way. On the CPU the pool is anonymous memory, which
the system backs with zeroed pages when they are first touched: a large context costs nothing until it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from hedgerow.core.errors import InvariantError
from hedgerow.systems.slots import Places, Slots, check_commit, check_stage, zeros

_ROUND = 64  # rooms are multiples of this, because attention reads that far


@dataclass(frozen=True)
class ContiguousReader:
    """Keys and values of a slot as attention wants them: views, or their places in another order."""

    views: tuple[torch.Tensor, ...]
    order: Int[torch.Tensor, " kv_len"] | None

    def into(
        self, side: int, out: Float[torch.Tensor, "kv_heads kv_len head_dim"]
    ) -> Float[torch.Tensor, "kv_heads kv_len head_dim"]:
        """Fill `out` with keys (`side` = 2 · layer) or values (2 · layer + 1), and return it."""
        return out.copy_(self.tensor(side))

    def tensor(self, side: int) -> Float[torch.Tensor, "kv_heads kv_len head_dim"]:
        """The same as a tensor: a view where the order is the slot's."""
        return self.views[side] if self.order is None else self.views[side].index_select(1, self.order)


@dataclass
class _Slot:
    """What a slot holds: `length` committed tokens, then `pending` rows."""

    length: int = 0
    pending: int = 0


class ContiguousKV:
    """The key-value state of every request of one model.

    `room` places a slot: the longest sequence plus the most rows a step may stage behind it.

    Raises: CapacityError when the pool does not fit in memory.

    >>> kv = ContiguousKV(layers=1, kv_heads=1, head_dim=2, slots=1, max_len=4, max_rows=4)
    >>> slot = kv.acquire()
    >>> kv.stage(slot, 3)
    >>> kv.write(0, slot, 0, torch.tensor([[[1.0, 1], [2, 2], [3, 3]]]), torch.zeros(1, 3, 2))
    >>> kv.commit(slot, [0, 2])
    >>> kv.length(slot), kv.read(slot, 3).tensor(0)[0, :, 0].tolist()
    (2, [1.0, 3.0, 3.0])
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, slots: int, max_len: int, max_rows: int,
        dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu",
    ) -> None:
        self.layers, self.kv_heads, self.head_dim = layers, kv_heads, head_dim
        self.slots, self.max_len, self.max_rows = slots, max_len, max_rows
        self.dtype, self.device = dtype, torch.device(device)
        self.room = -(-(max_len + max_rows) // _ROUND) * _ROUND
        shape = (2 * layers, slots, kv_heads, self.room, head_dim)
        self.pool = zeros(shape, dtype, self.device, f"{slots} slots of {max_len} tokens")
        self._slots = Slots(slots, _Slot)

    # ------------------------------------------------------------------------------------------ slots

    @property
    def free_slots(self) -> int:
        """Slots nobody holds."""
        return self._slots.free

    def acquire(self) -> int:
        """An empty slot. Raises CapacityError when every slot is held."""
        return self._slots.acquire()

    def reuse(
        self, slot: int, tokens: Sequence[int], tenant: str = "", accept: Callable[[Any], bool] = lambda note: True
    ) -> list[Any]:
        """No text is known here: nothing is re-used."""
        return []

    def release(self, slot: int) -> None:
        """Free a slot, pending rows included. Raises InvariantError if nobody holds it."""
        self._slots.release(slot)

    def length(self, slot: int) -> int:
        """Committed tokens of a slot."""
        return self._slots[slot].length

    def pending(self, slot: int) -> int:
        """Rows staged and not yet committed."""
        return self._slots[slot].pending

    def table(self, slot: int) -> tuple[Int[np.ndarray, " one"], int]:
        """The slot as a page of its own, int32, and the places on it.

        The key of place t for head h of layer l is `pool[2 * l, pages[t // places], h, t % places]`; values at 2 l + 1.
        """
        self._slots[slot]
        return np.array([slot], np.int32), self.room

    # ------------------------------------------------------------------------------------------ a step

    def stage(self, slot: int, rows: int, tokens: Sequence[int] | None = None) -> None:
        """Make room for `rows` pending rows behind what is pending already (a drafter stages its tree round by round).

        Their `tokens` are not read here: nothing is kept for later requests.

        Raises: CapacityError when the slot is too short for them.
        """
        state = self._slots[slot]
        check_stage(slot, state.length + state.pending, rows, self.room, self.max_len)
        state.pending += rows

    def drop(self, slot: int) -> None:
        """Forget the pending rows of a slot."""
        self._slots[slot].pending = 0

    def places(self, slot: int, begin: int, end: int) -> list[Places]:
        """Views of places `begin` … `end` of a slot."""
        return [Places(0, end - begin, self.pool[:, slot, :, begin:end].unbind(0))]

    def read(
        self, slot: int, end: int, order: Int[torch.Tensor, " kv_len"] | None = None, begin: int = 0
    ) -> ContiguousReader:
        """Places `begin` … `end` of a slot, or the places `order` names, for every layer.

        None is copied before it is asked for. Places never written hold finite numbers.
        """
        return ContiguousReader(self.pool[:, slot, :, begin:end].unbind(0), order)

    def write(
        self, layer: int, slot: int, at: int, k: Float[torch.Tensor, "kv_heads rows head_dim"],
        v: Float[torch.Tensor, "kv_heads rows head_dim"],
    ) -> None:
        """Store the keys and values of rows at places `at` … of a slot, in place."""
        self.pool[2 * layer, slot, :, at : at + k.shape[1]] = k
        self.pool[2 * layer + 1, slot, :, at : at + v.shape[1]] = v

    def commit(self, slot: int, rows: Sequence[int], notes: Sequence[Any] | None = None) -> None:
        """Keep these pending rows, in this order, behind the committed tokens, and drop the others.

        Rows that stand where they belong are not moved; the rest of an accepted path moves in one copy over all layers.
        `notes` are not kept.

        Raises: InvariantError for a row that is not pending or not increasing, CapacityError beyond the context.
        """
        state = self._slots[slot]
        kept, still = check_commit(slot, rows, state.length, state.pending, self.max_len)
        if still < len(kept):
            begin, end = state.length + still, state.length + len(kept)
            places = torch.tensor([state.length + r for r in kept[still:]], device=self.pool.device)
            own = self.pool[:, slot]
            own[:, :, begin:end] = own.index_select(2, places)
        state.length += len(kept)
        state.pending = 0

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` committed tokens of `src`; what `dst` held is dropped.

        Raises: InvariantError if `src` holds fewer.
        """
        source, target = self._slots[src], self._slots[dst]
        if not 0 <= length <= source.length:
            raise InvariantError(f"fork of {length} tokens from slot {src}, which holds {source.length}")
        self.pool[:, dst, :, :length] = self.pool[:, src, :, :length]
        target.length, target.pending = length, 0

    def check_integrity(self) -> None:
        """Raises InvariantError if a slot is both free and held, lost, or longer than its room."""
        self._slots.check()
        for slot, s in self._slots.items():
            if not (0 <= s.length <= self.max_len and 0 <= s.pending <= self.room - s.length):
                raise InvariantError(f"slot {slot} holds {s.length} + {s.pending} tokens of {self.room}")
