"""What the layers of a network ask of attention, whichever way a step's rows are laid out."""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Float


class Attention(Protocol):
    """The attention of one forward pass over packed rows: `attention.StepAttention`, `static.StaticAttention`."""

    def write(
        self, layer: int, k: Float[torch.Tensor, "kv_heads total head_dim"],
        v: Float[torch.Tensor, "kv_heads total head_dim"],
    ) -> None:
        """Store the keys and values of all rows."""

    def attend(
        self, layer: int, q: Float[torch.Tensor, "heads total head_dim"], scale: float
    ) -> Float[torch.Tensor, "total heads head_dim"]:
        """softmax(q kᵀ · scale + mask) v for every row."""
