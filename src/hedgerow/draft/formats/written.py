"""Settings that several writers share: those of decoder layers, and the wrapper of speculators directories."""

from __future__ import annotations

from typing import Any

from hedgerow.core.errors import ModelError
from hedgerow.draft.formats.head import Head
from hedgerow.draft.formats.target import TargetFacts

SPECULATORS_VERSION = "0.3.0"             # of the format as it is written here


def layer_settings(head: Head, model_type: str) -> dict[str, Any]:
    """The settings of a head's decoder layers, with the rotation under its old and its new keys."""
    c = head.config
    scaling = dict(c.rope_scaling) if c.rope_scaling else None
    biased = any(n.endswith("q_proj.bias") for n in head.tensors)
    return {
        "model_type": model_type, "hidden_size": c.hidden, "intermediate_size": c.inner, "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads, "head_dim": c.head_dim, "num_hidden_layers": c.layers, "vocab_size": c.vocab,
        "rms_norm_eps": c.eps, "hidden_act": "silu", "max_position_embeddings": c.max_len, "rope_theta": c.rope_theta,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_type": "default", **(scaling or {}), "rope_theta": c.rope_theta},
        "attention_bias": biased, "mlp_bias": False,
    }


def model_type(head: Head) -> str:
    """llama, or qwen3 where queries and keys are normed."""
    return "qwen3" if "layers.0.self_attn.q_norm.weight" in head.tensors else "llama"


def speculators_wrapper(
    algorithm: str, architecture: str, tokens: int, target: TargetFacts | None, dtype: str
) -> dict[str, Any]:
    """The outer settings of a speculators directory; `tokens`: how many drafts a server makes at once."""
    return {
        "architectures": [architecture], "speculators_model_type": algorithm,
        "speculators_version": SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": algorithm, "default_proposal_method": "greedy",
            "proposal_methods": [{
                "proposal_type": "greedy", "speculative_tokens": tokens, "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }],
            "verifier": {
                "name_or_path": target.name if target else "",
                "architectures": [target.architecture] if target and target.architecture else [],
            },
        },
        "tie_word_embeddings": False, "dtype": dtype, "torch_dtype": dtype,
    }


def refuse(head: Head, where: str, **flags: bool) -> None:
    """Raise ModelError where a layout cannot say what a head needs; `flags`: what it cannot say, if true."""
    if wrong := [name for name, there in flags.items() if there]:
        raise ModelError(f"a {where} directory cannot say {', '.join(wrong)}, which this drafter needs: export another")
