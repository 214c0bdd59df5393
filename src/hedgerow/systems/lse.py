"""Attention in parts by fused kernels, merged by the log of each part's sum of weights.

Equal to attention over all keys at once up to rounding: the cut moves with the context, so the last bits of a row do
as well. Where rows must not depend on that, `systems.ordered` is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float

from hedgerow.systems.ordered import Part

_FUSED = 256                              # widest head of the fused kernels


class Partial(NamedTuple):
    """Attention over some keys of each row: the normalised mean of values, and log Σ exp(score)."""

    out: Float[torch.Tensor, "kv_heads rows head_dim"]
    lse: Float[torch.Tensor, "kv_heads rows 1"]


def unmasked(
    q: Float[torch.Tensor, "kv_heads rows head_dim"], k: Float[torch.Tensor, "kv_heads keys head_dim"],
    v: Float[torch.Tensor, "kv_heads keys head_dim"], scale: float,
) -> Partial:
    """Every row over every key, by the device's fused kernel where it has one for these numbers; float32 results.

    >>> found = unmasked(torch.zeros(1, 2, 8), torch.ones(1, 3, 8), torch.ones(1, 3, 8), 1.0)
    >>> found.out[0, 0, 0].item(), round(found.lse[0, 0].exp().item(), 3)
    (1.0, 3.0)
    """
    fused = q.shape[-1] % 8 == 0 and q.shape[-1] <= _FUSED
    if fused and q.is_cpu:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q[None], k[None], v[None], scale=scale)
    elif fused and q.is_cuda and q.dtype in (torch.float16, torch.bfloat16):
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(q[None], k[None], v[None], scale=scale)[:2]
    else:
        return masked(q, k, v, None, scale)
    return Partial(out[0].float(), lse[0, :, : q.shape[1], None].float())


def masked(
    q: Float[torch.Tensor, "kv_heads rows head_dim"], k: Float[torch.Tensor, "kv_heads keys head_dim"],
    v: Float[torch.Tensor, "kv_heads keys head_dim"], bias: Float[torch.Tensor, "1 rows keys"] | None, scale: float,
) -> Partial:
    """The same by plain products, under a mask of 0 and −∞; for the few keys of a tree."""
    score = torch.matmul(q.float(), k.float().transpose(1, 2)) * scale
    if bias is not None:
        score = score + bias
    lse = score.logsumexp(-1, keepdim=True)
    return Partial(torch.matmul((score - lse).exp(), v.float()), lse)


def merged(a: Partial, b: Partial) -> Partial:
    """Attention over the keys of both: w · a + (1 − w) · b with w = σ(lse a − lse b), in float32.

    Source: LongSpec (arXiv 2502.17421) section 4.3.

    >>> one = Partial(torch.zeros(1, 1, 8), torch.zeros(1, 1, 1))
    >>> merged(one, Partial(torch.ones(1, 1, 8), torch.full((1, 1, 1), math.log(3.0)))).out[0, 0, 0].item()
    0.75
    """
    weight = torch.sigmoid(a.lse - b.lse)
    return Partial(b.out + weight * (a.out - b.out), torch.logaddexp(a.lse, b.lse))


Fetch = Callable[[str, Part], Float[torch.Tensor, "kv_heads kv_len head_dim"]]


def attend(
    q: Float[torch.Tensor, "kv_heads rows head_dim"], parts: Sequence[Part], fetch: Fetch, scale: float
) -> Float[torch.Tensor, "kv_heads rows head_dim"]:
    """softmax(q kᵀ · scale + bias) v over all parts of a row; `fetch`: keys (`k`) or values (`v`) of a part.

    One part under a whole mask is one call of PyTorch's own kernel, always with the mask: without one it takes another
    path. More are merged in float32.
    """
    bias, keys = parts[0].bias, parts[0].layout.kv_len
    if len(parts) == 1 and bias is not None and bias.shape[2] == keys:
        k, v = fetch("k", parts[0])[None], fetch("v", parts[0])[None]
        return F.scaled_dot_product_attention(q[None], k, v, attn_mask=bias, scale=scale)[0]
    whole = Partial(q.new_zeros(q.shape, dtype=torch.float32), q.new_full((*q.shape[:2], 1), -math.inf).float())
    for p in parts:
        mine, k, v = q[:, p.rows], fetch("k", p), fetch("v", p)
        clear = k.shape[1] - (0 if p.bias is None else p.bias.shape[2])
        found = [unmasked(mine, k[:, :clear], v[:, :clear], scale)] if clear else []
        if p.bias is not None:
            found.append(masked(mine, k[:, clear:], v[:, clear:], p.bias, scale))
        for one in found:
            both = merged(Partial(whole.out[:, p.rows], whole.lse[:, p.rows]), one)
            whole.out[:, p.rows], whole.lse[:, p.rows] = both
    return whole.out
