"""Keys and values in static slots: written in place, committed in place, never concatenated.

Every slot owns `room` places in one pool, laid out [layer and side, slot, kv_heads, room, head_dim]. A slot's places
hold its committed tokens, then the pending rows of the step under way. On the CPU the pool is anonymous memory, which
the system backs with zeroed pages when they are first touched: a large context costs nothing until it is used.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float

from hedgerow.core.errors import CapacityError, InvariantError

_ROUND = 64  # rooms are multiples of this, because attention reads that far


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
    >>> kv.length(slot), kv.keys(0, slot, 3)[0, :, 0].tolist()
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
        try:
            self._pool = _zeros(shape, dtype, torch.device(device))
        except (RuntimeError, OSError, MemoryError, OverflowError):
            size = torch.Size(shape).numel() * dtype.itemsize / 1e9
            raise CapacityError(
                f"key-value state of {slots} slots of {max_len} tokens needs {size:.1f} GB, more than {device} has; "
                "ask for fewer slots or a shorter context"
            ) from None
        self._slots: dict[int, _Slot] = {}
        self._free = list(range(slots - 1, -1, -1))

    # ------------------------------------------------------------------------------------------ slots

    @property
    def free_slots(self) -> int:
        """Slots nobody holds."""
        return len(self._free)

    def acquire(self) -> int:
        """An empty slot. Raises CapacityError when every slot is held."""
        if not self._free:
            raise CapacityError(f"all {self.slots} key-value slots are in use; end a request, or load with more slots")
        slot = self._free.pop()
        self._slots[slot] = _Slot()
        return slot

    def release(self, slot: int) -> None:
        """Free a slot, pending rows included. Raises InvariantError if nobody holds it."""
        self._get(slot)
        del self._slots[slot]
        self._free.append(slot)

    def length(self, slot: int) -> int:
        """Committed tokens of a slot."""
        return self._get(slot).length

    def pending(self, slot: int) -> int:
        """Rows staged and not yet committed."""
        return self._get(slot).pending

    def _get(self, slot: int) -> _Slot:
        try:
            return self._slots[slot]
        except KeyError:
            raise InvariantError(f"key-value slot {slot} is not in use") from None

    # ------------------------------------------------------------------------------------------ a step

    def stage(self, slot: int, rows: int) -> None:
        """Make room for `rows` pending rows behind what is pending already (a drafter stages its tree round by round).

        Raises: CapacityError when the slot is too short for them.
        """
        state = self._get(slot)
        if state.length + state.pending + rows > self.room:
            raise CapacityError(
                f"slot {slot} holds {state.length + state.pending} tokens and {rows} more rows were asked for; "
                f"{self.room} fit (context {self.max_len} tokens)"
            )
        state.pending += rows

    def drop(self, slot: int) -> None:
        """Forget the pending rows of a slot."""
        self._get(slot).pending = 0

    def places(self, slot: int, begin: int, end: int) -> tuple[torch.Tensor, ...]:
        """Views [kv_heads, places, head_dim] of a slot's places: keys of layer 0, its values, keys of layer 1, …"""
        return self._pool[:, slot, :, begin:end].unbind(0)

    def write(
        self, layer: int, slot: int, at: int, k: Float[torch.Tensor, "kv_heads rows head_dim"],
        v: Float[torch.Tensor, "kv_heads rows head_dim"],
    ) -> None:
        """Store the keys and values of rows at places `at` … of a slot, in place."""
        self._pool[2 * layer, slot, :, at : at + k.shape[1]] = k
        self._pool[2 * layer + 1, slot, :, at : at + v.shape[1]] = v

    def keys(self, layer: int, slot: int, kv_len: int) -> Float[torch.Tensor, "kv_heads kv_len head_dim"]:
        """A view of the first `kv_len` keys of a slot; places never written hold finite numbers."""
        return self._pool[2 * layer, slot, :, :kv_len]

    def values(self, layer: int, slot: int, kv_len: int) -> Float[torch.Tensor, "kv_heads kv_len head_dim"]:
        """A view of the first `kv_len` values of a slot."""
        return self._pool[2 * layer + 1, slot, :, :kv_len]

    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """Keep these pending rows, in this order, behind the committed tokens, and drop the others.

        Rows that stand where they belong are not moved; the rest of an accepted path moves in one copy over all layers.

        Raises: InvariantError for a row that is not pending or not increasing, CapacityError beyond the context.
        """
        state = self._get(slot)
        kept = [int(r) for r in rows]
        rising = all(a < b for a, b in pairwise(kept))
        if not rising or (kept and not 0 <= kept[0] <= kept[-1] < state.pending):
            raise InvariantError(f"commit of rows {kept} of slot {slot}, which has {state.pending} pending rows")
        whole = state.length + len(kept)
        if whole > self.max_len:
            raise CapacityError(f"slot {slot} would hold {whole} tokens; the context is {self.max_len}")
        still = next((i for i, r in enumerate(kept) if i != r), len(kept))
        if still < len(kept):
            begin, end = state.length + still, state.length + len(kept)
            places = torch.tensor([state.length + r for r in kept[still:]], device=self._pool.device)
            own = self._pool[:, slot]
            own[:, :, begin:end] = own.index_select(2, places)
        state.length += len(kept)
        state.pending = 0

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` committed tokens of `src`; what `dst` held is dropped.

        Raises: InvariantError if `src` holds fewer.
        """
        source, target = self._get(src), self._get(dst)
        if not 0 <= length <= source.length:
            raise InvariantError(f"fork of {length} tokens from slot {src}, which holds {source.length}")
        self._pool[:, dst, :, :length] = self._pool[:, src, :, :length]
        target.length, target.pending = length, 0

    def check_integrity(self) -> None:
        """Raises InvariantError if a slot is both free and held, lost, or longer than its room."""
        held = set(self._slots)
        if sorted([*held, *self._free]) != list(range(self.slots)):
            free = sorted(self._free)
            raise InvariantError(f"slots {sorted(held)} held and {free} free are not the {self.slots} there are")
        for slot, s in self._slots.items():
            if not (0 <= s.length <= self.max_len and 0 <= s.pending <= self.room - s.length):
                raise InvariantError(f"slot {slot} holds {s.length} + {s.pending} tokens of {self.room}")


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU pages come with their first use, so that a pool for long contexts costs what is used of it."""
    size = torch.Size(shape).numel()
    if device.type != "cpu" or size == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype=dtype, count=size).view(shape)
