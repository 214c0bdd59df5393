"""A generation against plain decoding on the very same loaded target: how much faster, and is it the same text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from hedgerow.api import Prompt, Result, Session
from hedgerow.core.parts import Ask, Children, Feats, Needs, Row, RowGroup, Step, Target
from hedgerow.core.rng import Purpose, Rng
from hedgerow.core.tree import Selection
from hedgerow.engine.processors import Processors
from hedgerow.engine.request import Request

WARM_UP_TOKENS = 8
MANTISSA = {"bf16": 7, "bfloat16": 7, "fp16": 10, "float16": 10, "fp32": 23, "float32": 23, "float64": 52}


class Watcher:
    """A drafter that is never asked: it sees every finished step and keeps the one that accepted most.

    Append it to a session's drafters; no recipe names its source, so it changes nothing.
    """

    needs = Needs()
    selections: frozenset[Selection] = frozenset()

    def __init__(self) -> None:
        self.best: Step | None = None
        self.steps = 0

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Nothing to start."""

    def children(self, asks: Sequence[Ask]) -> Children:
        """Never asked. Raises AssertionError."""
        raise AssertionError("the watcher of steps was asked for children")

    def row(self, slot: int, origin: int) -> Row:
        """Never asked. Raises AssertionError."""
        raise AssertionError("the watcher of steps was asked for a row")

    def commit(self, slot: int, step: Step) -> None:
        """Keep the step if it accepted more than the best one; of two, the wider tree."""
        self.steps += 1
        if self.best is None or _merit(step) > _merit(self.best):
            self.best = step

    def fork(self, src: int, dst: int, length: int) -> None:
        """Nothing to copy."""

    def release(self, slot: int) -> None:
        """Nothing to forget."""


def _merit(step: Step) -> tuple[int, int]:
    return len(step.verdict.path), step.tree.width


def watch(session: Session) -> tuple[Session, Watcher]:
    """The session with a watcher of its steps."""
    watcher = Watcher()
    return replace(session, drafters=[*session.drafters, watcher]), watcher


def compare(
    session: Session, prompt: Prompt, *, raw: bool = False, repetitions: int = 3,
    progress: Callable[[int, int], None] = lambda done, of: None, **options: Any,
) -> tuple[Result, Step | None]:
    """Time the session's recipe against recipe `plain`: interleaved pairs, the order swapped in every second one.

    Every run starts with empty drafters, so that no repetition profits from the one before. `speedup` is the median of
    the pairs' tok_s ratios; the run returned, and the plain one beside it, are those of median tok_s. Before them the
    machine is warmed up, untimed; that run's step which accepted most is returned too. `progress` is told how many runs
    of how many are done.
    """
    other, total = session.with_recipe("plain"), 2 * repetitions + 1
    few = min(WARM_UP_TOKENS, options.get("max_tokens", WARM_UP_TOKENS))
    other.generate(prompt, raw=raw, **{**options, "max_tokens": few, "min_tokens": 0})
    watched, watcher = watch(session.fresh())
    first = watched.generate(prompt, raw=raw, **options)
    progress(1, total)
    mine: list[Result] = []
    plain: list[Result] = []
    for turn in range(repetitions):
        pair = [(session, mine), (other, plain)]
        for which, results in reversed(pair) if turn % 2 else pair:
            results.append(which.fresh().generate(prompt, raw=raw, **options))
            progress(1 + len(mine) + len(plain), total)
    a, b = _middle(mine), _middle(plain)
    ratios = [x.tok_s / y.tok_s for x, y in zip(mine, plain, strict=True) if x.tok_s and y.tok_s]
    strays = [x.token_ids for x in (first, *mine) if x.token_ids != b.token_ids]
    request = session.request(prompt, raw=raw, **options)
    apart = divergence(session.target, request, strays[0], b.token_ids) if strays else None
    result = replace(
        a, plain={"tok_s": b.tok_s, "token_ids": b.token_ids}, speedup=median(ratios) if ratios else None,
        identical=not strays, divergence=apart,
    )
    return result, watcher.best


def _middle(results: Sequence[Result]) -> Result:
    return sorted(results, key=lambda r: r.tok_s or 0.0)[len(results) // 2]


def divergence(target: Target, request: Request, ids: Sequence[int], plain: Sequence[int]) -> dict[str, Any] | None:
    """Where two completions part, and whether the target itself could hardly tell there.

    `position` counts completion tokens from 0. `gap` is the distance of the target's best two tokens at that position
    in logits — at temperature 0 of the logits themselves, else of the race that draws the token, times the temperature.
    `near_tie`: gap ≤ 2 units in the last place of the top logit in the target's dtype. `gap` is None where only one
    token was possible. None if one completion continues the other.
    """
    position = next((i for i, (a, b) in enumerate(zip(ids, plain, strict=False)) if a != b), None)
    if position is None:
        return None
    tokens = [*request.prompt, *plain[:position]]
    slot = target.acquire()
    try:
        unread = np.empty((len(tokens), 0), np.bool_)
        group = RowGroup("prefill", slot, np.array(tokens), np.arange(len(tokens)), unread)
        rows, _ = target.collect(target.submit([group], Needs()))
        logits = np.asarray(rows.logits(0, len(tokens) - 1), np.float64)
    finally:
        target.release(slot)
    stop_ids = request.stop_ids | (frozenset() if request.ignore_eos else target.info.eos)
    process = Processors(request.sampling, request.min_tokens, stop_ids)
    score = np.asarray(process.logits(logits, position), np.float64)
    if request.sampling.temperature > 0.0:
        law, at = process(logits, position), len(tokens)
        alive = np.flatnonzero(law > 0)
        noise = Rng(request.seed, request.choice).noise(alive, at, Purpose.TARGET)
        score = request.sampling.temperature * (np.log(law[alive]) - np.log(noise))
    best = np.sort(score[np.isfinite(score)])[-2:]
    gap = float(best[-1] - best[0]) if len(best) > 1 else None
    tie = gap is not None and gap <= 2 * ulp(float(logits.max()), target.info.dtype)
    return {"position": position, "gap": gap, "near_tie": tie}


def ulp(value: float, dtype: str) -> float:
    """One unit in the last place of a value in a floating-point format; of float32 where the format is not known.

    >>> 2 * ulp(18.3, "bf16")
    0.25
    """
    return math.ldexp(1.0, math.frexp(value)[1] - 1 - MANTISSA.get(dtype, 23))
