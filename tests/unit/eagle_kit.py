"""Random heads for the tiny target, and loops that draft with them."""

from __future__ import annotations

from typing import Any

import torch

from hedgerow.draft.base import Base
from hedgerow.draft.eagle import EagleDrafter
from hedgerow.draft.formats.head import Head, HeadConfig, Kind
from hedgerow.draft.nets.reference import TorchHead
from hedgerow.target.tiny import TinyTarget

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 4, 2, 16      # of the tiny target, but the inner size


def random_head(
    kind: Kind = "eagle3", vocab: int = 64, draft_vocab: int | None = None, seed: int = 0, **facts: Any
) -> Head:
    """A head of random weights, of the tiny target's sizes; flags and tensors follow from `facts`."""
    source = torch.Generator().manual_seed(seed)
    taps = facts.pop("taps", (0, 1, 2) if kind in ("eagle3", "peagle") else ())
    biases, qk_norms = facts.pop("biases", False), facts.pop("qk_norms", False)
    config = HeadConfig(
        kind, HIDDEN, HIDDEN, vocab, draft_vocab or vocab, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM,
        inner=INNER, taps=taps, **facts,
    )
    tensors: dict[str, torch.Tensor] = {}

    def linear(name: str, rows: int, columns: int, bias: bool = False) -> None:
        tensors[f"{name}.weight"] = torch.randn(rows, columns, generator=source) / columns**0.5
        if bias:
            tensors[f"{name}.bias"] = torch.randn(rows, generator=source) / 4

    def norm(name: str, size: int = HIDDEN) -> None:
        tensors[f"{name}.weight"] = 1 + torch.randn(size, generator=source) / 4

    wide, module = kind in ("eagle3", "peagle"), kind == "mtp"
    if not module:
        linear("fc", HIDDEN, len(taps) * HIDDEN if wide else 2 * HIDDEN, bias=kind == "eagle1")
    for i in range(config.layers):
        at, width = f"mtp_layers.{i}." if module else f"layers.{i}.", 2 * HIDDEN if wide and i == 0 else HIDDEN
        if kind != "eagle1" or i or config.norm_input:
            norm(f"{at}input_layernorm")
        norm(f"{at}post_attention_layernorm")
        linear(f"{at}self_attn.q_proj", HEADS * HEAD_DIM, width, biases)
        linear(f"{at}self_attn.k_proj", KV_HEADS * HEAD_DIM, width, biases)
        linear(f"{at}self_attn.v_proj", KV_HEADS * HEAD_DIM, width, biases)
        linear(f"{at}self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM)
        linear(f"{at}mlp.gate_proj", INNER, HIDDEN)
        linear(f"{at}mlp.up_proj", INNER, HIDDEN)
        linear(f"{at}mlp.down_proj", HIDDEN, INNER)
        if qk_norms:
            norm(f"{at}self_attn.q_norm", HEAD_DIM)
            norm(f"{at}self_attn.k_norm", HEAD_DIM)
    if wide:
        norm("layers.0.hidden_norm")
        norm("norm")
        linear("lm_head", config.draft_vocab, HIDDEN)
        if config.norm_before_fc:
            norm("input_norm", len(taps) * HIDDEN)
        for i in range(len(taps) * config.fc_norm):
            norm(f"fc_norm.{i}")
    if kind == "peagle":
        tensors["mask_hidden"] = torch.randn(1, 1, len(taps) * HIDDEN, generator=source)
        linear("embed_tokens", vocab, HIDDEN)
    if module:
        linear("mtp_layers.0.input_proj", HIDDEN, 2 * HIDDEN)
        for name in ("token", "hidden", "final"):
            norm(f"mtp_layers.0.{name}_layernorm")
    ids = None
    if config.draft_vocab < vocab:
        ids = torch.randperm(vocab, generator=source)[: config.draft_vocab].sort().values
    return Head(config, tensors, ids)


def drafter_of(target: TinyTarget, head: Head, **options: Any) -> EagleDrafter:
    """The reference drafter of a head."""
    base = Base.of(target)
    return EagleDrafter(TorchHead(head, base), head.config, base.slots, base.max_len, **options)


# ---------------------------------------------------------------------------------------------- by the definition


def naive(head: Head, base: Base, tokens: list[int], features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [rows, draft_vocab] and states [rows, hidden] of a chain of pairs: no cache, no kernels, all rows anew."""
    c, w = head.config, head.tensors

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = w.get(f"{name}.weight")
        return x if weight is None else x / (x.square().mean(-1, keepdim=True) + c.eps).sqrt() * weight

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        y = x @ w[f"{name}.weight"].T
        return y + w[f"{name}.bias"] if f"{name}.bias" in w else y

    def turned(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.complex(*x.chunk(2, -1))
        angle = torch.arange(len(x))[:, None] * c.rope_theta ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        out = pairs * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.cat([out.real, out.imag], -1)

    e = w.get("embed_tokens.weight", base.embedding)[tokens] * c.embedding_scale
    module = c.kind == "mtp"
    if c.kind in ("eagle3", "peagle"):
        normed = norm(features, "layers.0.hidden_norm")
        x = normed if c.norm_before_residual else features
        seen = torch.cat([norm(e, "layers.0.input_layernorm"), normed], -1)
    else:
        pair = (norm(e, "mtp_layers.0.token_layernorm"), norm(features, "mtp_layers.0.hidden_layernorm"))
        x = linear(torch.cat(pair, -1), "mtp_layers.0.input_proj" if module else "fc")
        seen = norm(x, f"{'mtp_layers' if module else 'layers'}.0.input_layernorm")
    for i in range(c.layers):
        at = f"mtp_layers.{i}." if module else f"layers.{i}."
        if i:
            seen = norm(x, f"{at}input_layernorm")
        q, k, v = (linear(seen, f"{at}self_attn.{n}_proj").view(len(x), -1, HEAD_DIM) for n in "qkv")
        q, k = turned(norm(q, f"{at}self_attn.q_norm")), turned(norm(k, f"{at}self_attn.k_norm"))
        mixed = torch.empty_like(q)
        for h in range(HEADS):
            own = h * KV_HEADS // HEADS
            scores = q[:, h] @ k[:, own].T / HEAD_DIM**0.5
            later = torch.ones_like(scores).triu(1).bool()
            mixed[:, h] = scores.masked_fill(later, -torch.inf).softmax(-1) @ v[:, own]
        x = x + linear(mixed.flatten(1), f"{at}self_attn.o_proj")
        y = norm(x, f"{at}post_attention_layernorm")
        gate = linear(y, f"{at}mlp.gate_proj")
        x = x + linear(gate * gate.sigmoid() * linear(y, f"{at}mlp.up_proj"), f"{at}mlp.down_proj")
    normed = norm(x, "mtp_layers.0.final_layernorm" if module else "norm")
    if "lm_head.weight" in w:
        logits = linear(normed, "lm_head")
    else:
        logits = base.head(normed)
        logits = logits if head.ids is None else logits[:, head.ids]
    return logits, normed if c.norm_output or module else x


def fused(head: Head, taps: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """The features of real rows by the definition: `taps` [A, rows, hidden], `last` [rows, hidden]."""
    c, w = head.config, head.tensors
    if c.kind not in ("eagle3", "peagle"):
        return last

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + c.eps).sqrt() * weight

    if c.fc_norm:
        taps = torch.stack([norm(x, w[f"fc_norm.{i}.weight"]) for i, x in enumerate(taps)])
    raw = torch.cat(list(taps), -1)
    return (norm(raw, w["input_norm.weight"]) if c.norm_before_fc else raw) @ w["fc.weight"].T
