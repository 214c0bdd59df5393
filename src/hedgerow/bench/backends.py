"""Whole verification steps by every backend at hand: the same model, trees, contexts and threads, interleaved.

    python -m hedgerow.bench.backends --out docs/figures/backends.json

A step is a binary tree behind a committed context, from token ids to the best token of every row. Backends other than
our own engine run `bench.stepgraph`, which leaves the keys and values of the rows to the caller to store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from hedgerow.bench.run import provenance
from hedgerow.bench.stepengines import ENGINES, Engine, Job, Missing, Run, rows_equal
from hedgerow.bench.stepgraph import Dims, Step, StepGraph, make_step, read_weights
from hedgerow.bench.workloads import load
from hedgerow.core.errors import UnknownName


def interleaved(runs: dict[str, Run], repetitions: int) -> dict[str, dict[str, float]]:
    """Median, least and largest seconds of each call: every turn runs all of them, in an order that turns round.

    A call is timed the second of two times in a row, so that no backend pays for what another left in the caches and
    for its threads having slept.
    """
    names = list(runs)
    spent: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repetitions + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            runs[name]()
            start = time.perf_counter()
            runs[name]()
            if turn:                      # the first turn warms up
                spent[name].append(time.perf_counter() - start)
    return {k: {"median_s": median(v), "min_s": min(v), "max_s": max(v)} for k, v in spent.items()}


def quality(engine: Engine, step: Step, exact: torch.Tensor, fewer: Sequence[int]) -> dict[str, Any]:
    """How far its logits are from float32's, and whether its rows depend on how many there are."""
    logits = engine.ready(step)().float()
    error = (logits - exact).norm() / exact.norm()
    return {
        "relative_error": float(error), "same_best": float((logits.argmax(1) == exact.argmax(1)).float().mean()),
        "rows_equal": rows_equal(engine.ready, step, fewer),
    }


def main(
    out: Annotated[Path, typer.Option(help="Where the result goes (JSON).")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes; a plain Llama.")] = "demo",
    rows: Annotated[str, typer.Option(help="Row counts.")] = "4,8,16,32",
    contexts: Annotated[str, typer.Option(help="Committed tokens.")] = "128,1024",
    backends: Annotated[str, typer.Option(help="Backends, or all.")] = "all",
    repetitions: Annotated[int, typer.Option(help="Timed runs of each.")] = 15,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
) -> None:
    """Time them and write the table."""
    console = Console(stderr=True)
    torch.set_num_threads(threads)
    names = list(ENGINES) if backends == "all" else backends.split(",")
    for name in names:
        if name not in ENGINES:
            raise UnknownName("backend", name, ENGINES)
    counts, lengths = ([int(x) for x in text.split(",")] for text in (rows, contexts))
    job = _job(model, max(counts) + max(lengths), threads)
    exact = StepGraph(job.dims, job.weights, torch.float32).eval()
    engines: dict[str, Engine] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            engines[name] = ENGINES[name](job)
        except Missing as e:
            missing[name] = str(e)
        console.print(f"{name}: {missing.get(name, 'loaded')}")
    cells = []
    for context in lengths:
        whole = make_step(exact, job.tokens, max(counts), context)
        for n in counts:                  # the first rows of a binary tree are a binary tree
            timed = interleaved({k: e.ready(whole.first(n)) for k, e in engines.items()}, repetitions)
            cells += [{"backend": k, "rows": n, "context": context, **t} for k, t in timed.items()]
            console.print(f"context {context}, {n} rows: " + ", ".join(
                f"{k} {1e3 * t['median_s']:.1f} ms" for k, t in timed.items()
            ))
    step = make_step(exact, job.tokens, max(counts), min(lengths))
    with torch.no_grad():
        want = exact(*step.flat)[0]
    found = {k: quality(e, step, want, sorted(counts)[:-1]) for k, e in engines.items()}
    result = {
        "table": "backends", "provenance": provenance("backends"), "threads": threads, "repetitions": repetitions,
        "cells": cells, "quality": found, "prepare_s": {k: e.prepare_s for k, e in engines.items()}, "missing": missing,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    console.print(table(cells, counts, lengths))
    print(json.dumps({"cells": len(cells), "missing": missing}))


def _job(model: str, tokens: int, threads: int) -> Job:
    """The model's files, and a text long enough: the first turns of the workload."""
    from hedgerow.models import weights
    from hedgerow.models.convert import read_tokenizer
    from hedgerow.models.tokenizer import HFTokenizer

    path = weights.resolve(model)
    tokenizer = HFTokenizer(*read_tokenizer(path), weights.name_of(model))
    ids: list[int] = []
    for prompt in load("mt_bench"):
        if len(ids) >= tokens:
            break
        ids += tokenizer.chat(prompt.messages)
    return Job(path, Dims.of(path), read_weights(path), torch.tensor(ids[:tokens]), threads)


def table(cells: Sequence[dict[str, Any]], counts: Sequence[int], lengths: Sequence[int]) -> Table:
    """Median milliseconds for people."""
    at = {(c["backend"], c["rows"], c["context"]): c["median_s"] for c in cells}
    shown = Table("ms a step", *(f"{n} rows, {c}" for c in lengths for n in counts), box=None)
    for name in dict.fromkeys(c["backend"] for c in cells):
        shown.add_row(name, *(f"{1e3 * at[name, n, c]:.1f}" for c in lengths for n in counts))
    return shown


if __name__ == "__main__":
    typer.run(main)
