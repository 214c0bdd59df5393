"""Pieces of a decoder layer as functions of named tensors, for drafters that are one to a few such layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float

from hedgerow.draft.formats.head import HeadConfig

Tensors = Mapping[str, torch.Tensor]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]   # q, k, v -> [rows, heads · head_dim]


def norm(w: Tensors, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / √(mean x² + ε) · w, in the weight's type."""
    weight = w[f"{name}.weight"]
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps)


def linear(w: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    """x Wᵀ, + b where there is one."""
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def heads_of(
    w: Tensors, at: str, side: str, x: Float[torch.Tensor, "*lead rows hidden"], c: HeadConfig
) -> Float[torch.Tensor, "*lead heads rows head_dim"]:
    """Queries (`q`), keys (`k`) or values (`v`) of a layer by heads, normed where the layer norms them."""
    y = linear(w, f"{at}self_attn.{side}_proj", x)
    y = y.view(*y.shape[:-1], c.heads if side == "q" else c.kv_heads, c.head_dim)
    if f"{at}self_attn.{side}_norm.weight" in w:
        y = norm(w, f"{at}self_attn.{side}_norm", y, c.eps)
    return y.transpose(-2, -3)


def mlp(w: Tensors, at: str, x: torch.Tensor) -> torch.Tensor:
    """down(SiLU(gate x) · up x)."""
    gate, up = (linear(w, f"{at}mlp.{side}_proj", x) for side in ("gate", "up"))
    return linear(w, f"{at}mlp.down_proj", F.silu(gate) * up)


def attention(
    q: Float[torch.Tensor, "*lead heads rows head_dim"], k: Float[torch.Tensor, "*lead kv_heads keys head_dim"],
    v: Float[torch.Tensor, "*lead kv_heads keys head_dim"], sees: Bool[torch.Tensor, "*masks rows keys"] | None,
) -> Float[torch.Tensor, "*lead rows features"]:
    """softmax(q kᵀ / √head_dim) v where a row sees a key (None: everywhere), query heads sharing key heads."""
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=sees, enable_gqa=q.shape[-3] != k.shape[-3])
    return out.transpose(-2, -3).flatten(-2)


def layer(
    w: Tensors, at: str, c: HeadConfig, x: Float[torch.Tensor, "*lead rows hidden"], attend: Attend
) -> Float[torch.Tensor, "*lead rows hidden"]:
    """A pre-norm decoder layer; `attend` turns, stores and looks at keys as its caller wants."""
    y = norm(w, f"{at}input_layernorm", x, c.eps)
    x = x + linear(w, f"{at}self_attn.o_proj", attend(*(heads_of(w, at, side, y, c) for side in "qkv")))
    return x + mlp(w, at, norm(w, f"{at}post_attention_layernorm", x, c.eps))
