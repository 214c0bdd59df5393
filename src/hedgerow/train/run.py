"""`hedgerow train METHOD` from nothing to a drafter: prompts, text with features, fitting, what its card says.

Everything lies in one run folder; whatever is there already is not made again, so an interrupted run goes on. The text
and its features are any method's; a method's own files lie in a folder of its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hedgerow.core.errors import UsageError
from hedgerow.train import writing
from hedgerow.train.data import Corpus, draft_vocabulary
from hedgerow.train.features import Shards
from hedgerow.train.job import Job, Told
from hedgerow.train.methods import Options, Trainable
from hedgerow.train.parts import Method
from hedgerow.train.start import TargetWeights
from hedgerow.train.trainer import Checked, Progress, Trainer, load_best

EXPECTED_AFTER = 8                         # updates, before the rate of training is believed
LEAST_TRAINING = 0.1                       # minutes of training, whatever the writing took


@dataclass(frozen=True)
class Trained:
    """What a run made: the method with its best weights, what its card says, and the folder of that checkpoint."""

    method: Method
    facts: dict[str, Any]
    best: Path
    target: TargetWeights


@dataclass
class Run:
    """A job under way, for a method of some name. `stop()` ends the current stage soon; what is done is kept."""

    job: Job
    name: str
    chosen: Trainable
    options: Options
    told: Told
    stopped: bool = False
    _cancel: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """End soon; safe in a signal handler."""
        self.stopped = True
        self._cancel()

    def __call__(self) -> Trained | None:
        """Run all stages; what was trained, or None when it was stopped before a first validation.

        Raises: UsageError for what is asked for and cannot be, or when another run is at work in the folder.
        """
        from hedgerow.models import weights

        job = self.job
        asked, alike = writing.given(job, self.told)
        target = TargetWeights.read(weights.resolve(job.model, self.told.line))
        taps = self._taps(target)
        self.told.line(f"training {self.name} ({self.chosen.about}) for {job.model} in {job.folder}")
        folder = job.folder / self.name
        folder.mkdir(parents=True, exist_ok=True)
        shards = Shards(job.folder / "features", taps)
        writer = writing.Writer(job, self.told, writing.Spent(job.folder / "spent.json"), self.stopped)
        self._cancel = writer.stop
        with alone(job.folder):
            writer(shards, asked)
        if self.stopped and not shards.files:
            return None
        with alone(folder):
            corpus = Corpus.open(shards.files, job.settings.held, job.settings.longest, shards.columns(taps))
            counts = corpus.counts(len(target.embedding))
            ids = self._ids(folder, draft_vocabulary(counts, min(job.draft_vocab, len(counts))))
            covered = float(counts[ids.numpy()].sum() / max(counts.sum(), 1))
            self.told.line(
                f"{corpus.rows} positions of {len(corpus.learn)} texts to learn from, {len(corpus.validate)} texts to "
                f"validate on; {len(ids)} tokens hold {covered:.2%} of them"
            )
            method, progress = self._fitted(target, ids, taps, corpus, folder, writer.spent)
            best = load_best(method, folder)
        if best is None:
            return None
        return Trained(method, self._facts(corpus, covered, alike, progress), best, target)

    def _taps(self, target: TargetWeights) -> tuple[int, ...]:
        """Those asked for, or the method's own. Raises UsageError for one the target does not have."""
        if self.job.taps and self.job.taps[-1] > target.layers:
            raise UsageError(
                f"--taps asks for hidden state {self.job.taps[-1]}; the target has 0 to {target.layers} (the input of "
                f"every layer, and {target.layers}: behind the final norm)"
            )
        return self.job.taps or self.chosen.taps(target)

    def _fitted(
        self, target: TargetWeights, ids: torch.Tensor, taps: tuple[int, ...], corpus: Corpus, folder: Path,
        spent: writing.Spent,
    ) -> tuple[Method, Progress]:
        """A method trained for what is left of the budget, and where it stands."""
        job = self.job
        left = None if job.minutes is None else max(job.minutes - spent.total / 60, LEAST_TRAINING)
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if job.device == "auto" else job.device)
        method = self.chosen.build(target, ids, taps, device, self.options)
        trainer = Trainer(
            method, corpus, replace(job.settings, minutes=left or job.settings.minutes), folder,
            lambda what, progress, checked: self._updated(trainer, corpus.rows, progress, checked),
        )
        self._cancel = lambda: setattr(trainer, "stopping", True)
        return method, trainer.progress if self.stopped else trainer.fit()

    def _updated(self, trainer: Trainer, rows: int, progress: Progress, checked: Checked | None) -> None:
        """Pass an update on; after the first few say what the budget will buy."""
        self.told.update(trainer.share, progress, checked)
        if progress.update == EXPECTED_AFTER and checked is None and trainer.settings.minutes is not None:
            rate = progress.rows / max(progress.seconds, 1e-9)
            left = 60 * trainer.settings.minutes - progress.seconds
            self.told.line(
                f"{rate:.0f} positions a second: about {rate * left / max(rows, 1):.1f} passes over the text in "
                f"{left / 60:.0f} min"
            )

    def _ids(self, folder: Path, counted: Any) -> torch.Tensor:
        """The drafter's vocabulary: chosen once, then kept. Raises UsageError where another size is asked for."""
        path = folder / "vocabulary.json"
        if not path.exists():
            path.write_text(json.dumps(counted.tolist()))
        ids = torch.tensor(json.loads(path.read_text()), dtype=torch.int64)
        if len(ids) != len(counted):
            raise UsageError(
                f"--draft-vocab asks for {len(counted)} tokens; the drafter in {folder} was begun with {len(ids)}: "
                "give that number, or another --run"
            )
        return ids

    def _facts(self, corpus: Corpus, covered: float, alike: int, progress: Progress) -> dict[str, Any]:
        """What the model card says."""
        from hedgerow import __version__

        job = self.job
        best = max(progress.history, key=lambda h: h["tree"], default={})
        return {
            "method": self.name, "model": job.model, "seed": job.seed, "options": asdict(self.options),
            "prompts": "a file" if job.prompts else "written by the target", "prompts_like_evaluation": alike,
            **writing.summary(job.folder / "text.jsonl"), "texts": len(corpus.learn), "learned_positions": corpus.rows,
            "covered_by_vocabulary": round(covered, 5), "trained_positions": progress.rows, "updates": progress.update,
            "epochs": progress.epoch, "training_seconds": round(progress.seconds, 1), "validation": best,
            "settings": asdict(job.settings), "minutes": job.minutes, "hedgerow": __version__,
        }


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder's lock. Raises UsageError when another process has it."""
    import fcntl

    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"another training is at work in {folder}: wait until it ends, or give another --run"
            ) from None
        yield
