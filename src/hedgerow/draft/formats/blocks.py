"""Layouts of block drafters: DFlash (and JetSpec), DFlash2, DSpark in its three dialects, Domino."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hedgerow.core.errors import ModelError
from hedgerow.draft.formats.head import Head, HeadConfig
from hedgerow.draft.formats.layout import (
    Layout,
    Seen,
    Shape,
    Writer,
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
from hedgerow.draft.formats.written import layer_settings, refuse, speculators_wrapper

LAYER = r"layers\.(\d+)\."
FULL, SLIDING = "full_attention", "sliding_attention"


def usual_taps(layers: int, drafter_layers: int) -> tuple[int, ...]:
    """DFlash's taps where a file names none, as indices of hidden states; one a drafter layer.

    >>> usual_taps(36, 5), usual_taps(30, 1)
    ((2, 10, 18, 26, 34), (16,))
    """
    if drafter_layers == 1:
        return (layers // 2 + 1,)
    return tuple(round(1 + i * (layers - 4) / (drafter_layers - 1)) + 1 for i in range(drafter_layers))


# ---------------------------------------------------------------------------------------------- reading


def _common(seen: Seen, found: tuple[int, ...] | None) -> dict[str, Any]:
    """What all block drafters share; `found`: taps, None where the file names none."""
    hidden, layers = seen.shape("fc.weight", 0), seen.count(LAYER)
    raw = seen.shape("fc.weight", 1)
    found = usual_taps(layers_of_target(seen), layers) if found is None else found
    if raw != len(found) * hidden:
        raise ModelError(
            f"fc.weight reads {raw} features, which is {raw / hidden:g} hidden states of {hidden}, but the file names "
            f"{len(found)}: {list(found)} (as indices of hidden states)"
        )
    seen.agree("num_hidden_layers", layers, "layers.*")
    adapter = "hidden_dim_adapter.proj.weight"
    target_hidden = seen.shape(adapter, 1) if adapter in seen.shapes else hidden
    stated = seen.nested("dflash_config") or seen.settings
    seen.agree("target_hidden_size", target_hidden, adapter if adapter in seen.shapes else "fc.weight", stated)
    v, draft = vocab(seen)
    mask = need({**seen.settings, **seen.nested("dflash_config")}, "mask_token_id")
    return {
        "target_hidden": target_hidden, "vocab": v, "draft_vocab": draft, "taps": found, "mask_token": int(mask),
        "windows": _windows(seen.body, layers), **decoder(seen, hidden, layers),
    }


def _windows(body: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    kinds = body.get("layer_types") or []
    if SLIDING not in kinds:
        return ()
    if len(kinds) != layers or set(kinds) - {FULL, SLIDING}:
        raise ModelError(f"config.json's layer_types is {kinds} for {layers} layers; {FULL} and {SLIDING} are run")
    window = int(need(body, "sliding_window"))
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _zlab(seen: Seen, kind: Any, **more: Any) -> HeadConfig:
    """DFlash as its authors store it: block, mask and taps in `dflash_config`, taps counted by output."""
    group = seen.nested("dflash_config")
    listed = group.get("target_layer_ids", seen.settings.get("target_layer_ids"))
    found = None if listed is None else taps(listed, 1, seen, "target_layer_ids")
    causal = [group.get("causal"), group.get("causal_head"), seen.settings.get("is_causal")]
    return HeadConfig(
        kind=kind, block=int(need({**seen.settings, **group}, "block_size")), causal=any(causal),
        **{"from_anchor": bool(group.get("draft_shift", False)), **more}, **_common(seen, found),
    )


def _speculators(seen: Seen, kind: Any, **more: Any) -> HeadConfig:
    """DFlash and DSpark of speculators: taps are indices of hidden states; windows are causal within a block."""
    key = "aux_hidden_state_layer_ids"
    found = taps(need(seen.settings, key, "eagle_" + key), 0, seen, key)
    common = _common(seen, found)
    bidirectional = bool(seen.settings.get("sliding_window_non_causal", kind == "dflash2"))
    return HeadConfig(
        kind=kind, block=int(seen.settings.get("block_size") or 8),
        window_causal=bool(common["windows"]) and not bidirectional, **more, **common,
    )


def _dflash(seen: Seen) -> HeadConfig:
    return _zlab(seen, "dflash")


def _dflash_speculators(seen: Seen) -> HeadConfig:
    return _speculators(seen, "dflash", from_anchor=bool(seen.settings.get("sample_from_anchor", False)))


def _dflash2(seen: Seen) -> HeadConfig:
    seen.notes.append("this layout was never compared with a file of its authors")
    if seen.settings.get("speculators_model_type"):
        return _speculators(seen, "dflash2", from_anchor=bool(seen.settings.get("sample_from_anchor", False)))
    return _zlab(seen, "dflash2")


def anchored(settings: Mapping[str, Any], otherwise: bool) -> bool:
    """Whether slot 0 already predicts: `sample_from_anchor`, else no `dspark_bonus_anchor`, else the layout's habit."""
    if settings.get("sample_from_anchor") is not None:
        return bool(settings["sample_from_anchor"])
    if settings.get("dspark_bonus_anchor") is not None:
        return not settings["dspark_bonus_anchor"]
    return otherwise


