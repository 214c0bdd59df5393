"""What both key-value stores do alike: hand out slots, check steps, and get memory that costs nothing until used."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

import torch

from hedgerow.core.errors import CapacityError, InvariantError

State = TypeVar("State")


class Places(NamedTuple):
    """Where rows `begin` to `end` of a group go: views [kv_heads, end − begin, head_dim], keys and values by layer."""

    begin: int
    end: int
    views: tuple[torch.Tensor, ...]


class Slots(Generic[State]):
    """`count` slots, each free or with a state.

    >>> slots = Slots(1, list)
    >>> slots.acquire(), slots[0], slots.free
    (0, [], 0)
    """

    def __init__(self, count: int, new: Callable[[], State]) -> None:
        self.count, self._new = count, new
        self._held: dict[int, State] = {}
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        """Slots nobody holds."""
        return len(self._free)

    def acquire(self) -> int:
        """A free slot, with a new state. Raises CapacityError when every slot is held."""
        if not self._free:
            raise CapacityError(f"all {self.count} key-value slots are in use; end a request, or load with more slots")
        slot = self._free.pop()
        self._held[slot] = self._new()
        return slot

    def __getitem__(self, slot: int) -> State:
        """The state of a slot. Raises InvariantError if nobody holds it."""
        try:
            return self._held[slot]
        except KeyError:
            raise InvariantError(f"key-value slot {slot} is not in use") from None

    def release(self, slot: int) -> None:
        """Free a slot. Raises InvariantError if nobody holds it."""
        self[slot]
        del self._held[slot]
        self._free.append(slot)

    def items(self) -> Iterator[tuple[int, State]]:
        """Every held slot with its state."""
        yield from self._held.items()

    def check(self) -> None:
        """Raises InvariantError if a slot is both free and held, or lost."""
        if sorted([*self._held, *self._free]) != list(range(self.count)):
            held, free = sorted(self._held), sorted(self._free)
            raise InvariantError(f"slots {held} held and {free} free are not the {self.count} there are")


def check_stage(slot: int, held: int, rows: int, room: int, max_len: int) -> None:
    """Raises CapacityError if `rows` more rows do not fit a slot with `held` tokens and rows."""
    if held + rows > room:
        raise CapacityError(
            f"slot {slot} holds {held} tokens and {rows} more rows were asked for; "
            f"{room} fit (context {max_len} tokens)"
        )


def check_commit(slot: int, rows: Sequence[int], length: int, pending: int, max_len: int) -> tuple[list[int], int]:
    """The pending rows to keep, and how many of them stand where they belong already.

    Raises: InvariantError for a row that is not pending or not increasing, CapacityError beyond the context.

    >>> check_commit(0, [0, 1, 4], length=7, pending=5, max_len=10)
    ([0, 1, 4], 2)
    """
    kept = [int(r) for r in rows]
    rising = all(a < b for a, b in pairwise(kept))
    if not rising or (kept and not 0 <= kept[0] <= kept[-1] < pending):
        raise InvariantError(f"commit of rows {kept} of slot {slot}, which has {pending} pending rows")
    if length + len(kept) > max_len:
        raise CapacityError(f"slot {slot} would hold {length + len(kept)} tokens; the context is {max_len}")
    return kept, next((i for i, r in enumerate(kept) if i != r), len(kept))


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, what: str) -> torch.Tensor:
    """Zeros; on the CPU memory comes with its first use, so that a pool for long contexts costs what is used of it.

    Raises: CapacityError, naming `what`, if there is not so much.
    """
    size = torch.Size(shape).numel()
    try:
        if device.type != "cpu" or size == 0:
            return torch.zeros(shape, dtype=dtype, device=device)
        return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype=dtype, count=size).view(shape)
    except (RuntimeError, OSError, MemoryError, OverflowError):
        raise CapacityError(
            f"key-value state of {what} needs {size * dtype.itemsize / 1e9:.1f} GB, more than {device} has; "
            "ask for fewer slots or a shorter context"
        ) from None
