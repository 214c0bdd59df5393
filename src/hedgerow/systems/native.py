"""A decoder's weights laid out for the compiled forward pass, and the call of it.

Weights are kept as panels of 32 columns, [panels, inner / 2, 32, 2] in bf16 and [panels, inner / 4, 32, 4] in int8, so
that a step reads them once from front to back. Every linear is y = x Wᵀ + b over rows rounded to the weights' kind:
bf16, or int8 with one scale for every row and group of inner elements (activations, rounded as they come) and one for
every column and group (weights).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from hedgerow.core.errors import InvariantError
from hedgerow.systems import structs
from hedgerow.systems.structs import Angles, Rotary, Rows, Scratch, address, span_table, store_of

PANEL = 32
KINDS = {"bf16": 0, "int8": 1}
PARTS = ("matmul", "attention", "head", "other")  # of the seconds a pass can report


# ---------------------------------------------------------------------------------------------------------- weights


class Matrix(NamedTuple):
    """One linear as the compiled pass wants it: panels, and per column scale, zero correction and bias (or None)."""

    kind: str
    n: int
    k: int
    group: int
    panels: torch.Tensor
    scale: torch.Tensor | None
    comp: torch.Tensor | None
    bias: torch.Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes a step reads."""
        return sum(t.numel() * t.element_size() for t in self[4:] if t is not None)


