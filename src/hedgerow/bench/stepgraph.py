"""One verification step as a plain function of tensors, for backends that want a whole graph.

Llama's decoder written out: token ids, positions, the keys and values of a context and an additive mask go in; logits
and the rows' own keys and values come out. Nothing is stored, so that a compiler or a converter sees one pure graph.
It measures what a backend could give; the engine itself never runs it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import nn

from hedgerow.core.errors import ModelError

Linear = Callable[[Float[torch.Tensor, "out inner"]], nn.Module]


@dataclass(frozen=True)
class Dims:
    """Sizes of a decoder, from its config."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    rope_theta: float

    @staticmethod
    def of(path: Path) -> Dims:
        """Those of a model directory. Raises ModelError for a model that is not a plain Llama."""
        config = json.loads((path / "config.json").read_text())
        rope = config.get("rope_parameters") or {}
        if config["model_type"] != "llama" or rope.get("rope_type", "default") != "default" or config["mlp_bias"]:
            raise ModelError(f"{path.name} is a {config['model_type']}; the step graph is for plain Llama models")
        heads = config["num_attention_heads"]
        return Dims(
            config["num_hidden_layers"], config["hidden_size"], heads, config["num_key_value_heads"],
            config.get("head_dim") or config["hidden_size"] // heads, config["vocab_size"], config["rms_norm_eps"],
            rope.get("rope_theta", config.get("rope_theta", 10000.0)),
        )


