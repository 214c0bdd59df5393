"""A recorded trace as a world: what the target said then, by request, position and the tokens drafted behind it.

The recorded continuation decides what is accepted, so any recipe can be played on any trace. Under a match rule the
text is the recorded one, whatever is drafted (same seed, same text), and the play is exact: a recipe whose drafters
need nothing but recorded features repeats the engine's steps one by one. Off the recorded text nothing is accepted.

Other rules judge by the recorded rows and may leave the recorded text. There nothing is known: the row recorded at the
same position stands in (`assume`), for target and stand-in drafters alike, and the next step stands on the recorded
text again. What they find is an estimate.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from hedgerow.core.errors import ModelError, UsageError
from hedgerow.core.parts import Drafter, Rule, Sampling
from hedgerow.core.recipe import Built, DraftSource, is_match
from hedgerow.core.record import StepRecord, read
from hedgerow.core.rng import Rng
from hedgerow.engine.request import Request
from hedgerow.simulate.clock import FREE
from hedgerow.simulate.job import Decided, Job
from hedgerow.simulate.replay import ReplayTarget
from hedgerow.simulate.standin import StandIn

ENDLESS = 1 << 40


class Known(NamedTuple):
    """A recorded row of the target: its best tokens, best first, their logits, and log Σ exp of all logits."""

    ids: Int[np.ndarray, " k"]
    logits: Float[np.ndarray, " k"]
    lse: float


@dataclass
class Recording:
    """One request of a trace: its text and every row the target was asked for.

    `text` is the prompt and everything the rule decided, also what a stop cut off; `end` counts the completion tokens
    that were kept. `on_path[i]` is the row after text[: i + 1]; `off_path[i, tokens]` the row after text[: i + 1] and
    drafted `tokens`, the first of which is not the text's. `plans[i]`, `grown[i]` and `sizes[i]` are the nodes of the
    plan, of the tree and of the cut tree in the step whose root stood at position i. `wave` tells apart requests that
    never ran together.
    """

    number: int
    wave: int
    prompt: tuple[int, ...]
    text: list[int]
    sampling: Sampling
    seed: int
    batch: int = 1
    end: int = 1
    reason: str = "length"
    max_tokens: int = ENDLESS
    prompt_top: Known | None = None
    on_path: dict[int, Known] = field(default_factory=dict)
    off_path: dict[tuple[int, tuple[int, ...]], Known] = field(default_factory=dict)
    plans: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    grown: dict[int, int] = field(default_factory=dict)

    def place(self, position: int, path: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Where `path`, drafted behind the root at `position`, leaves the text: (last shared position, the rest)."""
        shared = 0
        behind = self.text[position + 1 : position + 1 + len(path)]
        while shared < len(behind) and behind[shared] == path[shared]:
            shared += 1
        return position + shared, tuple(path[shared:])

    def row(self, position: int, path: Sequence[int]) -> Known | None:
        """The row after `path` behind the root at `position`, or None if it was never recorded."""
        at, rest = self.place(position, path)
        return self.off_path.get((at, rest)) if rest else self.on_path.get(at)

    def last_row_of(self, token: int, position: int) -> Known | None:
        """The row after the last time the text, up to `position`, had a token; None if there was none."""
        places = self._places.get(token, [])
        before = bisect_right(places, position)
        return self.on_path[places[before - 1]] if before else None

    @cached_property
    def _places(self) -> dict[int, list[int]]:
        out: dict[int, list[int]] = {}
        for i in sorted(self.on_path):
            out.setdefault(self.text[i], []).append(i)
        return out


