"""Drafters trained side by side on one text, the same CPU seconds each: which method earns its place on a target.

Budgets are CPU seconds of one thread, so that other work on the machine takes nothing from a variant; one that is done
is not trained again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hedgerow.core.errors import UnknownName, UsageError
from hedgerow.models import weights
from hedgerow.train.data import Corpus, draft_vocabulary
from hedgerow.train.features import Shards
from hedgerow.train.methods import METHODS, Options
from hedgerow.train.start import TargetWeights
from hedgerow.train.trainer import Checked, Progress, Settings, Trainer, load_best

AGAIN = 0.3                                # of the usual learning rates, where a trained drafter goes on
FOLDER = "trainings"
LONGEST = 448                              # rows of a text: as long as those that are written


@dataclass(frozen=True)
class Variant:
    """A method and what it is told."""

    method: str
    options: Options = field(default_factory=Options)


VARIANTS = {
    "eagle3": Variant("eagle3"),
    "hass": Variant("eagle3", Options(align=1.0)),
    "gto": Variant("eagle3", Options(tree_reward=1.0)),
    "dflash": Variant("dflash", Options(steps=7)),
    "independent": Variant("independent", Options(layers=4)),
    "medusa": Variant("medusa", Options(steps=4)),
    "hydra": Variant("hydra", Options(steps=4)),
}
"""`hass` and `gto`: EAGLE-3 with the extra loss of HASS (2408.15766) and of GTO (2509.22134)."""


@dataclass(frozen=True)
class Comparison:
    """What all variants learn from: the text and features of a training run's folder; where they may begin."""

    model: str
    run: Path
    minutes: float
    start: Path | None = None              # a run's method folder: its best weights and its vocabulary
    checks: int = 2                        # validations on the way
    vocabulary: int = 8192
    told: Callable[[str], None] = lambda line: None

    def __call__(self, names: list[str], done: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
        """Train each variant; `done` gets all figures so far after each. Mutates: the run's folder.

        Raises: UnknownName for a variant, UsageError for a start that is none.
        """
        for name in names:
            if name not in VARIANTS:
                raise UnknownName("variant", name, VARIANTS)
        target = TargetWeights.read(weights.resolve(self.model, self.told))
        settings, ids = self._settings(), self._ids(target)
        rows: list[dict[str, Any]] = []
        for name in names:
            rows.append(self._trained(name, target, settings, ids))
            done(rows)
        return rows

    def folder(self, name: str) -> Path:
        """Where a variant's checkpoints and its drafter lie."""
        return self.run / FOLDER / (f"{self.minutes:g}" + ("-from" if self.start else "")) / name

    def _settings(self) -> Settings:
        usual = Settings(
            minutes=self.minutes, check_s=60.0 * self.minutes / (self.checks + 1), patience=1 << 30, longest=LONGEST
        )
        if self.start is None:
            return usual
        return replace(
            usual, rate=AGAIN * usual.rate, matrix_rate=AGAIN * usual.matrix_rate, warmup=20, head_from=0.0
        )

    def _ids(self, target: TargetWeights) -> torch.Tensor:
        words = None if self.start is None else self.start / "vocabulary.json"
        if words is not None and words.exists():
            return torch.tensor(json.loads(words.read_text()))
        shards, usual = Shards(self.run / "features", target.same_taps()), Settings()
        counts = Corpus.open(shards.files, usual.held, usual.longest).counts(len(target.embedding))
        return torch.from_numpy(draft_vocabulary(counts, min(self.vocabulary, len(counts))))

    def _trained(
        self, name: str, target: TargetWeights, settings: Settings, ids: torch.Tensor
    ) -> dict[str, Any]:
        """Train a variant to its budget or go on with it; its figures."""
        variant, folder = VARIANTS[name], self.folder(name)
        chosen = METHODS[variant.method]
        taps = chosen.taps(target)
        shards = Shards(self.run / "features", taps)
        corpus = Corpus.open(shards.files, settings.held, settings.longest, shards.columns(taps))
        method = chosen.build(target, ids, taps, torch.device("cpu"), variant.options)
        if self.start is not None:
            try:
                method.module.load_state_dict(load_file(self.start / "best" / "model.safetensors"))
            except (RuntimeError, OSError) as error:
                raise UsageError(
                    f"{self.start} holds no drafter that {name!r} could go on from ({str(error).splitlines()[0]}); "
                    "give the folder of a method in a training run, as RUN/eagle3"
                ) from None

        def told(what: str, progress: Progress, checked: Checked | None) -> None:
            if checked is not None:
                self.told(
                    f"{name}: {progress.seconds:.0f} s, {progress.rows} positions, τ of a tree {checked.tree:.3f}, of "
                    f"a chain {checked.chain:.3f}"
                )

        trainer = Trainer(method, corpus, settings, folder, told, clock=time.process_time)
        if self.start is not None and not trainer.progress.history:
            trainer.check()                # where it begins
        if trainer.share < 1.0:
            trainer.fit()
        load_best(method, folder)
        if not (folder / "drafter").exists():
            chosen.save(method, folder / "drafter", {"method": variant.method}, target.facts(self.model))
        progress = trainer.progress
        return {
            "variant": name, "cpu_seconds": progress.seconds, "updates": progress.update, "positions": progress.rows,
            "positions_s": progress.rows / max(progress.seconds, 1e-9), "history": progress.history,
            "trained_parameters": sum(p.numel() for p in method.module.parameters()),
        }
