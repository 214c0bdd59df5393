"""Layouts of heads on the last hidden state: Medusa in two dialects, Hydra, Hydra++."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hedgerow.core.errors import ModelError
from hedgerow.draft.formats.head import Head, HeadConfig
from hedgerow.draft.formats.layout import Layout, Seen, Settings, Shape, Writer, decoder, holds, renamer
from hedgerow.draft.formats.target import TargetFacts

_HEAD = r"heads\.(\d+)\."


def _heads(seen: Seen, said: int | None) -> int:
    """How many heads the tensors hold; what config.json says is only a note, it is often wrong."""
    count = seen.count(_HEAD)
    if said is not None and int(said) != count:
        seen.notes.append(f"config.json says {said} heads, the file holds {count}: the file is believed")
    return count


def _sizes(seen: Seen, kind: Any, depth: int, said: int | None, v: int | None, **more: Any) -> HeadConfig:
    draft, hidden = (seen.shape("heads.0.lm_head.weight", axis) for axis in (0, 1))
    return HeadConfig(**{
        "kind": kind, "hidden": hidden, "target_hidden": hidden, "vocab": v or draft, "draft_vocab": draft,
        "count": _heads(seen, said), "depth": depth, **more,
    })


# ---------------------------------------------------------------------------------------------- Medusa


def _medusa(seen: Seen) -> HeadConfig:
    depth = seen.count(r"heads\.0\.blocks\.(\d+)\.")
    seen.agree("medusa_num_layers", depth, "heads.0.blocks.*", seen.settings)
    return _sizes(seen, "medusa", depth, seen.settings.get("medusa_num_heads"), None)


def _medusa_vllm(seen: Seen) -> HeadConfig:
    depth = seen.count(r"heads\.0\.blocks\.(\d+)\.")
    s = seen.settings
    seen.agree("num_hidden_layers", depth, "blocks.0.layers.*", s)
    config = _sizes(seen, "medusa", depth, s.get("num_heads"), s.get("medusa_vocab_size") or s.get("vocab_size"))
    for key in ("medusa_hidden_size", "hidden_size"):
        seen.agree(key, config.hidden, "lm_heads.0.weight", s)
    if s.get("truncated_vocab_size"):
        seen.agree("truncated_vocab_size", config.draft_vocab, "lm_heads.0.weight", s)
    return config


def _official_medusa(settings: Mapping[str, Any], shapes: Mapping[str, Shape]) -> bool:
    return any(re.fullmatch(r"(medusa_head\.)?\d+\.0\.linear\.weight", name) for name in shapes)


def _of_medusa(name: str, settings: Settings) -> bool:
    """In a whole fine-tuned model (Medusa-2) the target's own tensors are left out."""
    return not re.match(r"(layers|embed_tokens|norm|lm_head)\b", name)


def _medusa_names(name: str, c: HeadConfig) -> str:
    if match := re.fullmatch(r"heads\.(\d+)\.lm_head\.weight", name):
        return f"lm_heads.{match[1]}.weight"
    return re.sub(r"^heads\.(\d+)\.blocks\.", r"blocks.\1.layers.", name)


def vllm_settings(head: Head, target: TargetFacts | None, dtype: str) -> dict[str, Any]:
    """config.json of Medusa heads for vLLM."""
    c = head.config
    return {
        "architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": c.count, "num_hidden_layers": c.depth,
        "hidden_size": c.hidden, "vocab_size": c.vocab, "truncated_vocab_size": c.draft_vocab,
        "medusa_fc_bias": "heads.0.blocks.0.bias" in head.tensors, "original_lm_head": False, "torch_dtype": dtype,
    }


def official_settings(head: Head, target: TargetFacts | None, dtype: str) -> dict[str, Any]:
    """config.json of Medusa heads as their authors store them: for the full vocabulary, blocks with a bias."""
    c = head.config
    if head.ids is not None:
        raise ModelError("FasterDecoding's Medusa files have no vocabulary of their own: export for vLLM")
    if c.depth and "heads.0.blocks.0.bias" not in head.tensors:
        raise ModelError("FasterDecoding's Medusa blocks have a bias, these have none: export for vLLM")
    return {
        "medusa_num_heads": c.count, "medusa_num_layers": c.depth,
        "base_model_name_or_path": target.name if target else "", "version": "2", "torch_dtype": dtype,
    }


def _official_names(name: str, c: HeadConfig) -> str:
    """A head's matrix stands behind its blocks."""
    if match := re.fullmatch(r"heads\.(\d+)\.lm_head\.weight", name):
        return f"{match[1]}.{c.depth}.weight"
    return re.sub(r"^heads\.(\d+)\.blocks\.(\d+)\.", r"\1.\2.linear.", name)