def _markov(read: Callable[..., HeadConfig]) -> Callable[[Seen], HeadConfig]:
    """DSpark over one of the two readers: rank and kind of the Markov head, where the block begins."""

    def config(seen: Seen) -> HeadConfig:
        said = {**seen.settings, **seen.nested("dflash_config")}
        rank = seen.agree("markov_rank", seen.shape("markov_head.markov_w1.weight", 1), "markov_w1", said)
        kind = str(said.get("markov_head_type") or "vanilla")
        if kind not in ("vanilla", "gated", "rnn"):
            raise ModelError(f"config.json's markov_head_type is {kind!r}; known: vanilla, gated, rnn")
        if said.get("enable_confidence_head") is True and "confidence_head.proj.weight" not in seen.shapes:
            raise ModelError("config.json says it has a confidence head: tensor confidence_head.proj.weight is missing")
        return read(seen, "dspark", markov=kind, rank=rank, from_anchor=anchored(said, True))

    return config


def _domino(seen: Seen) -> HeadConfig:
    group = seen.nested("dflash_config")
    gru = seen.agree(
        "gru_hidden_dim", seen.shape("prefix_gru.weight_hh_l0", 1), "prefix_gru.weight_hh_l0", group
    )
    bottleneck = seen.agree("emb_dim", seen.shape("embed_proj.0.weight", 0), "embed_proj.0.weight", group)
    return _zlab(
        seen, "domino", gru=gru, bottleneck=bottleneck, pure=int(group.get("pure_draft_prefix_len") or 0),
        from_anchor=bool(group.get("shift_label", False)),
    )


# ---------------------------------------------------------------------------------------------- writing


def _layer_types(head: Head) -> dict[str, Any]:
    windows = head.config.windows or (None,) * head.config.layers
    return {
        "layer_types": [FULL if w is None else SLIDING for w in windows],
        "sliding_window": next((w for w in windows if w is not None), None),
    }


def _markov_settings(head: Head) -> dict[str, Any]:
    c = head.config
    if not c.markov:
        return {}
    confident = head.tensors.get("confidence_head.proj.weight")
    return {
        "markov_rank": c.rank, "markov_head_type": c.markov, "enable_confidence_head": confident is not None,
        "confidence_head_with_markov": confident is not None and confident.shape[1] != c.hidden,
    }


_MASK = "a mask embedding that is no token's"


def speculators_settings(head: Head, target: TargetFacts | None, dtype: str) -> dict[str, Any]:
    """config.json of a DFlash or DSpark drafter for vLLM."""
    c = head.config
    refuse(
        head, "speculators", **{"attention that is causal within the block": c.causal},
        **{"an adapter between two hidden sizes": c.target_hidden != c.hidden, _MASK: "mask_embedding" in head.tensors},
    )
    name = {"dflash": "DFlashSpeculator", "dspark": "DSparkSpeculator"}[c.kind]
    tokens = c.block if c.from_anchor else c.block - 1
    return {
        **speculators_wrapper(c.kind, name, tokens, target, dtype),
        "transformer_layer_config": {**layer_settings(head, "qwen3"), **_layer_types(head)},
        "draft_vocab_size": c.draft_vocab, "block_size": c.block, "target_hidden_size": c.target_hidden,
        "aux_hidden_state_layer_ids": list(c.taps), "mask_token_id": c.mask_token,
        "sliding_window_non_causal": not c.window_causal, "sample_from_anchor": c.from_anchor,
        **_markov_settings(head),
        **({"dspark_bonus_anchor": not c.from_anchor} if c.markov else {}),
    }