def panels(weight: torch.Tensor, group: int) -> torch.Tensor:
    """[out, inner] as [out / 32, inner / group, 32, group], padded with zero rows.

    >>> panels(torch.arange(4.0).view(2, 2), 2).shape
    torch.Size([1, 1, 32, 2])
    """
    n, k = weight.shape
    if k % group:
        raise InvariantError(f"a product over {k} inner elements cannot be cut into groups of {group}")
    if n % PANEL:
        weight = torch.cat([weight, weight.new_zeros(PANEL - n % PANEL, k)])
    return weight.view(-1, PANEL, k // group, group).permute(0, 2, 1, 3).contiguous()


def group_of(inner: int) -> int:
    """Inner elements that share a scale in int8: 96, 64 or 32, whichever divides them, else all.

    >>> group_of(576), group_of(4096), group_of(100)
    (96, 64, 100)
    """
    return next((g for g in (96, 64, 32) if not inner % g), inner)


def _columns(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values [..., columns], padded to whole panels."""
    out = torch.zeros(*values.shape[:-1], -(-values.shape[-1] // PANEL) * PANEL, dtype=dtype)
    out[..., : values.shape[-1]] = values
    return out


def matrix(weight: Float[torch.Tensor, "out inner"], bias: torch.Tensor | None, kind: str) -> Matrix:
    """A weight in panels. int8: q = round(w / s), s = max |w| / 127 over a group of one column of the product."""
    n, k = weight.shape
    bias = None if bias is None else _columns(bias.detach().float(), torch.float32)
    if kind == "bf16":
        return Matrix(kind, n, k, k, panels(weight.detach().bfloat16(), 2), None, None, bias)
    group = group_of(k)
    w = weight.detach().float().view(n, k // group, group)
    scale = w.abs().amax(2).div_(127).clamp_min_(1e-12)
    q = (w / scale[:, :, None]).round_().clamp_(-127, 127).to(torch.int8)
    comp = q.sum(2, dtype=torch.int32) * -128         # activations are stored with 128 added
    return Matrix(
        kind, n, k, group, panels(q.view(n, k), 4), _columns(scale.T, torch.float32), _columns(comp.T, torch.int32),
        bias,
    )


def dense(m: Matrix) -> Float[torch.Tensor, "out inner"]:
    """The weight a matrix was made of, in bf16: the very bits of it, or of int8 what it stands for.

    >>> weight = torch.arange(12.0).view(3, 4).bfloat16()
    >>> torch.equal(dense(matrix(weight, None, "bf16")), weight)
    True
    """
    rows = m.panels.permute(0, 2, 1, 3).reshape(-1, m.k)[: m.n]
    if m.scale is None:
        return rows.contiguous()
    groups = m.k // m.group
    scale = m.scale.view(groups, -1)[:, : m.n].T
    return (rows.view(m.n, groups, m.group).float() * scale[:, :, None]).view(m.n, m.k).bfloat16()


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """16 rows of the gate, the same 16 of up, and so on: a panel then holds both halves of 16 outputs."""
    inner = len(gate)
    short = -inner % 16
    if short:
        gate, up = (torch.cat([w, w.new_zeros(short, *w.shape[1:])]) for w in (gate, up))
    return torch.stack([gate.view(-1, 16, *gate.shape[1:]), up.view(-1, 16, *up.shape[1:])], 1).flatten(0, 2)


@dataclass(frozen=True)
class LayerWeights:
    """Norms (float32; those of query and key heads may be None) and linears of one layer."""

    norm_in: torch.Tensor
    norm_mid: torch.Tensor
    norm_q: torch.Tensor | None
    norm_k: torch.Tensor | None
    qkv: Matrix
    out: Matrix
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True)
class Weights:
    """A decoder of root-mean-square norms, rotary grouped-query attention and gated (SiLU) products."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    eps: float
    scale: float
    embedding: Float[torch.Tensor, "vocab hidden"]        # bf16
    norm: Float[torch.Tensor, " hidden"]
    head: Matrix
    layers: tuple[LayerWeights, ...]

    @property
    def matrices(self) -> list[Matrix]:
        """Every linear a step with logits runs, in order."""
        return [m for y in self.layers for m in (y.qkv, y.out, y.gate_up, y.down)] + [self.head]


# ---------------------------------------------------------------------------------------------------------- the call


class Out(NamedTuple):
    """Logits of kept rows; hidden states where asked for.

    `ranks` of each kept row: its best id, its k best ids, their logits; equal logits in order of id.
    """

    logits: Float[torch.Tensor, "kept vocab"]
    ranks: Float[torch.Tensor, "kept ranks"]
    taps: Float[torch.Tensor, "taps rows hidden"] | None
    last_hidden: Float[torch.Tensor, "rows hidden"] | None


@dataclass
class Decoder:
    """The compiled forward pass of one set of weights."""

    library: ctypes.CDLL
    weights: Weights
    angles: Angles

    def __post_init__(self) -> None:
        self._model, self._layers = describe(self.weights)
        self._rotary, self._scratch = Rotary(self._model, self.angles), Scratch()
        self.library.scratch_bytes.restype = structs.INT
        self.library.scratch_bytes.argtypes = [structs.POINTER, structs.INT, structs.INT, structs.INT]
        self.library.forward.restype = None
        self.library.forward.argtypes = [*[structs.POINTER] * 3, structs.INT, structs.POINTER]

    def forward(
        self, pool: torch.Tensor, tokens: np.ndarray, positions: np.ndarray, spans: Sequence[Rows], keep: np.ndarray,
        taps: Sequence[int] = (), last_hidden: bool = False, top_k: int = 0,
        seconds: np.ndarray | None = None,
    ) -> Out:
        """All rows (int64 `tokens`, `positions`) through all layers; logits of rows `keep` (int64).

        `pool` [2 · layers, pages, kv_heads, page length, head_dim] (bf16): keys and values of the rows are written to
        it. `seconds` [4] (float64): the time of each of `PARTS` is added to it.
        """
        w, threads = self.weights, torch.get_num_threads()
        rows, kept = len(tokens), len(keep)
        self._rotary.reach(int(positions.max()))
        logits = torch.empty(kept, w.vocab)
        top_k = min(top_k, w.vocab)
        ranks = torch.empty(kept, 1 + 2 * top_k)
        tapped = torch.empty(len(taps), rows, w.hidden, dtype=torch.bfloat16) if taps else None
        final = torch.empty(rows, w.hidden, dtype=torch.bfloat16) if last_hidden else None
        at = np.array(taps, np.int64)
        most = max(s.prefix + s.sees.shape[1] for s in spans)
        need = self.library.scratch_bytes(ctypes.byref(self._model), rows, most, threads)
        step = structs.Step(
            tokens.ctypes.data, positions.ctypes.data, keep.ctypes.data, at.ctypes.data, rows, kept, len(at),
            address(tapped), address(final), address(logits), address(ranks), top_k,
            None if seconds is None else seconds.ctypes.data,
            self._scratch.at(need), threads,
        )
        self.library.forward(
            ctypes.byref(self._model), ctypes.byref(store_of(pool)), span_table(spans), len(spans), ctypes.byref(step)
        )
        return Out(logits, ranks, tapped, final)


def describe(w: Weights) -> tuple[Any, Any]:
    """Weights as the C structure of a model, without rotary tables; the second value must live as long as the first."""
    layers = (structs.Layer * len(w.layers))(*(_layer(y) for y in w.layers))
    return structs.Model(
        len(w.layers), w.hidden, w.heads, w.kv_heads, w.head_dim, 0, w.inner, w.vocab, w.eps, w.scale,
        address(w.embedding), None, None, address(w.norm), linear(w.head), ctypes.addressof(layers),
    ), layers


def linear(m: Matrix) -> ctypes.Structure:
    """A matrix as the C structure of a product."""
    return structs.Linear(
        KINDS[m.kind], m.n, m.k, m.group, address(m.panels), address(m.scale), address(m.comp), address(m.bias)
    )


def _layer(y: LayerWeights) -> ctypes.Structure:
    return structs.Layer(
        address(y.norm_in), address(y.norm_mid), address(y.norm_q), address(y.norm_k),
        linear(y.qkv), linear(y.out), linear(y.gate_up), linear(y.down),
    )
