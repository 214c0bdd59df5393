"""What a layout is: data that says how to recognise a checkpoint, name its tensors and read its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from hedgerow.core.errors import ModelError
from hedgerow.draft.formats.head import Head, HeadConfig, Kind
from hedgerow.draft.formats.target import TargetFacts

Shape = tuple[int, ...]
Settings = Mapping[str, Any]
Rename = Callable[[str, Settings], str | None]
Value = Callable[[str, torch.Tensor, Settings], torch.Tensor]
Detect = Callable[[Settings, Mapping[str, Shape]], bool]


@dataclass(frozen=True)
class Seen:
    """A checkpoint as `Layout.config` sees it: config.json, canonical names and shapes, facts of the target if known.

    `notes` collects what a user should know about how the file was read.
    """

    settings: Mapping[str, Any]
    shapes: Mapping[str, Shape]
    target: TargetFacts | None
    notes: list[str] = field(default_factory=list)

    @property
    def body(self) -> Mapping[str, Any]:
        """The settings of the decoder layers: nested in speculators' files and multimodal targets, else flat."""
        for key in ("transformer_layer_config", "text_config"):
            if isinstance(self.settings.get(key), dict):
                return dict(self.settings[key])
        return self.settings

    def nested(self, key: str) -> Mapping[str, Any]:
        """A group of settings, empty where there is none."""
        value = self.settings.get(key)
        return value if isinstance(value, dict) else {}

    def shape(self, name: str, axis: int) -> int:
        """One side of a tensor. Raises ModelError where there is none."""
        if name not in self.shapes or len(self.shapes[name]) <= axis:
            raise ModelError(f"tensor {name} is missing")
        return self.shapes[name][axis]

    def count(self, pattern: str) -> int:
        """How many different numbers stand in a pattern's group: `layers\\.(\\d+)\\.` counts layers."""
        found = {int(m[1]) for n in self.shapes if (m := re.match(pattern, n))}
        if found != set(range(len(found))):
            raise ModelError(f"its tensors {pattern} have the numbers {sorted(found)}; some are missing")
        return len(found)

    def agree(self, what: str, value: int, tensor: str, group: Mapping[str, Any] | None = None) -> int:
        """`value`, derived from a tensor; ModelError where config.json says another under `what`."""
        said = (self.body if group is None else group).get(what)
        if said is not None and int(said) != value:
            raise ModelError(f"config.json says {what} {said}, but {tensor} says {value}")
        return value


def need(settings: Mapping[str, Any], *keys: str) -> Any:
    """The first of these settings that is there. Raises ModelError naming them."""
    for key in keys:
        if settings.get(key) is not None:
            return settings[key]
    raise ModelError(f"config.json does not say {' or '.join(keys)}")


# ---------------------------------------------------------------------------------------------- layouts


@dataclass(frozen=True)
class Writer:
    """How a layout is written: its settings, the name of each canonical tensor, and what it must or cannot carry.

    `settings(head, target, dtype)` may refuse a head in words. `own`: tensors that must be in the file, copied from the
    target where the head has none; `without`: those that are left out. `ids`: under which names the vocabulary maps go.
    """

    kinds: tuple[Kind, ...]
    settings: Callable[[Head, TargetFacts | None, str], dict[str, Any]]
    rename: Callable[[str, HeadConfig], str] = lambda name, config: name
    own: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    ids: Literal["offsets", "absolute", ""] = "offsets"
    file: str = "model.safetensors"


@dataclass(frozen=True)
class Layout:
    """One published way to store a drafter.

    `detect(settings, shapes)` looks at config.json and at names without `model.`; `select` finds the drafter's tensors
    in a file that holds a whole model too (None: all are the drafter's); `rename` gives canonical names (None: not
    used); `config` derives the facts from shapes and compares them with the settings; `value(canonical name, tensor,
    settings)` is what a tensor is in canonical form, where the file means another number than it holds.
    """

    id: str
    title: str
    detect: Detect
    rename: Rename
    config: Callable[[Seen], HeadConfig]
    select: Callable[[str, Settings], bool] | None = None
    value: Value = lambda name, tensor, settings: tensor
    writer: Writer | None = None


def renamer(*pairs: tuple[str, str | Callable[[re.Match[str]], str]]) -> Rename:
    """A rename by regular expressions: the first that matches the whole name decides; other names stay.

    >>> renamer((r"midlayer\\.(.*)", r"layers.0.\\1"))("midlayer.hidden_norm.weight", {})
    'layers.0.hidden_norm.weight'
    """
    compiled = [(re.compile(pattern), new) for pattern, new in pairs]

    def rename(name: str, settings: Settings) -> str:
        for pattern, new in compiled:
            if match := pattern.fullmatch(name):
                return match.expand(new) if isinstance(new, str) else new(match)
        return name

    return rename


def speculators(kind: str) -> Detect:
    """Detects a speculators directory of one type."""
    return lambda settings, shapes: settings.get("speculators_model_type") == kind


