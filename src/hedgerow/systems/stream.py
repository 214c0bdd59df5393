"""Weights streamed from disk layer by layer: models larger than memory, where hundreds of rows cost what one does.

Reading every weight takes longer than computing with it, for one row or for five hundred; so a tree of hundreds of
nodes is checked in the time of a plain step. A thread reads layer i + 1 and those after it while layer i computes, into
a ring of slots that together never exceed the window; when a step is over it goes on with the first layers of the
next. The computation itself is PyTorch's own on the very bytes of the file, so a streamed model gives bit for bit what
the resident one gives.

What fits is resident: vectors (norms, biases) always; embedding and head where two layers fit beside them. Otherwise
the head runs in pieces of its vocabulary, and rows of the embedding are read as tokens ask for them.

Source: SpecExec (2406.02532) and Sequoia (2402.12374), which stream from host memory to a GPU; this, from disk to
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import nn

from hedgerow.core.errors import ModelError, UsageError
from hedgerow.systems.disk import ALIGN, Disk, Reading, Stored, memory, stretches
from hedgerow.systems.ring import Ring, Unit

READERS = 8                               # rows of the embedding read at a time: a row takes a disk's latency


class StreamedHead(nn.Module):
    """x Wᵀ + b, some rows of W at a time; every number of the result is computed as in the whole product."""

    def __init__(self, ring: Ring, first: int, bounds: Sequence[tuple[int, int]], bias: torch.Tensor | None) -> None:
        super().__init__()
        self.ring, self.first, self.bounds, self.bias = ring, first, tuple(bounds), bias

    def forward(self, x: Float[torch.Tensor, "*batch hidden"]) -> Float[torch.Tensor, "*batch vocab"]:
        """The logits."""
        out = x.new_empty(*x.shape[:-1], self.bounds[-1][1])
        for i, (a, b) in enumerate(self.bounds):
            (weight,) = self.ring.take(self.first + i)
            try:
                out[..., a:b] = F.linear(x, weight, None if self.bias is None else self.bias[a:b])
            finally:
                self.ring.give(self.first + i)
        return out


class StreamedRows(nn.Module):
    """An embedding whose rows are read from disk as tokens ask for them, each once a call."""

    def __init__(self, stored: Stored, dtype: torch.dtype, disk: Disk) -> None:
        super().__init__()
        self.stored, self.dtype, self.disk = stored, dtype, disk
        self._pool = ThreadPoolExecutor(READERS, "hedgerow-rows")

    def forward(self, ids: Int[torch.Tensor, "*batch"]) -> Float[torch.Tensor, "*batch hidden"]:
        """The rows of the tokens."""
        unique, back = ids.unique(return_inverse=True)
        return torch.stack(list(self._pool.map(self._row, unique.tolist())))[back]

    @torch.inference_mode()
    def _row(self, token: int) -> Float[torch.Tensor, " hidden"]:
        row = self.stored.rows(token, token + 1)
        (read,), (at,), size = stretches([row])
        into = memory(size)
        self.disk.read(read, memoryview(into), at + row.size)
        raw = torch.frombuffer(into, dtype=torch.uint8, count=row.size, offset=at).clone()
        return raw.view(row.dtype).to(self.dtype)


@dataclass(frozen=True)
class Streamed:
    """How a model is streamed: bytes of the window, of what stays, of a slot, of all weights; the ring; the disk."""

    window_bytes: int
    resident_bytes: int
    slot_bytes: int
    slots: int
    model_bytes: int
    ring: Ring
    disk: Disk
    head: bool                            # head and embedding are streamed too

    def __str__(self) -> str:
        part = "weights" if self.head else "layers"
        return (
            f"torch, {part} streamed: {megabytes(self.model_bytes)} through {megabytes(self.window_bytes)} ("
            f"{self.slots} slots of {megabytes(self.slot_bytes)}, {megabytes(self.resident_bytes)} resident; "
            f"{self.disk.how})"
        )


Find = Callable[[Sequence[str]], Stored]


def attach(
    model: Any, layers: Sequence[nn.Module], find: Find, dtype: torch.dtype, window_bytes: int,
    reading: Reading = Reading(),  # noqa: B008 - frozen
) -> Streamed:
    """Give a model without weights (parameters on the meta device) its weights, streamed through a window.

    `find(names)` tells where a parameter of these names (more than one if it is shared) lies on disk. Mutates the
    model: vectors become resident, matrices of `layers` are bound while their layer runs and hold nothing otherwise,
    embedding and head are replaced if they do not fit.

    Raises: UsageError when the window is smaller than what must be in memory at once; ModelError from `find`.
    """
    names: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    stored = {id(p): find(names[id(p)]) for p in model.parameters()}
    for p in model.parameters():
        if stored[id(p)].shape != tuple(p.shape):
            raise ModelError(f"{names[id(p)][0]} is {stored[id(p)].shape} in its files, not {tuple(p.shape)}")
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    matrices = [[p for p in layer.parameters() if p.ndim >= 2] for layer in layers]
    moving = {id(p): p for group in matrices for p in group}
    ends = {id(p): p for p in (embed.weight, head.weight) if id(p) not in moving}
    small = [p for p in model.parameters() if id(p) not in moving and id(p) not in ends]
    size = dtype.itemsize
    small_bytes, ends_bytes = size * sum(p.numel() for p in small), size * sum(p.numel() for p in ends.values())
    model_bytes = small_bytes + ends_bytes + size * sum(p.numel() for p in moving.values())

    parts = [stored[i] for i in (*moving, *ends)]
    staged = any(s.dtype != dtype or s.begin % size for s in parts)
    units = [Unit.of(f"layer {i}", [stored[id(p)] for p in group], dtype, staged) for i, group in enumerate(matrices)]
    slot_bytes = max(u.slot_bytes for u in units)
    staging = max(u.raw_bytes for u in units) if staged else 0
    resident = small_bytes + ends_bytes
    cut = type(embed) is nn.Embedding and type(head) is nn.Linear and len(ends) > 0
    cut = cut and resident + staging + 2 * slot_bytes > window_bytes
    bounds: list[tuple[int, int]] = []
    if cut:
        table = stored[id(head.weight)]
        bounds = _bounds(table, slot_bytes, staging, dtype)
        units += [Unit.of(f"head {a} to {b}", [table.rows(a, b)], dtype, staged) for a, b in bounds]
        resident = small_bytes + READERS * 2 * (ALIGN + table.size // table.shape[0])
        slot_bytes = max(u.slot_bytes for u in units)
        staging = max(u.raw_bytes for u in units) if staged else 0
    slots = min((window_bytes - resident - staging) // slot_bytes, len(units))
    if slots < 1:
        one, good = slot_bytes + staging, -(-(2 * slot_bytes + staging + resident) // 1_000_000)
        raise UsageError(
            f"the window of {megabytes(window_bytes)} is too small: the biggest layer needs {megabytes(one)}, and "
            f"{megabytes(resident)} stay in memory; with room for two layers, reading and computing overlap: give "
            f"{good} MB or more"
        )

    disk = Disk(reading)
    ring = Ring(units, slots, dtype, staged, disk)
    with torch.no_grad():
        for p in [*small, *(() if cut else ends.values())]:
            _become(p, _read(disk, stored[id(p)], dtype))
        for p in moving.values():
            _become(p, torch.empty(0, dtype=dtype))
        kept = set(model.state_dict(keep_vars=True))
        for name, buffer in model.named_buffers():
            if name in kept:
                buffer.copy_(_read(disk, find([name]), buffer.dtype))
    for number, (layer, group) in enumerate(zip(layers, matrices, strict=True)):
        _bind(layer, group, ring, number, dtype)
    if cut:
        model.set_input_embeddings(StreamedRows(stored[id(embed.weight)], dtype, disk))
        if head.bias is not None:
            head.bias.requires_grad_(False)
        model.set_output_embeddings(StreamedHead(ring, len(layers), bounds, head.bias))
    return Streamed(window_bytes, resident + staging, slot_bytes, slots, model_bytes, ring, disk, cut)


def _bounds(table: Stored, slot_bytes: int, staging: int, dtype: torch.dtype) -> list[tuple[int, int]]:
    """The rows of the head that go through a slot of a layer's size at a time."""
    rows, row = table.shape[0], table.size // table.shape[0]
    room = slot_bytes // (table.shape[1] * dtype.itemsize) if staging else (slot_bytes - 2 * ALIGN) // row
    if staging:
        room = min(room, (staging - 2 * ALIGN) // row)
    step = max(room, 1)
    return [(a, min(a + step, rows)) for a in range(0, rows, step)]


def _bind(layer: nn.Module, parameters: Sequence[nn.Parameter], ring: Ring, unit: int, dtype: torch.dtype) -> None:
    """Hooks that lend a layer its weights while it runs."""
    nothing = torch.empty(0, dtype=dtype)

    def before(module: nn.Module, args: Any) -> None:
        for p, view in zip(parameters, ring.take(unit), strict=True):
            p.data = view

    def after(module: nn.Module, args: Any, output: Any) -> None:
        for p in parameters:
            p.data = nothing
        ring.give(unit)

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after, always_call=True)


def _become(p: nn.Parameter, value: torch.Tensor) -> None:
    """Swap a parameter on the meta device for a real one, wherever it is used."""
    torch.utils.swap_tensors(p, nn.Parameter(value, requires_grad=False))


def _read(disk: Disk, s: Stored, dtype: torch.dtype) -> torch.Tensor:
    """A tensor read for good."""
    (read,), (at,), size = stretches([s])
    into = memory(size)
    disk.read(read, memoryview(into), at + s.size)
    raw = torch.frombuffer(into, dtype=torch.uint8, count=s.size, offset=at).clone()
    return raw.view(s.dtype).view(s.shape).to(dtype)


def megabytes(count: int) -> str:
    """Bytes in words.

    >>> megabytes(64_000_000), megabytes(7_090_000), megabytes(61_400), megabytes(7_000_000_000)
    ('64 MB', '7.09 MB', '0.0614 MB', '7 GB')
    """
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