def _flat(head: Head, target: TargetFacts | None, dtype: str) -> dict[str, Any]:
    c = head.config
    refuse(
        head, "SGLang", **{
            "a vocabulary of the drafter's own": head.ids is not None,
            "windows that are causal while other layers are not": c.window_causal,
            _MASK: "mask_embedding" in head.tensors,
        },
    )
    return {
        **layer_settings(head, "qwen3"), **_layer_types(head), "block_size": c.block, "torch_dtype": dtype,
        "tie_word_embeddings": False, **({"num_target_layers": target.layers} if target else {}),
    }


def zlab_settings(head: Head, target: TargetFacts | None, dtype: str) -> dict[str, Any]:
    """config.json of a DFlash drafter as its authors and SGLang read it: taps counted by output."""
    c = head.config
    group: dict[str, Any] = {"mask_token_id": c.mask_token, "target_layer_ids": [t - 1 for t in c.taps]}
    if c.causal:
        group |= {"causal": True, "causal_head": True}
    if c.from_anchor:
        group["draft_shift"] = True
    if c.target_hidden != c.hidden:
        group["target_hidden_size"] = c.target_hidden
    return {
        "architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        **_flat(head, target, dtype), "dflash_config": group,
    }


def deepspec_settings(head: Head, target: TargetFacts | None, dtype: str) -> dict[str, Any]:
    """config.json of a DSpark drafter as DeepSpec and SGLang read it: taps counted by output."""
    c = head.config
    refuse(head, "DeepSpec", **{"attention that is causal within the block": c.causal})
    return {
        "architectures": ["Qwen3DSparkModel"], **_flat(head, target, dtype), "mask_token_id": c.mask_token,
        "target_layer_ids": [t - 1 for t in c.taps], "sample_from_anchor": c.from_anchor,
        "dspark_bonus_anchor": not c.from_anchor, **_markov_settings(head),
    }


# ---------------------------------------------------------------------------------------------- the table


def _projector(settings: Mapping[str, Any]) -> str:
    group = settings.get("dflash_config")
    return str(group.get("projector_type", "")) if isinstance(group, dict) else ""


def _is_dflash(settings: Mapping[str, Any], shapes: Mapping[str, Shape]) -> bool:
    return "fc.weight" in shapes and "hidden_norm.weight" in shapes


_BOTH = ("embed_tokens.weight", "lm_head.weight")
_KEEP = renamer()

LAYOUTS: tuple[Layout, ...] = (
    Layout("dflash2", "DFlash2", holds("layers.0.attention_conv.base_kernel"), _KEEP, _dflash2),
    Layout("domino", "Domino of SpecForge", holds("prefix_gru.weight_ih_l0"), _KEEP, _domino),
    Layout(
        "dspark_speculators", "DSpark of vLLM's speculators", speculators("dspark"), _KEEP, _markov(_speculators),
        writer=Writer(("dspark",), speculators_settings, own=_BOTH),
    ),
    Layout(
        "dspark_specforge", "DSpark of SpecForge", lambda settings, shapes: _projector(settings) == "dspark", _KEEP,
        _markov(_zlab),
    ),
    Layout(
        "dspark_deepspec", "DSpark of DeepSpec", holds("markov_head.markov_w1.weight"), _KEEP, _markov(_zlab),
        writer=Writer(("dspark",), deepspec_settings, own=_BOTH, ids=""),
    ),
    Layout(
        "dflash_speculators", "DFlash of vLLM's speculators", speculators("dflash"), _KEEP, _dflash_speculators,
        writer=Writer(("dflash",), speculators_settings, own=_BOTH),
    ),
    Layout(
        "dflash_zlab", "DFlash of its authors and SGLang, JetSpec", _is_dflash, _KEEP, _dflash,
        writer=Writer(("dflash",), zlab_settings, without=_BOTH, ids=""),
    ),
)
