"""Layouts of feature-level drafters: EAGLE-1 (and 2, HASS), EAGLE-3 in its five dialects, P-EAGLE, Falcon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hedgerow.core.errors import ModelError
from hedgerow.draft.formats.head import Head, HeadConfig
from hedgerow.draft.formats.layout import (
    Layout,
    Seen,
    Shape,
    Writer,
    architecture,
    decoder,
    holds,
    layers_of_target,
    need,
    renamer,
    speculators,
    taps,
    vocab,
)
from hedgerow.draft.formats.target import TargetFacts
from hedgerow.draft.formats.written import layer_settings, model_type, refuse, speculators_wrapper

OWN_TAPS = "taps_hf_index"                # our own key in foreign directories: taps that no convention can shift
LAYER = r"layers\.(\d+)\."
MIDLAYER = renamer((r"midlayer\.(.*)", r"layers.0.\1"))
Flag = tuple[str, bool]                   # a setting and what holds where it is absent


# ---------------------------------------------------------------------------------------------- EAGLE-1


def _eagle1(seen: Seen) -> HeadConfig:
    hidden = seen.shape("fc.weight", 0)
    if seen.settings.get("bias") is True and "fc.bias" not in seen.shapes:
        raise ModelError("config.json says that fc has a bias, but tensor fc.bias is missing")
    v, _ = vocab(seen)
    layers = seen.count(LAYER)
    seen.agree("num_hidden_layers", layers, "layers.*")
    return HeadConfig(kind="eagle1", target_hidden=hidden, vocab=v, draft_vocab=v, **decoder(seen, hidden, layers))


def _is_eagle1(settings: Mapping[str, Any], shapes: Mapping[str, Shape]) -> bool:
    others = (
        "lm_head.weight", "midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight", "hidden_norm.weight",
        "lstm.weight_ih_l0",
    )
    if "fc.weight" not in shapes or any(n in shapes for n in others):
        return False
    rows, columns = shapes["fc.weight"]
    return columns == 2 * rows


def _eagle1_v1(seen: Seen) -> HeadConfig:
    if "hidden_states_layernorm.weight" in seen.shapes:
        seen.notes.append(
            "its pre_lm_head_layernorm is read as a norm of the hidden state before fc, as vLLM does; its writer "
            "meant a norm before the head"
        )
    there = "layers.0.input_layernorm.weight" in seen.shapes
    # The class makes one for `layernorms`, else an identity, which no file has; a file may leave the setting out.
    normed = seen.settings.get("layernorms", there)
    return replace(_eagle1(seen), norm_input=bool(normed))


# ---------------------------------------------------------------------------------------------- EAGLE-3


def _eagle3(
    find: Callable[[Seen], tuple[int, ...]], flags: tuple[Flag, ...], kind: Any = "eagle3"
) -> Callable[[Seen], HeadConfig]:
    """The config function of one dialect: where its taps stand, and what its flags mean where they are absent."""

    def config(seen: Seen) -> HeadConfig:
        hidden, raw = seen.shape("fc.weight", 0), seen.shape("fc.weight", 1)
        if "lm_head.weight" not in seen.shapes:
            raise ModelError("tensor lm_head.weight is missing: without its own head it would guess at random")
        v, draft = vocab(seen)
        layers = seen.count(LAYER)
        seen.agree("num_hidden_layers", layers, "layers.*")
        listed = seen.settings.get(OWN_TAPS)
        found = find(seen) if listed is None else taps(listed, 0, seen, OWN_TAPS)
        width = _width(seen, raw, max(len(found), 1))
        said: dict[str, Any] = {name: bool(seen.settings.get(name, absent)) for name, absent in flags}
        said.setdefault("fc_norm", bool(seen.settings.get("fc_norm", "fc_norm.0.weight" in seen.shapes)))
        return HeadConfig(
            kind=kind, target_hidden=width, vocab=v, draft_vocab=draft, taps=found,
            mask_token=seen.settings.get("mask_token_id"),
            block=int(seen.settings.get("num_depths") or 8) if kind == "peagle" else 0,
            embedding_scale=float(seen.settings.get("embedding_scale") or 1.0), **said, **decoder(seen, hidden, layers),
        )

    return config


def _width(seen: Seen, raw: int, states: int) -> int:
    """The target's hidden size: fc reads `raw` features of `states` hidden states."""
    known = seen.target.hidden if seen.target else seen.settings.get("target_hidden_size")
    if raw % states or (known and raw != states * int(known) and raw % int(known) == 0):
        of = f", which is {raw // int(known)} hidden states of {known}" if known and raw % int(known) == 0 else ""
        raise ModelError(f"fc.weight reads {raw} features{of}, but the file names {states} of them")
    return seen.agree("target_hidden_size", raw // states, "fc.weight", seen.settings)


def _usual(seen: Seen) -> tuple[int, ...]:
    layers = layers_of_target(seen)
    return (2, layers // 2, layers - 3)


def _speculators_taps(seen: Seen) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    return taps(seen.settings[key], 0, seen, key) if seen.settings.get(key) else _usual(seen)


def _official_taps(seen: Seen) -> tuple[int, ...]:
    group, key = seen.nested("eagle_config"), "eagle_aux_hidden_state_layer_ids"
    if group.get("use_aux_hidden_state") is False:
        return ()
    return taps(group[key], 0, seen, key) if group.get(key) else _usual(seen)


def _official(seen: Seen) -> HeadConfig:
    if seen.settings.get("norm_output"):
        seen.notes.append("its norm_output says that the head reads the normed state; what is fed back is the raw one")
    return _eagle3(_official_taps, (("norm_before_residual", False), ("norm_before_fc", False)))(seen)


def _deepspec_taps(seen: Seen) -> tuple[int, ...]:
    return taps(need(seen.settings, "target_layer_ids"), 1, seen, "target_layer_ids")


def _vllm_flags(residual: bool) -> tuple[Flag, ...]:
    return (
        ("norm_before_residual", residual), ("norm_before_fc", False), ("fc_norm", False), ("norm_output", False),
    )


def _speculators(seen: Seen) -> HeadConfig:
    if "norm_before_residual" not in seen.settings:
        seen.notes.append("norm_before_residual is not said; it is taken as true, as vLLM does for this format")
    return _eagle3(_speculators_taps, _vllm_flags(True))(seen)


# ---------------------------------------------------------------------------------------------- writers


def speculators_settings(head: Head, target: TargetFacts | None, dtype: str) -> dict[str, Any]:
    """config.json of an EAGLE-3 or P-EAGLE drafter for vLLM, every flag written out.

    vLLM sorts the taps, which would exchange the columns of fc, and takes their number from the layer's settings.
    """
    c = head.config
    refuse(head, "vLLM", **{"taps out of order": list(c.taps) != sorted(set(c.taps))})
    parallel = c.kind == "peagle"
    layer = layer_settings(head, model_type(head)) | ({"num_aux_hidden_states": len(c.taps)} if c.taps else {})
    out = speculators_wrapper(
        c.kind, "PEagleSpeculator" if parallel else "Eagle3DraftModel", c.block if parallel else 3, target, dtype
    )
    out |= {
        "transformer_layer_config": layer, "draft_vocab_size": c.draft_vocab,
        "target_hidden_size": c.target_hidden, "eagle_aux_hidden_state_layer_ids": list(c.taps),
        "norm_before_residual": c.norm_before_residual, "norm_before_fc": c.norm_before_fc, "fc_norm": c.fc_norm,
        "norm_output": c.norm_output, "embed_requires_grad": parallel,
    }
    if c.embedding_scale != 1.0:
        out["embedding_scale"] = c.embedding_scale
    return out | ({"mask_token_id": c.mask_token, "num_depths": c.block} if parallel else {})


def sglang_settings(head: Head, target: TargetFacts | None, dtype: str) -> dict[str, Any]:
    """config.json of an EAGLE-3 drafter for SGLang; it knows neither EAGLE-3.1's recurrence nor several layers.

    SGLang adds one to the layers a file names, so ours are written one lower, and only where they are not the usual.
    """
    c = head.config
    refuse(
        head, "SGLang", norm_before_residual=c.norm_before_residual, norm_before_fc=c.norm_before_fc,
        norm_output=c.norm_output, **{f"{c.layers} layers": c.layers != 1},
        **{"a drafter that reads the last hidden state": not c.taps},
    )
    usual = None if target is None else (2, target.layers // 2, target.layers - 3)
    out = {
        "architectures": ["LlamaForCausalLMEagle3"], **layer_settings(head, "llama"), "draft_vocab_size": c.draft_vocab,
        "target_hidden_size": c.target_hidden, "tie_word_embeddings": False, "torch_dtype": dtype,
        "fc_norm": c.fc_norm, "norm_output": True, OWN_TAPS: list(c.taps),
    }
    if c.taps != usual:
        out["eagle_config"] = {
            "use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [t - 1 for t in c.taps],
        }
    return out


def _midlayer(name: str, c: HeadConfig) -> str:
    return name.replace("layers.0.", "midlayer.", 1) if name.startswith("layers.0.") else name


# ---------------------------------------------------------------------------------------------- Falcon


def _falcon(seen: Seen) -> HeadConfig:
    hidden = seen.shape("lstm.weight_ih_l0", 1) // 2
    v, _ = vocab(seen)
    seen.notes.append("Falcon's published code does not run as it stands, so this drafter was never compared")
    layers = seen.count(LAYER)
    return HeadConfig(
        kind="falcon", target_hidden=hidden, vocab=v, draft_vocab=v, block=int(need(seen.settings, "k_mask")),
        **decoder(seen, hidden, layers),
    )


# ---------------------------------------------------------------------------------------------- the table


def _official_names(settings: Mapping[str, Any], shapes: Mapping[str, Shape]) -> bool:
    return "fc.weight" in shapes and any(f"{at}.hidden_norm.weight" in shapes for at in ("midlayer", "layers.0"))


LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "peagle", "P-EAGLE of speculators, SpecForge and Amazon",
        lambda settings, shapes: settings.get("speculators_model_type") == "peagle" or "mask_hidden" in shapes,
        MIDLAYER, _eagle3(_speculators_taps, _vllm_flags(False), "peagle"),
        writer=Writer(("peagle",), speculators_settings, own=("embed_tokens.weight",)),
    ),
    Layout(
        "eagle3_speculators", "EAGLE-3 of vLLM's speculators", speculators("eagle3"), MIDLAYER, _speculators,
        writer=Writer(("eagle3",), speculators_settings, own=("embed_tokens.weight",)),
    ),
    Layout(
        "eagle3_deepspec", "EAGLE-3 of DeepSpec",
        lambda settings, shapes: architecture(settings) == "Qwen3Eagle3Model",
        MIDLAYER, _eagle3(_deepspec_taps, (("norm_before_residual", False),)),
    ),
    Layout(
        "eagle3_modelopt", "EAGLE-3 of NVIDIA's ModelOpt",
        lambda settings, shapes: (
            bool(settings.get("eagle_config")) and OWN_TAPS not in settings and _official_names(settings, shapes)
        ),
        MIDLAYER, _official,
    ),
    Layout(
        "eagle3_official", "EAGLE-3 of its authors, SpecForge and SGLang", _official_names, MIDLAYER, _official,
        writer=Writer(("eagle3",), sglang_settings, _midlayer, without=("embed_tokens.weight",)),
    ),
    Layout("falcon", "Falcon", holds("lstm.weight_ih_l0"), renamer(), _falcon),
    Layout(
        "eagle1_speculators_v1", "EAGLE-1 of early speculators", holds("fusion_fc.weight"),
        renamer(
            (r"fusion_fc\.(.*)", r"fc.\1"), (r"pre_lm_head_layernorm\.(.*)", r"hidden_states_layernorm.\1"),
            (r"transformer\.(.*)", r"layers.0.\1"),
        ),
        _eagle1_v1,
    ),
    Layout("eagle1_safeailab", "EAGLE-1 and 2 of their authors, HASS", _is_eagle1, renamer(), _eagle1),
)
