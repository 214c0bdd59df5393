"""Matrix products with weights of four bits, by PyTorch's own operators.

A weight is w ≈ (q − 8) · s + z with q in 0 … 15 and one scale s and one zero z, both bf16, for each group of `GROUP`
elements that lie behind one another in a row (the input's direction), as the Q4 formats of GGUF have it; a bit more
than four and a half bits an element. Activations stay bf16 and sums are float32; a row comes out the same among any
number of rows.

Fewer bytes help where reading the weights is what takes the time: at few rows. The operator unpacks every weight again
for every few rows, so its time grows with the rows, which is the opposite of what a tree needs; `slower_from` measures
from how many on it loses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import nn

GROUP = 32
ROWS = (1, 2, 4, 8, 16, 32)             # where its time is compared
_TILES = 2                                # inner tiles of the packed layout: the smallest, which suits every size here


def quantised(
    weight: Float[torch.Tensor, "out inner"], group: int = GROUP
) -> tuple[Int[torch.Tensor, "out inner"], Float[torch.Tensor, "groups out 2"]]:
    """q (int32) and, in bf16, the scale and zero of every group: its least and largest elements become 0 and 15.

    >>> q, grid = quantised(torch.arange(32.0).view(1, 32))
    >>> q[0, :4].tolist(), q[0, -1].item(), dequantised(q, grid)[0, [0, 31]].tolist()
    ([0, 0, 1, 1], 15, [0.0, 30.9375])
    """
    rows, inner = weight.shape
    w = weight.detach().float().view(rows, inner // group, group)
    low, high = w.aminmax(dim=2)
    scale = ((high - low) / 15).clamp_min(1e-8).bfloat16()
    zero = (low + 8 * scale.float()).bfloat16()
    # Rounded to what the scale and zero became, not to what they should be.
    q = ((w - zero.float()[:, :, None]) / scale.float()[:, :, None] + 8).round_().clamp_(0, 15)
    return q.to(torch.int32).view(rows, inner), torch.stack([scale, zero], -1).transpose(0, 1).contiguous()


def dequantised(
    q: Int[torch.Tensor, "out inner"], grid: Float[torch.Tensor, "groups out 2"]
) -> Float[torch.Tensor, "out inner"]:
    """The weight that `quantised` numbers stand for, float32: what the operators multiply by."""
    groups, rows, _ = grid.shape
    scale, zero = grid.float().transpose(0, 1).unbind(-1)
    return ((q.view(rows, groups, -1) - 8) * scale[:, :, None] + zero[:, :, None]).view(rows, -1)


class Int4Linear(nn.Module):
    """x Wᵀ + b with W of four bits; any number of rows, bf16 in and out."""

    def __init__(self, weight: Float[torch.Tensor, "out inner"], bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        q, self.grid = quantised(weight)
        self.packed, self._product = _packed(q)
        self.bias_values = None if bias is None else bias.detach()

    def forward(self, x: Float[torch.Tensor, "*batch inner"]) -> Float[torch.Tensor, "*batch out"]:
        """The product."""
        rows = x.reshape(-1, self.in_features).contiguous()
        out = self._product(rows, self.packed, GROUP, self.grid)
        if self.bias_values is not None:
            out = out + self.bias_values
        return out.view(*x.shape[:-1], self.out_features)


def _packed(q: Int[torch.Tensor, "out inner"]) -> tuple[torch.Tensor, Any]:
    """q as the device's operator wants it, and the operator."""
    if q.device.type == "cpu":
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, _TILES), torch.ops.aten._weight_int4pack_mm_for_cpu
    pairs = (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8)
    return torch.ops.aten._convert_weight_to_int4pack(pairs, _TILES), torch.ops.aten._weight_int4pack_mm


def serves(weight: Float[torch.Tensor, "out inner"]) -> bool:
    """Whether the operators take a weight of this shape."""
    out, inner = weight.shape
    return out % 16 == 0 and inner % GROUP == 0


def why_not(weight: torch.Tensor) -> str:
    """Why weights like this cannot be of four bits here, or ""; ends with a small product that is compared."""
    if weight.dtype != torch.bfloat16:
        return "int4 weights need bf16 activations; the model is in another dtype"
    device = weight.device
    if device.type not in ("cpu", "cuda"):
        return f"int4 weights are for the CPU and CUDA; the model is on {device.type}"
    try:
        w = torch.linspace(-1, 1, 64 * 64, device=device).view(64, 64).sin().bfloat16()
        x = torch.linspace(-2, 2, 5 * 64, device=device).view(1, 5, 64).bfloat16()
        want = x.float() @ dequantised(*quantised(w)).T
        if not torch.allclose(Int4Linear(w, None)(x).float(), want, rtol=0.02, atol=0.05):
            return "int4 weights gave a wrong product in a self-test"
    except (RuntimeError, AttributeError, NotImplementedError) as e:
        return f"int4 weights failed in a self-test: {str(e).splitlines()[0]}"
    return ""


def slower_from(
    ours: Callable[[torch.Tensor], Any], theirs: Callable[[torch.Tensor], Any], inner: int, device: torch.device,
    rows: Sequence[int] = ROWS, repetitions: int = 7, clock: Callable[[], float] = time.perf_counter,
) -> int | None:
    """The fewest rows from which on one product takes longer than another here, or None if it never does."""
    slower = []
    for n in rows:
        x = torch.ones(1, n, inner, dtype=torch.bfloat16, device=device)
        spent: tuple[list[float], list[float]] = [], []
        for turn in range(repetitions + 1):
            for call, found in zip((ours, theirs), spent, strict=True):
                start = clock()
                call(x)[..., 0].sum().item()
                if turn:                  # the first turn warms up
                    found.append(clock() - start)
        slower.append(median(spent[0]) > median(spent[1]))
    at = len(rows)
    while at and slower[at - 1]:
        at -= 1
    return rows[at] if at < len(rows) else None
