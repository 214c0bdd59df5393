"""Every method that can be trained, by name: what it taps, how its module begins, and how a drafter is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hedgerow.draft.formats import TargetFacts, save_own
from hedgerow.train import block_start, heads, independent
from hedgerow.train.eagle import Eagle3, EagleModule
from hedgerow.train.parts import HeadMethod, Method
from hedgerow.train.start import TargetWeights, warm


@dataclass(frozen=True)
class Options:
    """What methods may be told: layers of the drafter, unrolled steps (or heads, or slots of a block), extra losses."""

    layers: int = 1
    steps: int = 3
    align: float = 0.0                     # weight of HASS's term
    tree_reward: float = 0.0               # weight of GTO's term
    seed: int = 0


Build = Callable[[TargetWeights, torch.Tensor, tuple[int, ...], torch.device, Options], Method]
Save = Callable[[Any, Path, dict[str, Any], TargetFacts], None]


def _save_head(method: HeadMethod, folder: Path, facts: dict[str, Any], target: TargetFacts) -> None:
    save_own(method.head(facts), folder, target=target)


@dataclass(frozen=True)
class Trainable:
    """One method: a line about it, its taps, how it begins from a target, and how its drafter is written.

    `layers`, `steps`: what `Options` has where nothing is asked for. `terms`: which of the extra losses it knows.
    """

    about: str
    taps: Callable[[TargetWeights], tuple[int, ...]]
    build: Build
    save: Save = _save_head
    layers: int = 1
    steps: int = 3
    terms: frozenset[str] = frozenset()


def _eagle3(
    target: TargetWeights, ids: torch.Tensor, taps: tuple[int, ...], device: torch.device, options: Options
) -> Method:
    torch.manual_seed(options.seed)
    module = EagleModule(target.head_config("eagle3", len(ids), taps=taps, layers=options.layers))
    warm(module, target, ids, options.seed)
    return Eagle3(
        module.to(device), target.embedding.to(device), target.output[ids].contiguous().to(device), ids.to(device),
        steps=options.steps, align=options.align, tree_reward=options.tree_reward,
    )


def _block(kind: str) -> Build:
    return lambda target, ids, taps, device, options: block_start.begun(
        target, ids, taps, device, kind, options.steps, options.layers, options.seed
    )


def _heads(reads_path: bool) -> Build:
    return lambda target, ids, taps, device, options: heads.begun(
        target, ids, device, options.steps, options.layers, reads_path
    )


def _independent(
    target: TargetWeights, ids: torch.Tensor, taps: tuple[int, ...], device: torch.device, options: Options
) -> Method:
    return independent.begun(target, ids, device, options.layers, options.steps, options.seed)


def _save_copy(
    method: independent.Independent, folder: Path, facts: dict[str, Any], target: TargetFacts
) -> None:
    method.save(folder, {**facts, "target": {"name": target.name, "tokenizer": target.tokenizer}})


METHODS: dict[str, Trainable] = {
    "eagle3": Trainable(
        "one layer that continues the target's features (EAGLE-3)", TargetWeights.taps, _eagle3,
        terms=frozenset({"align", "tree_reward"}),
    ),
    # Blocks of 8 are what vLLM's speculators train and DSpark's block7 files hold, blocks of 16 what Domino publishes.
    "dflash": Trainable("a block filled in one pass (DFlash)", TargetWeights.taps, _block("dflash"), steps=7),
    "dspark": Trainable(
        "a block and a correction by the token before (DSpark)", TargetWeights.taps, _block("dspark"), steps=7,
    ),
    "domino": Trainable(
        "a block and a recurrent correction (Domino)", TargetWeights.taps, _block("domino"), steps=15,
    ),
    "medusa": Trainable("heads side by side (Medusa)", TargetWeights.same_taps, _heads(reads_path=False), steps=4),
    "hydra": Trainable("heads that read the path (Hydra)", TargetWeights.same_taps, _heads(reads_path=True), steps=4),
    "independent": Trainable(
        "a few of the target's layers as a model of their own", TargetWeights.same_taps, _independent, _save_copy,
        layers=4, steps=5,
    ),
}
