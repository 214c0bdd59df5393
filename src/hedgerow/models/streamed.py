"""A transformers model whose weights stay on disk: built without them, then given them by `systems.stream`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hedgerow.core.errors import ModelError
from hedgerow.models.convert import first_line, quiet
from hedgerow.models.hf import ATTENTION, class_of, register
from hedgerow.systems.disk import Reading, Stored, catalogue
from hedgerow.systems.stream import Streamed, attach, megabytes

_Build = Callable[[Path, Any, torch.dtype, str], Any]


def builder(
    path: Path, dtype: torch.dtype, window_bytes: int, reading: Reading, told: Callable[[Streamed], None],
    report: Callable[[str], None],
) -> _Build | None:
    """What `models.hf.load` builds a model with so that it is streamed; `told` hears how.

    None if all weights fit in the window: streaming them would be slower and save nothing; `report` hears of it.

    Raises (when called): UsageError for a window that is too small, ModelError for files that cannot be streamed.
    """
    whole = sum(s.size // s.dtype.itemsize * dtype.itemsize for s in catalogue(path).values())
    if whole <= window_bytes:
        report(f"all {megabytes(whole)} of weights fit in the window of {megabytes(window_bytes)}: they are loaded")
        return None

    def build(path: Path, config: Any, dtype: torch.dtype, device: str) -> Any:
        cls = class_of(config)
        try:
            model = _empty(cls, config, dtype)
        except Exception as e:  # noqa: BLE001 - a model may fail to be built in any way; the user gets one line
            raise ModelError(f"it cannot be built without its weights ({first_line(e)})") from None
        _untie(model, set(catalogue(path)))
        told(attach(model, layers_of(model), _finder(path, model), dtype, window_bytes, reading))
        return model

    return build


def _empty(cls: Any, config: Any, dtype: torch.dtype) -> Any:
    """The model with its buffers and without its weights."""
    from accelerate import init_empty_weights

    register()
    with quiet(), init_empty_weights(include_buffers=False):
        model = cls._from_config(config, dtype=dtype, attn_implementation=ATTENTION)
    model.tie_weights()
    return model.eval().requires_grad_(False)


def _untie(model: Any, known: set[str]) -> None:
    """Two parameters that the configuration ties and the files hold twice are two: they need not be equal."""
    head, embed = model.get_output_embeddings(), model.get_input_embeddings()
    shared = [name for name, p in model.named_parameters(remove_duplicate=False) if p is head.weight]
    if head.weight is embed.weight and all(name in known for name in shared):
        head.weight = nn.Parameter(torch.empty_like(head.weight), requires_grad=False)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The decoder layers: the longest list of modules that holds as many as the configuration says.

    Raises: ModelError where there is none.
    """
    count = int(model.config.num_hidden_layers)  # type: ignore[union-attr, arg-type]
    lists: list[nn.ModuleList] = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if not lists:
        raise ModelError("its decoder layers are not found, so they cannot be streamed")
    sizes = [sum(p.numel() for p in m.parameters()) for m in lists]
    return list(lists[sizes.index(max(sizes))])


def _finder(path: Path, model: Any) -> Callable[[Sequence[str]], Stored]:
    """Where a parameter of these names lies; files may leave out or add the prefix of the model's body."""
    known, prefix = catalogue(path), f"{model.base_model_prefix}."

    def find(names: Sequence[str]) -> Stored:
        for name in names:
            for key in (name, name.removeprefix(prefix), prefix + name):
                if key in known:
                    return known[key]
        raise ModelError(
            f"it cannot be streamed: its files hold no {names[0]} as the model uses it (weights that are rearranged "
            "when they are loaded are not streamed)"
        )

    return find