class PlainLinear(nn.Module):
    """x Wᵀ."""

    def __init__(self, weight: Float[torch.Tensor, "out inner"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Float[torch.Tensor, "rows inner"]) -> Float[torch.Tensor, "rows out"]:
        """The product."""
        return F.linear(x, self.weight)


class _Layer(nn.Module):
    def __init__(self, dims: Dims, weights: dict[str, torch.Tensor], index: int, linear: Linear) -> None:
        super().__init__()
        self.dims = dims

        def get(name: str) -> torch.Tensor:
            return weights[f"model.layers.{index}.{name}.weight"]

        self.qkv = linear(torch.cat([get(f"self_attn.{n}_proj") for n in "qkv"]))
        self.out = linear(get("self_attn.o_proj"))
        self.gate_up = linear(torch.cat([get("mlp.gate_proj"), get("mlp.up_proj")]))
        self.down = linear(get("mlp.down_proj"))
        self.norm = nn.Parameter(get("input_layernorm"), requires_grad=False)
        self.mlp_norm = nn.Parameter(get("post_attention_layernorm"), requires_grad=False)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, bias: torch.Tensor, past_k: torch.Tensor,
        past_v: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The layer's output, and the rows' keys and values."""
        d = self.dims
        qkv = self.qkv(_norm(x, self.norm, d.eps)).view(-1, d.heads + 2 * d.kv_heads, d.head_dim).transpose(0, 1)
        turned = _rotate(qkv[: d.heads + d.kv_heads], cos, sin)
        q, k, v = turned[: d.heads], turned[d.heads :], qkv[d.heads + d.kv_heads :]
        x = x + self.out(self._attend(q, k, v, bias, past_k, past_v))
        both = self.gate_up(_norm(x, self.mlp_norm, d.eps))
        half = both.shape[-1] // 2
        return x + self.down(F.silu(both[:, :half]) * both[:, half:]), k, v

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, past_k: torch.Tensor,
        past_v: torch.Tensor,
    ) -> Float[torch.Tensor, "rows hidden"]:
        """Query heads folded into rows; the context's keys are read where they lie, never joined with the new ones."""
        d, rows, context = self.dims, q.shape[1], past_k.shape[1]
        q = q.reshape(d.kv_heads, -1, d.head_dim)
        scores = torch.cat([q @ past_k.transpose(1, 2), q @ k.transpose(1, 2)], -1)
        weight = torch.softmax(scores.float() * d.head_dim**-0.5 + bias, -1).to(v.dtype)
        out = weight[..., :context] @ past_v + weight[..., context:] @ v
        return out.view(d.heads, rows, d.head_dim).transpose(0, 1).reshape(rows, d.heads * d.head_dim)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


class StepGraph(nn.Module):
    """(tokens, positions, mask, keys and values of every layer) → (logits, keys, values of the rows).

    `mask` [rows, context + rows] is added to the scores. Keys and values come as one tensor a layer, [kv_heads,
    context, head_dim]; those of the rows go out as [layers, kv_heads, rows, head_dim].
    """

    def __init__(
        self, dims: Dims, weights: dict[str, torch.Tensor], dtype: torch.dtype, linear: Linear = PlainLinear,
        longest: int = 2048,
    ) -> None:
        super().__init__()
        weights = {name: w.to(dtype) for name, w in weights.items()}
        self.dims, self.dtype = dims, dtype
        embedding = weights["model.embed_tokens.weight"]
        self.embedding = nn.Parameter(embedding, requires_grad=False)
        self.layers = nn.ModuleList(_Layer(dims, weights, i, linear) for i in range(dims.layers))
        self.norm = nn.Parameter(weights["model.norm.weight"], requires_grad=False)
        self.head = linear(weights.get("lm_head.weight", embedding))
        frequency = dims.rope_theta ** -(torch.arange(0, dims.head_dim, 2, dtype=torch.float64) / dims.head_dim)
        angle = torch.arange(longest, dtype=torch.float64)[:, None] * frequency.repeat(2)
        self.cos = nn.Parameter(angle.cos().to(dtype), requires_grad=False)
        self.sin = nn.Parameter(angle.sin().to(dtype), requires_grad=False)

    def forward(
        self, tokens: Int[torch.Tensor, " rows"], positions: Int[torch.Tensor, " rows"],
        mask: Float[torch.Tensor, "rows seen"], *past: Float[torch.Tensor, "kv_heads context head_dim"],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One step; `past` holds keys and values of layer 0, then of layer 1, …"""
        x = F.embedding(tokens, self.embedding)
        cos, sin = F.embedding(positions, self.cos), F.embedding(positions, self.sin)
        bias = mask.repeat(self.dims.heads // self.dims.kv_heads, 1)
        keys, values = [], []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, cos, sin, bias, past[2 * i], past[2 * i + 1])
            keys.append(k)
            values.append(v)
        return self.head(_norm(x, self.norm, self.dims.eps)), torch.stack(keys), torch.stack(values)


class Step(NamedTuple):
    """The inputs of a step graph."""

    tokens: Int[torch.Tensor, " rows"]
    positions: Int[torch.Tensor, " rows"]
    mask: Float[torch.Tensor, "rows seen"]
    past: list[Float[torch.Tensor, "kv_heads context head_dim"]]

    @property
    def flat(self) -> tuple[torch.Tensor, ...]:
        """As the arguments of `StepGraph.forward`."""
        return self.tokens, self.positions, self.mask, *self.past

    def first(self, rows: int) -> Step:
        """The step with the first `rows` of its rows only."""
        seen = self.mask.shape[1] - len(self.tokens) + rows
        return Step(self.tokens[:rows], self.positions[:rows], self.mask[:rows, :seen].contiguous(), self.past)

    def to(self, dtype: torch.dtype) -> Step:
        """The step with its keys and values in another type."""
        return self._replace(past=[t.to(dtype) for t in self.past])


def binary_tree(rows: int) -> list[int]:
    """Parents of a tree of `rows` rows whose row i has the rows 2i + 1 and 2i + 2 below it; the root's is −1.

    >>> binary_tree(4)
    [-1, 0, 0, 1]
    """
    return [(i - 1) // 2 if i else -1 for i in range(rows)]


def ancestors(parent: Sequence[int]) -> np.ndarray:
    """[rows, rows]: whether a row sees another: itself and all above it.

    >>> ancestors([-1, 0, 0]).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    seen = np.eye(len(parent), dtype=np.bool_)
    for row, above in enumerate(parent):
        if above >= 0:
            seen[row] |= seen[above]
    return seen


@torch.no_grad()
def make_step(graph: StepGraph, tokens: Int[torch.Tensor, " more"], rows: int, context: int) -> Step:
    """A binary tree behind a context whose keys and values the graph computes; the tree's tokens follow the context's.

    Raises: ModelError for fewer tokens than context + rows.
    """
    if len(tokens) < context + rows:
        raise ModelError(f"{len(tokens)} tokens do not fill a context of {context} and {rows} rows")
    d = graph.dims
    empty = [torch.zeros(d.kv_heads, 0, d.head_dim, dtype=graph.dtype)] * (2 * d.layers)
    chain = _additive(torch.ones(context, context).tril().bool())
    _, keys, values = graph(tokens[:context], torch.arange(context), chain, *empty)
    past = [t.contiguous() for k, v in zip(keys, values, strict=True) for t in (k, v)]
    tree = torch.from_numpy(ancestors(binary_tree(rows)))
    mask = _additive(torch.cat([tree.new_ones(rows, context), tree], 1))
    return Step(tokens[context : context + rows], context + tree.sum(1) - 1, mask, past)


def _additive(seen: torch.Tensor) -> Float[torch.Tensor, "rows seen"]:
    return torch.zeros(seen.shape).masked_fill_(seen.logical_not(), -math.inf)


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a model directory."""
    from safetensors.torch import load_file

    return {k: v for file in sorted(path.glob("*.safetensors")) for k, v in load_file(file).items()}
