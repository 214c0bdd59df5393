"""Matrix products of a model with weights laid out once for the machine.

Plain and speculative decoding run the very same modules, so nothing here can part them; and each product gives a row
the same bits however many rows it is called with.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import nn

from hedgerow.systems import int4
from hedgerow.systems.int4 import Int4Linear

_ROWS_HINT = 16  # oneDNN picks a weight layout for a row count; the one for 16 serves 1 to 64 rows well
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # linears that, in most models, share an input


class PackedLinear(nn.Module):
    """x Wᵀ + b with the weight in oneDNN's own layout. The weight is opaque: no copy, save or move after packing."""

    def __init__(self, weight: Float[torch.Tensor, "out inner"], bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS_HINT)
        self.bias_values = None if bias is None else bias.detach()

    def forward(self, x: Float[torch.Tensor, "*batch inner"]) -> Float[torch.Tensor, "*batch out"]:
        """The product."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias_values, "none", [], "")


class _Shared:
    """Products that take the same input, computed together: the first one asked for computes all.

    Whether the input is the same is decided by identity, so a model that feeds its layers differently than their names
    suggest is slower, never wrong.
    """

    def __init__(self, linears: Sequence[nn.Linear], make: _Make) -> None:
        self.sizes = [m.out_features for m in linears]
        bias = None
        if any(m.bias is not None for m in linears):
            bias = torch.cat([m.weight.new_zeros(m.out_features) if m.bias is None else m.bias for m in linears])
        self.product = make(torch.cat([m.weight for m in linears]), bias)
        self._input: torch.Tensor | None = None
        self._parts: tuple[torch.Tensor, ...] = ()
        self._left = 0

    def part(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """The output of linear `index` for `x`."""
        if x is not self._input:
            self._input, self._parts, self._left = x, self.product(x).split(self.sizes, -1), len(self.sizes)
        out = self._parts[index]
        self._left -= 1
        if self._left <= 0:               # every part is out: let go of the tensors
            self._input, self._parts = None, ()
        return out


class PartLinear(nn.Module):
    """One linear of several that run as one product."""

    def __init__(self, shared: _Shared, index: int, like: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = like.in_features, like.out_features
        self._shared, self._index = shared, index

    def forward(self, x: Float[torch.Tensor, "*batch inner"]) -> Float[torch.Tensor, "*batch out"]:
        """The product: a view of the joint one."""
        return self._shared.part(self._index, x)


class FusedRMSNorm(nn.Module):
    """x / √(mean x² + ε) · w in one operator instead of six."""

    def __init__(self, weight: Float[torch.Tensor, " hidden"], eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight.detach(), requires_grad=False), eps

    def forward(self, x: Float[torch.Tensor, "*batch hidden"]) -> Float[torch.Tensor, "*batch hidden"]:
        """The normalised input."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True)
class Packed:
    """What became of a model's matrix products: the backend, and why a faster one is not active ("" = it is)."""

    backend: str
    why_not_faster: str = ""

    def __str__(self) -> str:
        return f"{self.backend} ({self.why_not_faster})" if self.why_not_faster else self.backend


_Make = Callable[[torch.Tensor, torch.Tensor | None], nn.Module]


def pack(model: nn.Module, quant: Literal["none", "int4"] = "none") -> Packed:
    """Replace the `nn.Linear` modules of a model in place where the machine can run them from packed weights.

    `quant`: `int4` keeps weights in four bits, but for the head over the vocabulary and shapes that do not fit. Linears
    known to share their input run as one product. Each weight is freed as soon as it is packed, so the peak is one
    extra matrix; a weight shared with an embedding stays for the embedding. Subclasses of `nn.Linear` (quantised or
    adapted ones) are left alone, and so are experts that lie in one tensor.
    """
    linears = [m for m in model.modules() if type(m) is nn.Linear]
    reason = _why_not(linears[0].weight) if linears else "the model has no plain linear layers"
    refused = int4.why_not(linears[0].weight) if linears and quant == "int4" else reason
    if refused:
        return Packed(f"torch {_name(next(model.parameters()).dtype)}", refused)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    four = [m for m in linears if m is not head and int4.serves(m.weight)] if quant == "int4" else []
    backend = _measured(max(four, key=lambda m: m.weight.numel()), not reason) if four else "mkldnn-packed bf16"
    if quant == "int4" and not four:
        return Packed(f"torch {_name(linears[0].weight.dtype)}", "no weight of the model has a shape for int4")
    _replace(model, set(four), not reason)
    release_memory()
    return Packed(backend)


