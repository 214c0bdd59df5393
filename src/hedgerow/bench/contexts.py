"""Contexts to measure rules and policies on: places in texts the target wrote itself; and the journal of a measurement.

Half of the texts are greedy, half are sampled at temperature 1; prompts alternate between families. A context is a
prompt and the first tokens of its answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hedgerow.bench.workloads import load
from hedgerow.control.controller import Fixed
from hedgerow.core.parts import Sampling, Target, Tokenizer
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request
from hedgerow.engine.scheduler import Scheduler
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.verify.match import Match

FAMILIES = ("mt_bench", "gsm8k", "humaneval")
CUTS = (12, 24, 36, 48)                   # completion tokens before the root's successor
LONGEST = 300                             # prompt tokens


@dataclass(frozen=True)
class Context:
    """A prompt, the first tokens of an answer to it, and how that was sampled."""

    prompt: str
    temperature: float
    text: tuple[int, ...]
    prompt_tokens: int


def contexts(target: Target, tokenizer: Tokenizer, count: int, seed: int = 0) -> list[Context]:
    """`count` contexts; the target writes the answers, which is what this costs."""
    wanted: list[tuple[str, tuple[int, ...], float, int]] = []
    pools = []
    for family in FAMILIES:
        prompts = ((f"{p.family} {p.id}", tuple(tokenizer.chat(p.messages))) for p in load(family))
        pools.append(p for p in prompts if len(p[1]) <= LONGEST)
    for i in range(count):
        name, ids = next(pools[i % len(pools)])
        turn = i // len(pools)
        wanted.append((name, ids, float(turn % 2), CUTS[turn // 2 % len(CUTS)]))
    loop = Loop(target, [], BestFirst(), Match(), Fixed(0))
    done = Scheduler(loop, max_batch=target.capacity().slots).run([
        Request(ids, max_tokens=cut, sampling=Sampling(temperature), seed=seed + i)
        for i, (_, ids, temperature, cut) in enumerate(wanted)
    ])
    out = []
    for (name, ids, temperature, _), run in zip(wanted, done, strict=True):
        answer = run.finish.ids
        while len(answer) > 1 and answer[-1] in target.info.eos:
            answer = answer[:-1]
        out.append(Context(name, temperature, (*ids, *answer), len(ids)))
    return out


class Journal:
    """Results as they come, one JSON line each: an interrupted run of the same setup goes on where it stopped."""

    def __init__(self, path: Path, setup: dict[str, Any]) -> None:
        self.path, self.setup = path, setup
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            if lines and lines[0] == setup:
                self.rows = lines[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(x) + "\n" for x in (setup, *self.rows)), encoding="utf-8")

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Keep rows, in the file too."""
        self.rows += rows
        with self.path.open("a", encoding="utf-8") as log:
            log.writelines(json.dumps(row) + "\n" for row in rows)

    def done(self, **key: Any) -> bool:
        """Whether a row with these values is there."""
        return any(all(row.get(k) == v for k, v in key.items()) for row in self.rows)


def interval(values: Sequence[float], seed: int = 0, rounds: int = 1000) -> tuple[float, float]:
    """Bootstrap 95 % interval of the mean over contexts.

    >>> interval([1.0, 1.0])
    (1.0, 1.0)
    """
    x = np.asarray(values, np.float64)
    draw = np.random.default_rng(seed).integers(0, len(x), (rounds, len(x)))
    low, high = np.percentile(x[draw].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def summarised(values: Sequence[float]) -> dict[str, float]:
    """Mean, interval, and how many."""
    low, high = interval(values)
    return {"mean": float(np.mean(values)), "low": low, "high": high, "contexts": len(values)}


def bar(console: Console) -> Progress:
    """A progress bar on stderr."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )


def described(all_: Sequence[Context], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The contexts that were measured, for the record, without their texts."""
    used = {row["context"] for row in rows}
    return [
        {k: v for k, v in asdict(c).items() if k != "text"} | {"tokens": len(c.text)}
        for i, c in enumerate(all_) if i in used
    ]


def write(out: Path, table: str, setup: dict[str, Any], body: dict[str, Any]) -> None:
    """The result with where it came from; `table` is the benchmark's module."""
    from hedgerow.bench.run import provenance

    out.parent.mkdir(parents=True, exist_ok=True)
    result = {"table": table, "setup": setup, "provenance": provenance(table), **body}
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
