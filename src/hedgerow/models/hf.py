"""Contact with transformers: loading a model and running it on our keys and attention.

No modelling code is copied. Our attention is registered under its own name; the model's forward pass calls it with
the step's `Attention` as a keyword, and hands new keys and values to a `Cache` that writes them into our slots.
Positions come from us, so siblings of a tree share one. A self-test at load shows that both are honoured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache

from hedgerow.core.errors import ModelError
from hedgerow.models.convert import first_line, quiet, read_config
from hedgerow.models.native import NativeNet
from hedgerow.models.runner import NetOut, Network
from hedgerow.models.serve import probe, refusal
from hedgerow.systems.attends import Attention
from hedgerow.systems.stream import Streamed

ATTENTION = "hedgerow"
_UNSERVED = {                             # keywords of an attention call that change its formula
    "softcap": "caps attention scores", "s_aux": "has attention sinks", "sinks": "has attention sinks",
    "position_bias": "adds a position bias to attention scores",
}


class SlotCache(Cache):
    """The cache of one forward pass: it writes keys and values into the step's slots and keeps nothing itself."""

    def __init__(self, step: Attention) -> None:
        super().__init__(layers=[])
        self.step = step

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store one layer's keys and values [1, kv_heads, rows, head_dim]; what is returned is not read."""
        self.step.write(layer_idx, key_states[0], value_states[0])
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions are always given, so no model needs to ask."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """As `get_seq_length`."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Sizes of a mask that is not built."""
        return query_length, 0


def attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
    scaling: float | None = None, hedgerow_step: Attention | None = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Our attention under transformers' calling convention: [1, heads, rows, head_dim] → [1, rows, heads, head_dim]."""
    if hedgerow_step is None:
        raise ModelError("its layers do not pass keywords on to attention, so the tree's mask cannot reach them")
    for name, what in _UNSERVED.items():
        if kwargs.get(name) is not None:
            raise ModelError(f"it {what}, which is not served yet")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return hedgerow_step.attend(module.layer_idx, query[0], scale)[None], None


def no_mask(**kwargs: Any) -> None:
    """The mask builder that goes with `attention`: the step carries the mask."""
    return


def register() -> None:
    """Make `ATTENTION` known to transformers; calling it again changes nothing."""
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, no_mask)


# ---------------------------------------------------------------------------------------------- loading and running


class HFNet(Network):
    """A transformers causal language model as a `Network`; `streamed`: how its weights are, None if they are loaded."""

    streamed: Streamed | None = None

    def __init__(self, model: Any) -> None:
        config = model.config
        self.model, self.config = model, config
        self.layers = int(config.num_hidden_layers)
        self.heads = int(config.num_attention_heads)
        self.kv_heads = int(getattr(config, "num_key_value_heads", None) or self.heads)
        self.head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // self.heads)
        self.vocab = int(config.vocab_size)
        some = next(model.parameters())
        self.dtype, self.device = some.dtype, some.device
        # Given a 4-D mask, models build none of their own; what each row sees is the step's business.
        self._mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.device)

    def forward(
        self, tokens: Int[torch.Tensor, " rows"], positions: Int[torch.Tensor, " rows"], step: Attention,
        keep: Int[torch.Tensor, " kept"] | None, taps: Sequence[int], last_hidden: bool,
    ) -> NetOut:
        """All rows through all layers; logits of rows `keep` (None: all). Taps are indices of `hidden_states`."""
        none = keep is not None and not len(keep)
        out = self.model(
            input_ids=tokens[None], position_ids=positions[None], attention_mask=self._mask, cache=SlotCache(step),
            use_cache=True, logits_to_keep=1 if none else 0 if keep is None else keep,
            output_hidden_states=bool(taps) or last_hidden, hedgerow_step=step,
        )
        logits = out.logits[0, :0] if none else out.logits[0]
        states = out.hidden_states
        return NetOut(
            logits, torch.stack([states[i][0] for i in taps]) if taps else None, states[-1][0] if last_hidden else None
        )


def load(
    path: Path, name: str, dtype: torch.dtype, device: str, prepare: Callable[[Any], None],
    build: Callable[[Path, Any, torch.dtype, str], Any] | None = None,
    fast: Callable[[Any], NativeNet | None] = lambda model: None, told: Callable[[str], None] = lambda reason: None,
) -> HFNet | NativeNet:
    """A model directory as a network.

    `build(path, config, dtype, device)` makes the model; None: transformers loads it whole. `fast(model)` may offer a
    compiled network for it, which is taken if it passes the self-test; `told` hears why not. Otherwise `prepare` may
    replace modules of the model, and it runs itself.

    Raises: ModelError, naming the model and the reason, when it cannot be loaded or served.
    """
    config = read_config(path)
    try:
        if reason := refusal(config):
            raise ModelError(reason)
        model = (build or _pretrained)(path, config, dtype, device)
        if (compiled := fast(model)) is not None:
            if not (reason := _tested(compiled)):
                compiled.let_go()
                return compiled
            told(f"the compiled layers do not fit this model: {reason}")
        prepare(model)
        net = HFNet(model)
        if reason := _tested(net):
            raise ModelError(reason)
    except ModelError as e:
        raise ModelError(f"model {name} ({config.model_type}) cannot be served: {e}") from None
    return net


def _tested(net: HFNet | NativeNet) -> str:
    """What `serve.probe` says of a network. Raises ModelError where it does not run at all."""
    try:
        return probe(net)
    except ModelError:
        raise
    except Exception as e:  # noqa: BLE001 - a model that cannot run our way may fail in any way
        return f"its layers do not run on our attention and cache ({first_line(e)})"


def class_of(config: Any) -> Any:
    """The class of a model's configuration. Raises ModelError when models of this class cannot run our way."""
    from transformers import AutoModelForCausalLM

    cls: Any = AutoModelForCausalLM._model_mapping.get(type(config), None)
    cls = cls[0] if isinstance(cls, tuple) else cls
    if cls is None:
        raise ModelError("transformers knows no causal language model of this kind")
    if getattr(cls, "_is_stateful", False):
        raise ModelError("it keeps recurrent state, which cannot yet be rolled back along a tree")
    if not cls._supports_attention_backend:
        raise ModelError("its attention cannot be replaced")
    return cls


def _pretrained(path: Path, config: Any, dtype: torch.dtype, device: str) -> Any:
    """The model itself, on the device, with our attention."""
    cls = class_of(config)
    register()
    try:
        with quiet():
            model, info = cls.from_pretrained(
                path, config=config, dtype=dtype, attn_implementation=ATTENTION, local_files_only=True,
                output_loading_info=True,
            )
        missing = sorted(info["missing_keys"])
        if missing:
            raise ModelError(f"its files lack {len(missing)} weights, {missing[0]} among them")
        return model.to(device).eval()
    except ModelError:
        raise
    except torch.OutOfMemoryError:
        raise ModelError(f"it does not fit in the memory of {device}") from None
    except Exception as e:  # noqa: BLE001 - whatever a damaged file raises, the user gets one line
        raise ModelError(f"it cannot be loaded ({first_line(e)})") from None