def _replace(model: nn.Module, four: set[nn.Linear], packs: bool) -> None:
    """Linears in `four` become int4, the others packed bf16 where the machine `packs`; else they stay."""
    done: dict[nn.Linear, nn.Module] = {}      # a module may be found at two places
    for parent in list(model.modules()):
        for names in _SIBLINGS:
            parts = [m for n in names if type(m := getattr(parent, n, None)) is nn.Linear]
            alike = len({(m.in_features, m in four) for m in parts}) == 1
            if len(parts) == len(names) and alike and (packs or parts[0] in four):
                shared = _Shared(parts, Int4Linear if parts[0] in four else PackedLinear)
                for i, (name, part) in enumerate(zip(names, parts, strict=True)):
                    setattr(parent, name, PartLinear(shared, i, part))
        for name, module in list(parent.named_children()):
            if type(module) is nn.Linear and (packs or module in four or module in done):
                if module not in done:
                    done[module] = (Int4Linear if module in four else PackedLinear)(module.weight, module.bias)
                    module.weight = nn.Parameter(module.weight.new_empty(0), requires_grad=False)
                setattr(parent, name, done[module])


@torch.no_grad()
def _measured(linear: nn.Linear, packs: bool) -> str:
    """The backend of int4 weights in words, with what one of its products takes next to the same in bf16, now."""
    plain = PackedLinear(linear.weight, None) if packs else partial(F.linear, weight=linear.weight)
    n = int4.slower_from(Int4Linear(linear.weight, None), plain, linear.in_features, linear.weight.device)
    where = "at every row count" if n == int4.ROWS[0] else f"from {n} rows"
    slower = f"slower than bf16 {where}" if n else f"faster than bf16 up to {int4.ROWS[-1]} rows"
    return f"int4 weights in groups of {int4.GROUP}, bf16 head, torch's operator: {slower} here"


def fuse_norms(model: nn.Module) -> int:
    """Replace the root-mean-square norms of a model in place by the fused operator; returns how many.

    A module is replaced if its class is called `…RMSNorm` and both give the same result, up to rounding, on a sample.
    """
    done = 0
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            weight = getattr(module, "weight", None)
            eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
            if not (type(module).__name__.endswith("RMSNorm") and isinstance(eps, float)):
                continue
            if weight is None or weight.ndim != 1:
                continue
            twin = FusedRMSNorm(weight, eps)
            sample = torch.linspace(-3, 5, 2 * len(weight), device=weight.device).view(1, 2, -1).to(weight.dtype)
            with torch.no_grad():
                ours, theirs = twin(sample), module(sample)
            if ours.dtype == theirs.dtype and torch.allclose(ours.float(), theirs.float(), rtol=0.01, atol=1e-4):
                setattr(parent, name, twin)
                done += 1
    return done


def release_memory() -> None:
    """Give memory freed by Python back to the system, where the C library can."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return


def _name(dtype: torch.dtype) -> str:
    known = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float16: "fp16"}
    return known.get(dtype, str(dtype).removeprefix("torch."))


def _why_not(weight: torch.Tensor) -> str:
    """Why a weight cannot run packed, or ""; ends with a small product compared with the plain one."""
    if weight.device.type != "cpu":
        return f"packed weights are for the CPU; the model is on {weight.device.type}"
    if weight.dtype != torch.bfloat16:
        return f"packed weights need bf16; the model is {_name(weight.dtype)}"
    if not torch.backends.mkldnn.is_available():
        return "packed weights need oneDNN, which this build of torch lacks"
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return "packed bf16 weights need a CPU with AVX-512, which this one lacks"
        w = torch.linspace(-1, 1, 64 * 32).view(64, 32).bfloat16()
        x = torch.linspace(-2, 2, 5 * 32).view(1, 5, 32).bfloat16()
        if not torch.allclose(PackedLinear(w, None)(x).float(), F.linear(x.float(), w.float()), rtol=0.02, atol=0.02):
            return "packed weights gave a wrong product in a self-test"
    except (RuntimeError, AttributeError, NotImplementedError) as e:
        return f"packed weights failed in a self-test: {str(e).splitlines()[0]}"
    return ""
