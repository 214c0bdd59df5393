"""Synthetic checkpoints of exactly the names and shapes in data/checkpoint_formats.json, with settings to match.

A variant says which of a layout's optional tensors are there: `bare` none, `full` all that go together, `other` the
alternatives to those (norms before fc instead of each tap's, the recurrent Markov head instead of the gated one).
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from hedgerow.draft.formats import TargetFacts

FORMATS = json.loads((Path(__file__).parent / "data" / "checkpoint_formats.json").read_text(encoding="utf-8"))
GOLDEN = {layout["id"]: layout for layout in FORMATS["layouts"]}
IDS = [name for name in GOLDEN if name != "rest_datastore"]
VARIANTS = ("bare", "full", "other")
SIZES = {  # all different where they may be, so that no two can be mistaken for each other
    "H": 32, "Ht": 32, "V": 96, "Vd": 40, "Vt": 40, "L": 12, "n": 2, "A": 3, "I": 48, "nh": 4, "nkv": 2, "hd": 16,
    "r": 5, "G": 7, "E": 6, "m": 2, "B": 4, "k": 3, "selector_rank": 9,
}
HEADS = 3
EXCLUDED = {
    "full": ("input_norm", "markov_head.joint_proj"),
    "other": ("fc_norm", "markov_head.gate_proj", "hidden_dim_adapter"),
}
LAYER = {
    "self_attn.q_proj.weight": ["nh*hd", "H"], "self_attn.k_proj.weight": ["nkv*hd", "H"],
    "self_attn.v_proj.weight": ["nkv*hd", "H"], "self_attn.o_proj.weight": ["H", "nh*hd"],
    "mlp.gate_proj.weight": ["I", "H"], "mlp.up_proj.weight": ["I", "H"], "mlp.down_proj.weight": ["H", "I"],
    "input_layernorm.weight": ["H"], "post_attention_layernorm.weight": ["H"],
}
EXPERTS = {  # a block of latent attention and experts, as DeepSeek's
    "self_attn.kv_a_proj_with_mqa.weight": [11, "H"], "mlp.experts.0.gate_proj.weight": [13, "H"],
    "mlp.gate.weight": [2, "H"], "input_layernorm.weight": ["H"], "post_attention_layernorm.weight": ["H"],
}


def choices(name: str) -> list[tuple[str, dict[str, int]]]:
    """Every concrete name of a pattern, with the indices that its shape may mention."""
    found = re.search(r"\{([^}]*)\}", name)
    if not found:
        return [(name, {})]
    numbers = {
        "i": range(SIZES["n"]), "h": range(HEADS), "a": range(SIZES["A"]), "l<m": range(SIZES["m"]), "m": [SIZES["m"]],
        "l=1..m-1": range(1, SIZES["m"]), "3,5,..": range(3, 2 * SIZES["m"], 2), "n>=L": [SIZES["L"]],
        "n": [SIZES["L"]], "i>=1": range(1, SIZES["n"]), "l": range(SIZES["m"]),
    }
    inside = found[1]
    options = [str(v) for v in numbers[inside]] if inside in numbers else inside.split(",")
    out = []
    for option in options:
        rest = name[: found.start()] + option + name[found.end() :]
        out += [(n, {inside[0]: int(option), **at} if inside in numbers else at) for n, at in choices(rest)]
    return out


def sizes(layout: str, variant: str) -> dict[str, int]:
    """Sizes of a case: a vocabulary of its own only with its map, two hidden sizes where a layout can have two."""
    patterns = [e["pattern"] for e in present(layout, variant)]
    two = layout.startswith("eagle3") or layout in ("peagle", "dflash_zlab")
    reduced = {} if {"d2t", "token_map"} & set(patterns) else {"Vd": SIZES["V"], "Vt": SIZES["V"]}
    return {**SIZES, **({"Ht": 24} if variant == "full" and two else {}), **reduced}


def target(layout: str, variant: str) -> TargetFacts:
    """The target that a case was made for."""
    return TargetFacts(sizes(layout, variant)["Ht"], SIZES["V"], SIZES["L"], "synthetic", "LlamaForCausalLM")


def present(layout: str, variant: str) -> list[dict[str, Any]]:
    """The golden entries that a variant has."""
    out = [*EXCLUDED.get(variant, ())]
    return [
        e for e in GOLDEN[layout]["tensors"]
        if not e.get("optional") or (variant != "bare" and not any(x in e["pattern"] for x in out))
    ]


def side(value: Any, at: dict[str, int]) -> int:
    """One side of a shape: `3*r`, `(h+2)*H`, `A*Ht` …; what nobody has verified is any number."""
    if isinstance(value, int):
        return value
    text = "H+r" if " or " in value else value.replace("?", "10")
    return int(eval(text, {"__builtins__": {}}, at))


def tensors(layout: str, variant: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """The tensors of a layout, random bf16 values; every optional tensor that goes with the variant."""
    torch.manual_seed(seed)
    out: dict[str, torch.Tensor] = {}
    for entry in present(layout, variant):
        for name, own in choices(entry["pattern"]):
            at = sizes(layout, variant) | own
            if entry["pattern"].endswith(".*"):
                block = EXPERTS if layout == "mtp_deepseek" else LAYER
                out |= {name[:-1] + part: values([side(s, at) for s in shape]) for part, shape in block.items()}
            elif name not in out:
                out[name] = values(shape_of(name, entry["shape"], at, out))
    return mapped(layout, out) | {n: out[n] for n in out if n not in ("d2t", "t2d", "token_map", "model.d2t")}


def shape_of(name: str, shape: list[Any], at: dict[str, int], out: dict[str, torch.Tensor]) -> list[int]:
    """`out` and the bias half of `{weight,bias}` are as long as the weight has rows."""
    if name.endswith(".bias") and (shape == ["out"] or len(shape) == 2):
        weight = out.get(name.removesuffix("bias") + "weight")
        return [side("nkv*hd" if re.search("[kv]_proj", name) else "nh*hd", at)] if weight is None else [len(weight)]
    return [side(s, at) for s in shape]


def values(shape: list[int]) -> torch.Tensor:
    """Random bf16 numbers."""
    return torch.randn(shape).to(torch.bfloat16)


def mapped(layout: str, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The vocabulary maps, if the layout has any: `Vd` of `V` ids, drawn at random."""
    ids = torch.randperm(SIZES["V"])[: SIZES["Vd"]]
    if "token_map" in found:
        return {"token_map": ids}                        # in any order
    ids = ids.sort().values
    t2d = torch.zeros(SIZES["V"], dtype=torch.bool)
    t2d[ids] = True
    both = {"d2t": ids - torch.arange(len(ids)), "t2d": t2d}
    return {name: both[name] for name in both if name in found}


