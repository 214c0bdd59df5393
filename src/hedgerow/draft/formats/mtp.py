"""Layouts of multi-token prediction modules: inside DeepSeek's and Qwen's checkpoints, and of speculators.

Canonical norms multiply by their weight. Qwen3-Next's and its successors' multiply by 1 + w and store w: one is added
at the border.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from hedgerow.draft.formats.head import HeadConfig
from hedgerow.draft.formats.layout import Layout, Seen, Settings, Shape, decoder, holds, need, renamer, speculators

_FIRST = "mtp_layers.0."
_DEEPSEEK = {
    "eh_proj": "input_proj", "enorm": "token_layernorm", "hnorm": "hidden_layernorm",
    "shared_head.norm": "final_layernorm",
}
_SHARED = {"embed_tokens": "embed_tokens.weight", "shared_head.head": "lm_head.weight"}
# Models whose norms multiply by 1 + w: their files hold w, near zero.
_AROUND_ZERO = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "gemma", "gemma2", "gemma3")
_NORM = re.compile(r"mtp_layers\.\d+\.(\w+_layernorm|self_attn\.[qk]_norm)\.weight")


def _mtp(seen: Seen) -> HeadConfig:
    """The block is the target's: its sizes are derived where it is a llama or qwen3 layer, else they stay 0."""
    hidden, layers = seen.shape(f"{_FIRST}input_proj.weight", 0), seen.count(r"mtp_layers\.(\d+)\.")
    seen.agree("num_nextn_predict_layers", layers, "its modules", seen.settings)
    seen.agree("hidden_size", hidden, f"{_FIRST}input_proj.weight")
    plain = all(f"{_FIRST}{part}_proj.weight" in seen.shapes for part in ("self_attn.q", "self_attn.k", "mlp.gate"))
    plain = plain and not _gated(seen)
    sizes: dict[str, Any] = decoder(seen, hidden, layers, _FIRST) if plain else {"hidden": hidden, "layers": layers}
    if not plain:
        seen.notes.append("its block is not a llama or qwen3 layer: the target's own code has to run it")
    v = int(need(seen.body, "vocab_size"))
    return HeadConfig(kind="mtp", target_hidden=hidden, vocab=v, draft_vocab=v, **sizes)


def _gated(seen: Seen) -> bool:
    """Whether queries come with a gate for the attention's output, as in Qwen3-Next: twice the rows."""
    rows = seen.shape(f"{_FIRST}self_attn.q_proj.weight", 0)
    heads, size = (int(seen.body.get(key) or 0) for key in ("num_attention_heads", "head_dim"))
    return bool(seen.body.get("attn_output_gate")) or 0 < 2 * heads * size == rows


def _is_around_zero(body: Settings) -> bool:
    return str(body.get("model_type", "")).removesuffix("_text") in _AROUND_ZERO


def _from_zero(name: str, tensor: torch.Tensor, settings: Settings) -> torch.Tensor:
    """A norm's weight as its model applies it, 1 + w; in float32, since bf16 would round away what was learned."""
    return 1.0 + tensor.float() if _NORM.fullmatch(name) else tensor


def _as_its_model(name: str, tensor: torch.Tensor, settings: Settings) -> torch.Tensor:
    """speculators' files hold the tensors of the model they were cut out of, norms as that model stores them."""
    return _from_zero(name, tensor, settings) if _is_around_zero(Seen(settings, {}, None).body) else tensor


def _behind(name: str, settings: Settings) -> int | None:
    """Which module a tensor of DeepSeek's file belongs to: modules stand as layers behind the target's own."""
    match = re.match(r"layers\.(\d+)\.", name)
    module = int(match[1]) - int(need(settings, "num_hidden_layers")) if match else -1
    return module if module >= 0 else None


def _deepseek_name(name: str, settings: Settings) -> str:
    module, rest = _behind(name, settings), name.split(".", 2)[2]
    stem, _, end = rest.rpartition(".")
    if not module and stem in _SHARED:
        return _SHARED[stem]
    return f"mtp_layers.{module}.{_DEEPSEEK.get(stem, stem)}.{end}"


def _is_deepseek(settings: Mapping[str, Any], shapes: Mapping[str, Shape]) -> bool:
    return any(re.fullmatch(r"layers\.\d+\.eh_proj\.weight", name) for name in shapes)


def _is_qwen(name: str, settings: Settings) -> bool:
    return name.startswith("mtp.")


LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "mtp_speculators", "MTP of vLLM's speculators", speculators("mtp"), renamer(), _mtp, value=_as_its_model,
    ),
    Layout(
        "mtp_deepseek", "MTP inside DeepSeek's checkpoints", _is_deepseek, _deepseek_name, _mtp,
        select=lambda name, settings: _behind(name, settings) is not None,
    ),
    Layout(
        "mtp_qwen3next", "MTP inside Qwen3-Next's checkpoints", holds("mtp.fc.weight"),
        renamer(
            (r"mtp\.fc\.(.*)", _FIRST + r"input_proj.\1"),
            (r"mtp\.pre_fc_norm_embedding\.(.*)", _FIRST + r"token_layernorm.\1"),
            (r"mtp\.pre_fc_norm_hidden\.(.*)", _FIRST + r"hidden_layernorm.\1"),
            (r"mtp\.norm\.(.*)", _FIRST + r"final_layernorm.\1"),
            (r"mtp\.layers\.(.*)", r"mtp_layers.\1"),
        ),
        _mtp, select=_is_qwen, value=_from_zero,
    ),
)
