"""The first stage of a run: prompts and answers, within a job's tokens and its share of the minutes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hedgerow import api
from hedgerow.train import prompts, text
from hedgerow.train.features import Recorder, Shards
from hedgerow.train.job import Job, Told

WRITING = 0.4                              # share of a budget that goes into text
ASKING = 0.25                              # share of that which goes into prompts
ANSWERED = 200                             # tokens of an answer, about
SETTLED_S = 20.0                           # of writing, before its rate is believed
LEAST = {"prompts": text.LEAST, "answer tokens": 2000}    # written whatever the clock says


@dataclass
class Spent:
    """Seconds that the stages of writing took, over all sittings of a run. Mutates: its file."""

    file: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file.exists():
            self.seconds = json.loads(self.file.read_text())

    @property
    def total(self) -> float:
        """Of all stages together."""
        return sum(self.seconds.values())

    @contextmanager
    def on(self, stage: str) -> Iterator[None]:
        """Count the time of a block towards a stage."""
        start, before = time.perf_counter(), self.seconds.get(stage, 0.0)
        try:
            yield
        finally:
            self.seconds[stage] = before + time.perf_counter() - start
            self.file.write_text(json.dumps(self.seconds))


@dataclass
class Writer:
    """Writes what a run learns from. `stop()` ends it after the current step; what was written is kept."""

    job: Job
    told: Told
    spent: Spent
    stopped: bool = False
    _cancel: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """End soon; safe in a signal handler."""
        self.stopped = True
        self._cancel()

    def __call__(self, shards: Shards, asked: list[str] | None) -> None:
        """Write prompts (None: they are the target's own) and answers. Mutates: the folder, `shards`."""
        job = self.job
        path = job.folder / "text.jsonl"
        text.restored(path, shards)
        over = job.minutes is not None and self.spent.total >= 60 * WRITING * job.minutes
        wanted = min(job.tokens, LEAST["answer tokens"]) if over else job.tokens
        if self.stopped or text.answered(path) >= wanted:
            return
        with self.spent.on("loading"):
            session = api.load(
                job.model, recipe="plain", max_batch=job.batch, threads=job.threads, device=job.device,
                report=self.told.line,
            )
        if asked is None:
            asked = self._prompts(session)
        recorder = Recorder(shards.taps)
        writer = replace(session, drafters=[recorder])
        with self._stage("answers", writer, 1.0) as count:
            if asked and not self.stopped:
                text.write_answers(writer, recorder, asked, path, shards, job.tokens, job.seed, count)

    def _prompts(self, session: api.Session) -> list[str]:
        job, path = self.job, self.job.folder / "prompts.jsonl"
        wanted = max(text.LEAST, job.tokens // ANSWERED)
        with self._stage("prompts", session, ASKING) as count:
            if not self.stopped:
                text.write_prompts(session, path, wanted, job.seed, job.banned, count)
        return text.kept(path)

    @contextmanager
    def _stage(self, stage: str, session: api.Session, share: float) -> Iterator[text.Progress]:
        """One stage on one session, up to its share of the writing: yields who must hear how far it is."""
        job, told = self.job, self.told
        self._cancel = session.cancel
        begun = time.perf_counter()
        until: float | None = None
        if job.minutes is not None:
            until = begun + share * (60 * WRITING * job.minutes - self.spent.total)
        first: list[int] = []
        said: list[str] = []

        def count(what: str, so_far: int, of: int) -> None:
            told.count(what, so_far, of)
            now = time.perf_counter()
            if not first:
                first.append(so_far)
            if now - begun > SETTLED_S and not said:
                rate = (so_far - first[0]) / (now - begun)
                ends = min((of - so_far) / max(rate, 1e-9), (until or float("inf")) - now)
                said.append(f"{rate:.0f} {what} a second: about {so_far + rate * ends:.0f} in {ends / 60:.0f} min")
                told.line(said[0])
            if self.stopped or (until is not None and now > until and so_far >= min(of, LEAST[what])):
                session.cancel()

        with self.spent.on(stage):
            yield count
        self._cancel = lambda: None


def given(job: Job, told: Told) -> tuple[list[str] | None, int]:
    """The prompts of the user's file, None without one; and how many of them share 8 words with `banned`.

    Raises: UsageError for a file that cannot be read or has no prompts.
    """
    if job.prompts is None:
        return None, 0
    asked = prompts.read(job.prompts)
    grams = {g for banned in job.banned for g in prompts.runs(banned)}
    alike = sum(prompts.overlap(prompt, grams) for prompt in asked)
    if alike:
        told.line(
            f"{alike} of your {len(asked)} prompts share 8 words with MT-bench, HumanEval or GSM8K: figures on those "
            "will flatter the drafter"
        )
    return asked, alike


def summary(path: Path) -> dict[str, Any]:
    """What a model card says of the text: answers, their tokens, prompts."""
    written = text.rows(path)
    return {
        "answers": len(written), "answer_tokens": sum(len(r["ids"]) - r["answer"] for r in written),
        "prompts_answered": len({r["prompt"] for r in written}),
    }