def settings(layout: str, variant: str, names: set[str]) -> dict[str, Any]:
    """config.json: the required and constant settings of the golden file, the flags its tensors ask for."""
    s, entry = sizes(layout, variant), GOLDEN[layout]
    layers = len({m[1] for n in names if (m := re.match(r"(?:.*\.)?layers\.(\d+)\.", n))}) or 1
    body = {
        "hidden_size": s["H"], "intermediate_size": s["I"], "num_attention_heads": s["nh"], "vocab_size": s["V"],
        "num_key_value_heads": s["nkv"], "head_dim": s["hd"], "num_hidden_layers": layers, "rms_norm_eps": 1e-6,
        "rope_theta": 12345.0, "max_position_embeddings": 512,
    }
    out_of, hf = list(range(1, 2 * s["A"], 2)), list(range(2, 2 * s["A"] + 1, 2))
    if layout == "eagle3_deepspec":
        out_of = [-1, 1, 3, 5, 7]
    known: dict[str, Any] = {
        **body, "draft_vocab_size": s["Vd"], "block_size": s["B"], "mask_token_id": 90,
        "num_target_layers": s["L"], "aux_hidden_state_layer_ids": hf, "target_layer_ids": out_of, "k_mask": 2,
        "markov_rank": s["r"], "markov_head_type": markov(names), "transformer_layer_config": body, "num_heads": HEADS,
        "speculators_config": entry["config"].get("speculators_config", {}), "base_model_name_or_path": "synthetic",
        "hydra_num_heads": HEADS, "hydra_num_layers": 1 if variant == "bare" else s["m"], "hydra_head_arch": "mlp",
        "num_nextn_predict_layers": 1,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": hf, "use_aux_hidden_state": True},
        "speculators_model_type": "eagle",
        "dflash_config": {
            "mask_token_id": 90, "target_layer_ids": out_of, "projector_type": "domino", "emb_dim": s["E"],
            "gru_hidden_dim": s["G"], "pure_draft_prefix_len": 1, "shift_label": True,
        },
    }
    if layout == "dspark_specforge":
        known["dflash_config"] |= {"projector_type": "dspark", "block_size": s["B"], "markov_head_type": markov(names)}
    out = {"architectures": entry["architectures"], **entry["config"].get("constant", {})}
    out |= {key: known[key] for key in entry["config"].get("required", []) if key not in out}
    if "transformer_layer_config" not in out and layout not in ("medusa_official", "hydra_mlp"):
        out |= {key: v for key, v in body.items() if key != "head_dim" or "head_dim" in out}
    if layout.startswith("dspark"):
        out["markov_head_type"] = markov(names)
    if layout.startswith("eagle3") or layout == "peagle":
        out |= {"norm_before_fc": "input_norm.weight" in names, "fc_norm": "fc_norm.0.weight" in names}
        out |= {"target_hidden_size": s["Ht"]}
    fixed: dict[str, dict[str, Any]] = {
        "medusa_vllm": {"num_hidden_layers": s["m"], "truncated_vocab_size": s["Vt"]},
        "mtp_deepseek": {"num_hidden_layers": s["L"]},
        "dflash2": {"block_size": s["B"]},
    }
    return out | fixed.get(layout, {})


def markov(names: set[str]) -> str:
    """Which Markov head the tensors are."""
    kinds = {"markov_head.gate_proj.weight": "gated", "markov_head.joint_proj.weight": "rnn"}
    return next((kind for name, kind in kinds.items() if name in names), "vanilla")


def write(directory: Path, layout: str, variant: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """A checkpoint directory; returns the tensors it was written with, under the file's names."""
    found = tensors(layout, variant, seed)
    put(directory, settings(layout, variant, set(found)), found)
    return found


def put(directory: Path, config: dict[str, Any], found: dict[str, torch.Tensor]) -> None:
    """config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({n: t.contiguous() for n, t in found.items()}, directory / "model.safetensors")


CASES = list(itertools.product(IDS, VARIANTS))
