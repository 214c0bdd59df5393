"""A ring of slots that weights are read into by a thread, unit after unit, while earlier ones are used.

The slots are all the memory there is: a unit's tensors are views of its slot, and a slot is read into again as soon as
its unit is given back. Weights that lie on disk in the dtype they are used in are used where they were read to; others
are converted by the thread, through one staging buffer.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from hedgerow.systems.disk import ALIGN, Disk, Stored, Stretch, memory, stretches

_PLACE = 64                               # converted weights begin at multiples of this


class Piece(NamedTuple):
    """One tensor of a unit: where it lies on disk, and where it begins in what is read and in the slot."""

    stored: Stored
    raw_at: int
    at: int


@dataclass(frozen=True)
class Unit:
    """What is loaded and let go at once: a layer's matrices, or some rows of the head."""

    name: str
    reads: tuple[Stretch, ...]
    pieces: tuple[Piece, ...]
    raw_bytes: int
    slot_bytes: int

    @classmethod
    def of(cls, name: str, parts: Sequence[Stored], dtype: torch.dtype, staged: bool) -> Unit:
        """The plan for some tensors; `staged`: they are converted on their way into the slot."""
        reads, raw_at, raw = stretches(parts)
        at, end = list(raw_at), raw
        if staged:
            sizes = [-(-s.size // s.dtype.itemsize * dtype.itemsize // _PLACE) * _PLACE for s in parts]
            at, end = [0, *itertools.accumulate(sizes)][:-1], sum(sizes)
        pieces = tuple(Piece(*p) for p in zip(parts, raw_at, at, strict=True))
        return cls(name, tuple(reads), pieces, raw, -(-end // ALIGN) * ALIGN)


class _Loader:
    """What the reading thread knows: units, slots, and two queues; nothing of the model, which may go away."""

    def __init__(self, units: Sequence[Unit], slots: int, dtype: torch.dtype, staged: bool, disk: Disk) -> None:
        self.units, self.dtype, self.staged, self.disk = units, dtype, staged, disk
        size = max(u.slot_bytes for u in units)
        self.memory = [memory(size) for _ in range(slots)]
        self.staging = memory(max(u.raw_bytes for u in units)) if staged else None
        self.free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.ready: queue.SimpleQueue[tuple[int, int] | Exception] = queue.SimpleQueue()
        self.stopping = threading.Event()
        self._views: dict[tuple[int, int], list[torch.Tensor]] = {}
        for slot in range(slots):
            self.free.put(slot)

    def run(self) -> None:
        """Unit after unit, round and round, as slots come free."""
        try:
            for unit in itertools.cycle(range(len(self.units))):
                slot = self.free.get()
                if self.stopping.is_set():
                    return
                self._load(self.units[unit], slot)
                self.ready.put((unit, slot))
        except Exception as e:  # noqa: BLE001 - whatever it is, whoever waits for the weights must hear of it
            self.ready.put(e)

    @torch.inference_mode()
    def _load(self, unit: Unit, slot: int) -> None:
        target = memoryview(self.memory[slot] if self.staging is None else self.staging)
        for r in unit.reads:
            needed = max(p.stored.begin + p.stored.size - r.begin for p in unit.pieces
                         if p.stored.file == r.file and r.begin <= p.stored.begin < r.begin + r.size)
            self.disk.read(r, target[r.at : r.at + r.size], needed)
        if self.staging is not None:
            for p in unit.pieces:
                raw = torch.frombuffer(self.staging, dtype=torch.uint8, count=p.stored.size, offset=p.raw_at)
                if p.raw_at % p.stored.dtype.itemsize:
                    raw = raw.clone()
                self._view(p, slot).copy_(raw.view(p.stored.dtype).view(p.stored.shape))

    def views(self, unit: int, slot: int) -> list[torch.Tensor]:
        """The tensors of a unit in a slot; made once, and usable in and out of inference mode."""
        if (unit, slot) not in self._views:
            with torch.inference_mode(False):
                self._views[unit, slot] = [self._view(p, slot) for p in self.units[unit].pieces]
        return self._views[unit, slot]

    def _view(self, p: Piece, slot: int) -> torch.Tensor:
        count = p.stored.size // p.stored.dtype.itemsize
        return torch.frombuffer(self.memory[slot], dtype=self.dtype, count=count, offset=p.at).view(p.stored.shape)


class Ring:
    """Units in order, round and round, read ahead by a thread as far as the slots allow.

    `take` hands out the views of a unit, valid until `give`. A unit asked for out of turn (a forward pass broke off, or
    only some layers run) is waited for: the ones before it are read and let go. One caller at a time.
    """

    def __init__(self, units: Sequence[Unit], slots: int, dtype: torch.dtype, staged: bool, disk: Disk) -> None:
        self.loader, self.slots = _Loader(units, slots, dtype, staged, disk), slots
        self.tally = disk.tally
        self._held: dict[int, int] = {}
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def take(self, unit: int) -> list[torch.Tensor]:
        """The tensors of a unit, as soon as they are there. Raises ModelError when they cannot be read."""
        if self._error is not None:
            raise self._error
        if self._thread is None:
            self._thread = threading.Thread(target=self.loader.run, name="hedgerow-weights", daemon=True)
            self._thread.start()
            weakref.finalize(self, _stop, self.loader, self._thread)
        start = time.perf_counter()
        while True:
            got = self.loader.ready.get()
            if isinstance(got, Exception):
                self._error = got
                raise got
            number, slot = got
            if number == unit:
                break
            self.loader.free.put(slot)
        self.tally.waited_s += time.perf_counter() - start
        self._held[unit] = slot
        return self.loader.views(unit, slot)

    def give(self, unit: int) -> None:
        """Let a unit go; its memory is overwritten."""
        slot = self._held.pop(unit, None)
        if slot is not None:
            self.loader.free.put(slot)


def _stop(loader: _Loader, thread: threading.Thread) -> None:
    """End a reading thread and wait for it: one that still runs when the interpreter goes takes it down."""
    loader.stopping.set()
    loader.free.put(-1)
    if thread is not threading.current_thread():
        thread.join()
