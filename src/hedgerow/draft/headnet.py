"""Medusa's and Hydra's heads as functions of their tensors: residual blocks, then a product over the vocabulary.

Tensors are `heads.{i}.blocks.{l}`, `heads.{i}.residual` (Hydra's first block, whose input is wider than its output) and
`heads.{i}.lm_head`, each with `.weight` and perhaps `.bias`. Heads without a product of their own share `lm_head`, or
the target's head.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float

from hedgerow.draft.base import Base

Tensors = Mapping[str, torch.Tensor]


def head_count(w: Tensors) -> int:
    """Heads, counted from the names: configurations in circulation state other numbers.

    >>> head_count({"heads.0.blocks.0.weight": torch.empty(0), "heads.1.lm_head.weight": torch.empty(0)})
    2
    """
    return 1 + max((int(name.split(".")[1]) for name in w if name.startswith("heads.")), default=-1)


def state(w: Tensors, head: int, x: Float[torch.Tensor, "rows inputs"]) -> Float[torch.Tensor, "rows hidden"]:
    """The residual blocks of one head: z ← R z + SiLU(W z + b), R the identity but in a widening first block.

    Source: Medusa (2401.10774), section 2.1; Hydra (2402.05109), section 3 and its published heads.
    """
    at = f"heads.{head}.blocks"
    layer = 0
    while f"{at}.{layer}.weight" in w:
        y = F.silu(F.linear(x, w[f"{at}.{layer}.weight"], w.get(f"{at}.{layer}.bias")))
        wide = f"heads.{head}.residual"
        if layer == 0 and f"{wide}.weight" in w:
            x = F.linear(x, w[f"{wide}.weight"], w.get(f"{wide}.bias"))
        x = x + y
        layer += 1
    return x


def logits(
    w: Tensors, head: int, z: Float[torch.Tensor, "rows hidden"], base: Base
) -> Float[torch.Tensor, "rows draft_vocab"]:
    """Logits of one head from its state."""
    for name in (f"heads.{head}.lm_head", "lm_head"):
        if f"{name}.weight" in w:
            return F.linear(z, w[f"{name}.weight"], w.get(f"{name}.bias"))
    return base.head(z)


def medusa(
    w: Tensors, f: Float[torch.Tensor, "rows hidden"], base: Base, heads: int
) -> Float[torch.Tensor, "rows heads draft_vocab"]:
    """Logits of all heads from the last real feature f_t: head i is about token t + 2 + i."""
    return torch.stack([logits(w, i, state(w, i, f), base) for i in range(heads)], 1)