# ---------------------------------------------------------------------------------------------- Hydra


def _hydra(seen: Seen) -> HeadConfig:
    depth = seen.count(r"heads\.0\.blocks\.(\d+)\.")
    s = seen.settings
    seen.agree("hydra_num_layers", depth, "heads.0.blocks.*", s)
    prefixed = "prefix.norm.weight" in seen.shapes
    arch = "prefix-mlp" if prefixed else "mlp"
    if s.get("hydra_head_arch", arch) != arch:
        raise ModelError(
            f"config.json says hydra_head_arch {s['hydra_head_arch']!r}, its tensors are those of {arch!r}; known: "
            "mlp, prefix-mlp"
        )
    if s.get("grounded_heads") is False or int(s.get("hidden_state_offset") or 0):
        raise ModelError("its heads are not grounded in the tokens before them, or read an earlier layer: not served")
    more: dict[str, Any] = {}
    if prefixed:
        hidden = seen.shape("prefix.norm.weight", 0)
        more = decoder(_prefix(seen, hidden), hidden, 1, "prefix.layers.0.")
    return _sizes(seen, "hydra", depth, s.get("hydra_num_heads"), None, arch=arch, **more)


def _prefix(seen: Seen, hidden: int) -> Seen:
    """Its layer is built from the target's settings, which a file may leave out: then heads are 128 wide."""
    if seen.settings.get("num_attention_heads"):
        return seen
    width = seen.shape("prefix.layers.0.self_attn.q_proj.weight", 0)
    dim = 128 if width % 128 == 0 else 64
    seen.notes.append(f"its prefix layer's heads are not said; {width // dim} of {dim} are assumed")
    return replace(seen, settings={**seen.settings, "num_attention_heads": width // dim, "head_dim": dim})


def _dropouts(match: re.Match[str]) -> str:
    """Hydra++ has a dropout before every block, so block l stands at 2l + 1."""
    return f"heads.{match[1]}.blocks.{(int(match[2]) - 1) // 2}.{match[3]}"


def _hydra_plus(name: str, settings: Settings) -> str | None:
    """Its prefix layer carries an embedding that nothing reads."""
    return None if name == "prefix_embeding_layer.embed_tokens.weight" else _PREFIX(name, settings)


_PREFIX = renamer(
    (r"hydra_mlp\.(\d+)\.1\.res_connection\.(.*)", r"heads.\1.residual.\2"),
    (r"hydra_mlp\.(\d+)\.(\d+)\.linear\.(.*)", _dropouts),
    (r"hydra_lm_head\.(\d+)\.1\.(weight|bias)", r"heads.\1.lm_head.\2"),
    (r"prefix_embeding_layer\.(.*)", r"prefix.\1"),
)
LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "hydra_prefix_mlp", "Hydra++", holds("hydra_mlp.0.1.linear.weight", "prefix_embeding_layer.norm.weight"),
        _hydra_plus, _hydra,
    ),
    Layout(
        "hydra_mlp", "Hydra", holds("hydra_mlp.0.0.linear.weight"),
        renamer(
            (r"hydra_mlp\.(\d+)\.0\.res_connection\.(.*)", r"heads.\1.residual.\2"),
            (r"hydra_mlp\.(\d+)\.(\d+)\.linear\.(.*)", r"heads.\1.blocks.\2.\3"),
            (r"hydra_lm_head\.(\d+)\.(weight|bias)", r"heads.\1.lm_head.\2"),
        ),
        _hydra,
    ),
    Layout(
        "medusa_vllm", "Medusa of vLLM",
        lambda settings, shapes: any(f"{at}blocks.0.layers.0.weight" in shapes for at in ("", "medusa_heads.")),
        renamer(
            (r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(.*)", r"heads.\1.blocks.\2"),
            (r"(?:medusa_heads\.)?lm_heads\.(\d+)\.(.*)", r"heads.\1.lm_head.\2"),
            (r"medusa_heads\.token_map", "token_map"),
        ),
        _medusa_vllm, writer=Writer(("medusa",), vllm_settings, _medusa_names, ids="absolute"),
    ),
    Layout(
        "medusa_official", "Medusa of its authors", _official_medusa,
        renamer(
            (r"(?:medusa_head\.)?(\d+)\.(\d+)\.linear\.(.*)", r"heads.\1.blocks.\2.\3"),
            (r"(?:medusa_head\.)?(\d+)\.\d+\.weight", r"heads.\1.lm_head.weight"),
        ),
        _medusa, select=_of_medusa,
        writer=Writer(("medusa",), official_settings, _official_names, ids="", file="medusa_lm_head.safetensors"),
    ),
)