def holds(*names: str) -> Detect:
    """Detects tensors that must all be there."""
    return lambda settings, shapes: all(n in shapes for n in names)


def architecture(settings: Mapping[str, Any]) -> str:
    """The first architecture that config.json names."""
    listed = settings.get("architectures")
    return str(listed[0]) if isinstance(listed, list) and listed else ""


# ---------------------------------------------------------------------------------------------- common settings


def decoder(seen: Seen, hidden: int, layers: int, first: str = "layers.0.") -> dict[str, Any]:
    """The fields of `HeadConfig` that describe llama or qwen3 layers, from shapes, compared with the settings.

    Raises: ModelError where the two differ, or an activation or rotation is not one we run.
    """
    body, attention = seen.body, f"{first}self_attn."
    act = body.get("hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise ModelError(f"its activation is {act!r}; layers with silu are run")
    q, k = (seen.shape(f"{attention}{x}_proj.weight", 0) for x in "qk")
    heads = int(need(body, "num_attention_heads"))
    dim = int(body.get("head_dim") or 0) or (q // heads if q % heads == 0 else 0)
    if not dim or heads * dim != q:
        raise ModelError(f"config.json says {heads} heads of {dim or '?'}, but {attention}q_proj.weight has {q} rows")
    kv_heads = k // dim
    if kv_heads * dim != k or kv_heads == 0 or heads % kv_heads:
        raise ModelError(f"{attention}k_proj.weight has {k} rows: no number of heads of {dim} that divides {heads}")
    seen.agree("num_key_value_heads", kv_heads, f"{attention}k_proj.weight")
    theta, scaling = rope(body)
    return {
        "hidden": seen.agree("hidden_size", hidden, f"{first}…"), "layers": layers, "heads": heads,
        "kv_heads": kv_heads, "head_dim": dim,
        "inner": seen.agree(
            "intermediate_size", seen.shape(f"{first}mlp.gate_proj.weight", 0), f"{first}mlp.gate_proj.weight"
        ),
        "eps": float(body.get("rms_norm_eps", 1e-5)), "rope_theta": theta, "rope_scaling": scaling,
        "max_len": int(body.get("max_position_embeddings") or 2048),
    }


def rope(body: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling of the rotation a file asks for: rope_parameters, else rope_theta, else 10000.

    The target's base is never taken: many drafters were trained with another.

    >>> rope({"rope_theta": 5e5}), rope({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}), rope({})
    ((500000.0, None), (1000000.0, None), (10000.0, None))
    """
    given = body.get("rope_parameters")
    given = dict(given) if isinstance(given, dict) else {}
    if given and all(isinstance(v, dict) for v in given.values()):       # one for each type of layer
        kinds = list(given.values())
        if any(k != kinds[0] for k in kinds):
            raise ModelError(f"its layers rotate in different ways ({', '.join(given)}); one way for all is run")
        given = dict(kinds[0])
    theta = given.pop("rope_theta", None)
    theta = body.get("rope_theta") if theta is None else theta
    scaling = given or body.get("rope_scaling")
    kind = (scaling or {}).get("rope_type", (scaling or {}).get("type", "default"))
    return float(theta if theta is not None else 10000.0), None if kind == "default" else dict(scaling or {})


def vocab(seen: Seen) -> tuple[int, int]:
    """The target's vocabulary and the drafter's: by config.json, rows of embed_tokens and lm_head, and the target."""
    v = seen.body.get("vocab_size") or seen.shapes.get("embed_tokens.weight", (0,))[0] or (
        seen.target.vocab if seen.target else 0
    )
    if not v:
        raise ModelError("config.json does not say vocab_size, and no tensor does")
    v = int(v)
    if "embed_tokens.weight" in seen.shapes:
        seen.agree("vocab_size", seen.shape("embed_tokens.weight", 0), "embed_tokens.weight")
    if "lm_head.weight" not in seen.shapes:
        return v, v
    draft = seen.shape("lm_head.weight", 0)
    for key in ("draft_vocab_size", "truncated_vocab_size"):
        if seen.settings.get(key):
            seen.agree(key, draft, "lm_head.weight", seen.settings)
    return v, draft


def taps(listed: Any, plus: int, seen: Seen, where: str) -> tuple[int, ...]:
    """Tapped layers as indices of hidden states; `plus` is 1 where a file counts the layers whose output is read."""
    try:
        return tuple(int(v) + plus for v in listed)
    except (TypeError, ValueError):
        raise ModelError(f"config.json's {where} is {listed!r}; a list of layers is needed") from None


def layers_of_target(seen: Seen) -> int:
    """How many layers the target has, by the file or by the target itself. Raises ModelError if neither says."""
    said = seen.settings.get("num_target_layers")
    if seen.target is not None:
        if said is not None and int(said) != seen.target.layers:
            raise ModelError(f"it was made for a target of {said} layers, this one has {seen.target.layers}")
        return seen.target.layers
    if said is None:
        raise ModelError("it does not say which hidden states it reads; the usual ones depend on the target: give it")
    return int(said)
