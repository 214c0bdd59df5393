"""The structures of the compiled passes, field by field as the C headers beside this file have them.

And what every call of a pass needs: memory to work in, rotary tables, the slots its rows belong to.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

Angles = Callable[[int], tuple[torch.Tensor, torch.Tensor]]  # cosines and sines [positions, rotated], float32


def _struct(name: str, **fields: Any) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


INT, POINTER, FLOAT = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
Linear = _struct(
    "Linear", kind=INT, n=INT, k=INT, group=INT, w=POINTER, scale=POINTER, comp=POINTER, bias=POINTER
)
Layer = _struct(
    "Layer", norm_in=POINTER, norm_mid=POINTER, norm_q=POINTER, norm_k=POINTER, qkv=Linear, out=Linear,
    gate_up=Linear, down=Linear,
)
Model = _struct(
    "Model", layers=INT, hidden=INT, heads=INT, kv_heads=INT, dim=INT, rotated=INT, inner=INT, vocab=INT, eps=FLOAT,
    scale=FLOAT, embedding=POINTER, cos=POINTER, sin=POINTER, norm=POINTER, head=Linear, layer=POINTER,
)
Span = _struct("Span", start=INT, rows=INT, prefix=INT, width=INT, table=POINTER, sees=POINTER, joined=INT)
Store = _struct("Store", pool=POINTER, pages=INT, page_len=INT)
Step = _struct(
    "Step", tokens=POINTER, positions=POINTER, keep=POINTER, taps=POINTER, rows=INT, kept=INT, tapped=INT,
    tap_out=POINTER, last_out=POINTER, logits=POINTER, ranks=POINTER, top=INT, seconds=POINTER, scratch=POINTER,
    threads=INT,
)
Drafter = _struct(
    "Drafter", body=Model, taps=INT, target_hidden=INT, norm_whole=INT, normed_residual=INT, normed_output=INT,
    embedding_scale=FLOAT, norm_feature=POINTER, norm_taps=POINTER, fc=Linear,
)
HeadStep = _struct("HeadStep", step=Step, features=POINTER, hidden=POINTER, law=POINTER)


def address(tensor: torch.Tensor | None) -> int | None:
    """Where a tensor's numbers begin; None, which is NULL, for none."""
    return None if tensor is None else tensor.data_ptr()


class Rows(NamedTuple):
    """Packed rows of one slot: `rows` rows from `start`, behind `prefix` keys that all of them see.

    `sees` [rows, width] (uint8): pending rows of the slot each row sees; the last `rows` columns are the rows' own.
    `table`: the slot's pages (int32). `joined`: the first so many keys, whole pages, are those of the span before; all
    spans of such a cluster but the first name the same number.
    """

    start: int
    rows: int
    prefix: int
    sees: np.ndarray
    table: np.ndarray
    joined: int = 0


class Rotary:
    """Rotary tables of a model's structure, in powers of two: long contexts cost memory only when they are used.

    `angles(n)`: cosines and sines [n, rotated], float32. Mutates `model`.
    """

    def __init__(self, model: Any, angles: Angles) -> None:
        self._model, self._angles, self._reach = model, angles, -1
        self.reach(511)

    def reach(self, position: int) -> None:
        """Make the tables long enough for a position."""
        if position <= self._reach:
            return
        self._cos, self._sin = (t.contiguous() for t in self._angles(1 << position.bit_length()))
        self._reach = len(self._cos) - 1
        self._model.cos, self._model.sin = address(self._cos), address(self._sin)
        self._model.rotated = self._cos.shape[1]


class Scratch:
    """Memory that a pass works in, kept from call to call."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def at(self, size: int) -> int:
        """The address of `size` bytes, until the next call."""
        if self._memory.numel() < size:
            self._memory = torch.frombuffer(mmap.mmap(-1, size + size // 2), dtype=torch.uint8)
        return self._memory.data_ptr()


def span_table(spans: Sequence[Rows]) -> Any:
    """Rows of slots as an array of the C structure."""
    return (Span * len(spans))(
        *(
            Span(s.start, s.rows, s.prefix, s.sees.shape[1], s.table.ctypes.data, s.sees.ctypes.data, s.joined)
            for s in spans
        )
    )


def store_of(pool: torch.Tensor) -> Any:
    """A pool of keys and values as the C structure."""
    return Store(pool.data_ptr(), pool.shape[1], pool.shape[3])
