"""A checkpoint directory as settings, names and shapes; weights are read when they are asked for, never unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hedgerow.core.errors import ModelError

CONFIG = "config.json"
CARD = "model_card.json"
_INDEXES = ("*.safetensors.index.json", "*.bin.index.json")
_PATTERNS = ("*.safetensors", "*.bin", "*.pt")
_NO_WEIGHTS = {"training_args", "optimizer", "scheduler", "rng_state"}       # what trainers leave beside a model


@dataclass(frozen=True)
class Files:
    """What a directory holds: config.json, our model card, the shape of every tensor, and how to read one."""

    path: Path
    settings: dict[str, Any]
    card: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    get: Callable[[str], torch.Tensor]


def read(path: Path) -> Files:
    """Open a directory's config.json and weights: safetensors, else .bin or .pt, in one file or several.

    Raises: ModelError for what is missing or cannot be read.
    """
    if not path.is_dir():
        raise ModelError(f"it is no directory{' but a file' if path.exists() else ': nothing is there'}")
    shapes: dict[str, tuple[int, ...]] = {}
    where: dict[str, Callable[[str], torch.Tensor]] = {}
    for file in _weight_files(path):
        found, get = _safetensors(file) if file.suffix == ".safetensors" else _torch(file)
        for name in found:
            if name in shapes:
                raise ModelError(f"tensor {name} is in two of its files, the second is {file.name}")
            where[name] = get
        shapes |= found
    return Files(path, _json(path / CONFIG), _json(path / CARD), shapes, lambda name: where[name](name))


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as e:
        raise ModelError(f"{file.name} is no JSON: {e}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{file.name} holds a {type(data).__name__}, not an object")
    return data


def _weight_files(path: Path) -> list[Path]:
    for pattern in _INDEXES:
        for index in sorted(path.glob(pattern)):
            listed = _json(index).get("weight_map")
            if not isinstance(listed, dict) or not listed:
                raise ModelError(f"{index.name} has no weight_map")
            files = [path / name for name in sorted(set(map(str, listed.values())))]
            if missing := [f.name for f in files if f.parent != path or not f.is_file()]:
                raise ModelError(f"{len(missing)} of {len(files)} weight files are missing, e.g. {missing[0]}")
            return files
    for pattern in _PATTERNS:
        if files := sorted(f for f in path.glob(pattern) if not _beside(f)):
            return files
    raise ModelError(f"it holds no weights: no {', '.join(_PATTERNS)} file")


def _beside(file: Path) -> bool:
    return any(file.stem.startswith(name) for name in _NO_WEIGHTS)


def _safetensors(file: Path) -> tuple[dict[str, tuple[int, ...]], Callable[[str], torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        opened = safe_open(file, framework="pt")
        names: Collection[str] = opened.keys()
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in names}
    except (SafetensorError, OSError, ValueError) as e:
        raise ModelError(f"{file.name} is truncated, or no safetensors file ({e})") from None
    return shapes, opened.get_tensor


def _torch(file: Path) -> tuple[dict[str, tuple[int, ...]], Callable[[str], torch.Tensor]]:
    def opened(mmap: bool) -> Any:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)

    try:
        try:
            data = opened(mmap=True)
        except (RuntimeError, ValueError):        # a file of torch's old format cannot be mapped
            data = opened(mmap=False)
    except Exception as e:  # noqa: BLE001 - a pickle fails in any way it likes
        reason = (str(e).splitlines() or [type(e).__name__])[0]
        raise ModelError(f"{file.name} cannot be read as plain tensors ({reason}); nothing else is loaded") from None
    if not isinstance(data, dict) or not all(isinstance(t, torch.Tensor) for t in data.values()):
        raise ModelError(f"{file.name} holds more than named tensors; save the drafter's state dict alone")
    return {str(name): tuple(t.shape) for name, t in data.items()}, data.__getitem__
