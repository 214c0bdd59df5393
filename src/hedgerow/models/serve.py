"""Which models can be served: by their configuration before loading, by a self-test after."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hedgerow.core.parts import Needs, RowGroup
from hedgerow.core.tree import TokenTree
from hedgerow.models.runner import Runner


def refusal(config: Any) -> str:
    """Why a model of this configuration cannot be served, or "" if nothing speaks against it."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder; decoder-only models are served"
    if config.get_text_config() is not config:
        return "it is multimodal; text-only decoders are served"
    if getattr(config, "kv_lora_rank", None):
        return "it has multi-head latent attention (MLA), which is not served yet"
    if "linear_attention" in kinds or any(
        getattr(config, name, None) for name in ("ssm_cfg", "state_size", "mamba_d_state", "linear_num_value_heads")
    ):
        return "it keeps recurrent state, which cannot yet be rolled back along a tree"
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if "sliding_attention" in kinds or (not kinds and window):
        return f"it has sliding-window attention (window {window}), which is not served yet"
    strange = sorted(kinds - {"full_attention"} - {k for k in kinds if k in ("dense", "sparse", "moe")})
    if strange:
        return f"it has layers of kind {', '.join(strange)}; full_attention is served"
    if getattr(config, "is_causal", True) is False:
        return "its attention is not causal"
    return ""


def longest(config: Any) -> int:
    """The context a model is served to: beyond it, length-dependent rotary scaling would change earlier keys."""
    limit = int(getattr(config, "max_position_embeddings", 0) or 2048)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        limit = min(limit, int(rope.get("original_max_position_embeddings") or limit))
    return limit


@torch.inference_mode()
def probe(net: Any) -> str:
    """Self-test on a small branching tree: "" or why the model cannot be served.

    Rows of the tree must agree with the model's own attention run on each path alone (up to bf16's noise, hence three
    sharper tests): two siblings of one token must come out alike, a row must not notice another branch, and a row moved
    to another position must change.
    """
    ids = (np.arange(24) * 7919 + 1009) % net.vocab  # spread over the vocabulary: its ends are often untrained
    prompt, root, own = ids[:16], ids[16], ids[17:22]
    tree = TokenTree.of(tokens=[*own, own[0]], parent=[-1, -1, 0, 1, 1, -1])
    runner = Runner(net, slots=1, max_len=32, max_rows=32)
    slot, start = runner.kv.acquire(), len(prompt)
    runner.run([RowGroup("prefill", slot, prompt, np.arange(start), np.tri(start, dtype=np.bool_))], Needs())
    runner.kv.commit(slot, range(start))

    def rows(tokens: np.ndarray, positions: np.ndarray) -> torch.Tensor:
        group = RowGroup("tree", slot, np.concatenate([[root], tokens]), positions, tree.mask)
        return runner.run([group], Needs()).device_logits(0)

    def far(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a - b).pow(2).mean().sqrt() / b.std().clamp_min(1e-6))

    positions = tree.positions(start)
    ours = rows(tree.tokens, positions)
    paths = [tree.path(leaf) for leaf in (2, 3, 4)]
    name = net.config._attn_implementation
    net.model.set_attn_implementation("sdpa" if net.model._supports_sdpa else "eager")
    try:
        whole = torch.tensor([[*prompt, root, *(tree.tokens[i] for i in path)] for path in paths], device=net.device)
        alone = net.model(input_ids=whole, use_cache=False).logits.float()
    finally:
        net.model.set_attn_implementation(name)
    limit = net.tolerance
    for i, path in enumerate(paths):
        for depth, node in enumerate((-1, *path)):
            off = far(ours[node + 1], alone[i, start + depth])
            if not off <= limit:
                return f"a row of a tree is {off:.3f} of its spread away from the same path alone; {limit} is allowed"
    if far(ours[6], ours[1]) > 0.02:
        return "two siblings with the same token differ: positions are not honoured"
    other = tree.tokens.copy()
    other[[1, 3, 4]] = ids[22]
    if far(rows(other, positions)[[0, 1, 3]], ours[[0, 1, 3]]) > 0.02:
        return "a row of a tree notices other branches: the tree's mask is not honoured"
    if torch.equal(rows(tree.tokens, positions + np.arange(7) // 6)[6], ours[6]):
        return "a row does not notice its position: positions are not honoured"
    return ""