@dataclass
class Recorded:
    """The world of a trace file: requests as they were recorded, or `batch` at a time.

    Retrieval drafters run as they are. Drafters that need a model are replaced by stand-ins that answer from the
    recorded rows, as well as `quality` says: 1 knows the target's law, 0.5 draws its favourite from it (`StandIn`).
    `reach` is the deepest draft of those that answer a step from one call. `assume` says whether the row recorded at
    the same position stands in where a row is unknown; None: only under rules that may leave the recorded text.

    Raises: UsageError for a quality outside (0, 1] or a trace without a step; ModelError for a file that is no trace.
    """

    recordings: Sequence[Recording]
    quality: float = 0.75
    reach: int = 15
    assume: bool | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.quality <= 1.0:
            raise UsageError(f"quality is {self.quality}; allowed: more than 0, at most 1")
        if not self.recordings:
            raise UsageError("the trace has no steps; record one with `hedgerow generate --trace FILE`")

    @classmethod
    def of(cls, path: Path, quality: float = 0.75, reach: int = 15, assume: bool | None = None) -> Recorded:
        """The world of a trace file."""
        return cls(recordings(read(path), str(path)), quality, reach, assume)

    @property
    def rests(self) -> int:
        """Recorded steps in which nothing was to be drafted."""
        return sum(not nodes for r in self.recordings for nodes in r.plans.values())

    @property
    def vocab(self) -> int:
        """Tokens 0 … vocab − 2 occur in the trace; the last one stands for all others."""
        known = [k for r in self.recordings for k in (*r.on_path.values(), *r.off_path.values(), r.prompt_top) if k]
        tops = max((int(k.ids.max(initial=0)) for k in known), default=0)
        drafted = max((t for r in self.recordings for _, rest in r.off_path for t in rest), default=0)
        return max(tops, drafted, max(max(r.text) for r in self.recordings)) + 2

    def rule(self, rule: Rule) -> Rule:
        """The recipe's own."""
        return rule

    def jobs(self, batch: int | None, seed: int, rule: Rule) -> list[list[Job]]:
        """Requests by wave, each wave's batch as recorded; with `batch`, all requests in one wave."""
        decided = _keeps_text(rule)
        waves: dict[int, list[Job]] = {}
        for r in self.recordings:
            rng = Rng(r.seed)
            request = Request(r.prompt, max_tokens=r.max_tokens, sampling=r.sampling, seed=r.seed)
            job = Job(request, Decided(rng, r.text) if decided else rng, recording=r)
            waves.setdefault(0 if batch else r.wave, []).append(job)
        return list(waves.values())

    def target(self, rule: Rule) -> ReplayTarget:
        """A fresh target."""
        return ReplayTarget(self.vocab, not _keeps_text(rule) if self.assume is None else self.assume)

    def drafter(self, source: DraftSource, built: Built, seed: int) -> Drafter:
        """The source's own drafter if it looks tokens up, else a stand-in.

        Raises: UsageError where a retrieval source has to be given something.
        """
        if source.kind not in FREE:
            assert isinstance(built.target, ReplayTarget)
            return StandIn(built.target, source.kind, self.quality, seed, self.reach)
        if source.make is None:
            raise UsageError(f"source {source.name!r} needs {source.needs or source.kind}; give it with `drafter`")
        return source.make(built)


def _keeps_text(rule: Rule) -> bool:
    """Whether a rule only ever emits what the target drew: the recorded text, whatever is drafted."""
    return is_match(rule) and rule.lossless


def recordings(records: Iterable[StepRecord], where: str = "the trace") -> list[Recording]:
    """The requests of a trace, in the order in which they first stepped.

    Raises: ModelError where a request's first record is missing or its steps do not follow each other.
    """
    out: list[Recording] = []
    current: dict[int, Recording] = {}          # the requests under way, by number
    for r in records:
        if r.prompt is not None:
            if r.request in current:            # numbers begin again: another run, appended to the same file
                current.clear()
            wave = out[-1].wave + (not current) if out else 0
            current[r.request] = _opened(r, wave, len(out))
            out.append(current[r.request])
        if r.request not in current:
            raise ModelError(f"{where} has a step of request {r.request} but not its first: record whole requests")
        _extend(current[r.request], r, where)
        if r.finished:
            del current[r.request]
    for recording in out:
        _settle(recording)
    return out


def _opened(r: StepRecord, wave: int, number: int) -> Recording:
    prompt = tuple(r.prompt or ())
    sampling = dict(r.sampling or {})
    law = {k: sampling[k] for k in ("temperature", "top_k", "top_p", "min_p") if k in sampling}
    top = None
    if r.prompt_top_ids is not None and r.prompt_top_logits is not None:
        top = Known(np.array(r.prompt_top_ids, np.int64), np.array(r.prompt_top_logits, np.float32), 0.0)
    return Recording(
        number, wave, prompt, [*prompt, r.root], Sampling(**law), int(sampling.get("seed", 0)), prompt_top=top,
        max_tokens=int(sampling.get("max_tokens", ENDLESS)),
    )


def _extend(recording: Recording, r: StepRecord, where: str) -> None:
    """Take a step in: its tokens, and its rows, all under `off_path` until the whole text is known."""
    if r.position != len(recording.prompt) + recording.end - 1 or recording.text[r.position] != r.root:
        raise ModelError(
            f"{where}: step {r.step} of request {r.request} starts at position {r.position} with token {r.root}, which "
            "does not follow the step before; record whole requests, one run a file or one after the other"
        )
    tokens, parent = r.tree["tokens"], r.tree["parent"]
    recording.plans[r.position] = r.plan_nodes
    recording.sizes[r.position] = len(r.tree["tokens"])
    recording.grown[r.position] = r.proposed
    recording.text[r.position + 1 :] = [*(tokens[i] for i in r.path), r.token]
    recording.end += r.committed
    recording.batch = max(recording.batch, r.batch)
    recording.reason = r.finished or "interrupted"
    paths: list[tuple[int, ...]] = [()]
    for token, p in zip(tokens, parent, strict=True):
        paths.append((*paths[p + 1], token))
    for path, ids, logits, lse in zip(paths, r.top_ids, r.top_logits, r.lse, strict=True):
        known = Known(np.array(ids, np.int64), np.array(logits, np.float32), lse)
        recording.off_path.setdefault((r.position, path), known)


def _settle(recording: Recording) -> None:
    """Sort the rows by where they leave the text, now that it is known; a request's length limit may be known too."""
    rows, recording.off_path = recording.off_path, {}
    for (position, path), known in rows.items():
        at, rest = recording.place(position, path)
        if rest:
            recording.off_path.setdefault((at, rest), known)
        else:
            recording.on_path.setdefault(at, known)
    if recording.reason == "length":
        recording.max_tokens = recording.end
