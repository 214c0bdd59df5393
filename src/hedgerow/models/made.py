"""Networks of published shapes with random weights, made on the device: what a step costs needs no trained ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from hedgerow.core.errors import ModelError, UnknownName
from hedgerow.models.convert import first_line, quiet
from hedgerow.models.hf import ATTENTION, HFNet, register
from hedgerow.systems.linear import fuse_norms

_CONTEXT = 16384


@dataclass(frozen=True)
class Shape:
    """A model's configuration by transformers' names; `layers` is what the published model has."""

    name: str
    kind: str
    layers: int
    options: dict[str, Any] = field(default_factory=dict)

    def config(self, layers: int) -> Any:
        """The configuration cut to so many layers."""
        from transformers import AutoConfig

        return AutoConfig.for_model(self.kind, **{
            "num_hidden_layers": layers, "max_position_embeddings": _CONTEXT, "tie_word_embeddings": False,
            "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **self.options,
        })

    def nbytes(self, layers: int, dtype: torch.dtype = torch.bfloat16) -> int:
        """Bytes of its weights when cut to so many layers; nothing is allocated."""
        with torch.device("meta"):
            model = _build(self.config(layers), dtype)
        return sum(p.numel() for p in model.parameters()) * dtype.itemsize

    def fitting(self, room_bytes: float, dtype: torch.dtype = torch.bfloat16) -> int:
        """How many layers fit in so many bytes, at most all; 0 if not even the first does."""
        one, two = self.nbytes(1, dtype), self.nbytes(2, dtype)
        return max(0, min(self.layers, int((room_bytes - one) // (two - one)) + 1))


SHAPES = {shape.name: shape for shape in (
    Shape("llama-8b", "llama", 32, {  # Llama 3.1 8B
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5,
    }),
    Shape("qwen3-30b-a3b", "qwen3_moe", 48, {  # Qwen3-30B-A3B
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": True,
    }),
    Shape("tiny", "llama", 2, {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16,
    }),
    Shape("tiny-moe", "qwen3_moe", 2, {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2,
    }),
)}


def shape(name: str) -> Shape:
    """A shape by name. Raises UnknownName."""
    if name not in SHAPES:
        raise UnknownName("shape", name, SHAPES)
    return SHAPES[name]


def random_net(
    shape: Shape, layers: int, device: str | torch.device, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> HFNet:
    """A network of this shape, cut to so many layers, with random weights made on the device.

    Raises: ModelError when it does not fit there.
    """
    torch.manual_seed(seed)
    try:
        with torch.device(device):
            model = _build(shape.config(layers), dtype)
    except (torch.OutOfMemoryError, RuntimeError) as e:
        raise ModelError(f"{shape.name} of {layers} layers cannot be made on {device}: {first_line(e)}") from None
    fuse_norms(model)
    return HFNet(model)


def _build(config: Any, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    register()
    with quiet():
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION).eval()
