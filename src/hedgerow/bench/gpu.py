"""Every check that needs a GPU, in one run of at most eight minutes.

    python -m hedgerow.bench.gpu --out docs/figures/gpu.json

* steps of an 8B dense and a mixture-of-experts shape with random bf16 weights: T(rows × batch × context), eager and as
  CUDA graphs, and how far the two are apart;
* the host's time of a recorded step;
* plain against tree text of a real model in bf16: the same tokens, or apart where the model itself is nearly tied.

Results are written as they come. A watchdog ends a run that hangs; what was measured until then stays.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from hedgerow.bench import gpusteps
from hedgerow.bench.run import prompts, provenance
from hedgerow.core.errors import HedgerowError, UsageError
from hedgerow.systems.recorders import CudaRecorder, Recorder, TapeRecorder

BUDGET_S = 480.0
GRACE_S = 20.0                            # the watchdog leaves a part so long to end by itself
SHARES = {"host": 0.1, "dense": 0.45, "identity": 0.65, "experts": 1.0}  # of the budget, at a part's end
GRID: dict[str, Any] = {
    "rows": (1, 4, 8, 16, 32, 64), "batches": (1, 4, 16), "contexts": (160, 1900, 8000), "repetitions": 9,
}
TINY: dict[str, Any] = {"rows": (1, 5), "batches": (1, 2), "contexts": (60,), "repetitions": 1}
FAMILIES = "repeat:5,mt_bench:8,gsm8k:7"
IDENTICAL = 0.95
HOST_S = 0.0005


class Report:
    """The result so far; every change is on disk at once, whole."""

    def __init__(self, out: Path, head: dict[str, Any], budget_s: float) -> None:
        self.out, self.result = out, head
        self.start, self.budget_s = time.monotonic(), budget_s
        self._lock = threading.Lock()
        out.parent.mkdir(parents=True, exist_ok=True)
        self.put("complete", False)

    @property
    def spent_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.start

    def over(self, share: float) -> Callable[[], bool]:
        """Whether this share of the budget is spent."""
        return lambda: self.spent_s > share * self.budget_s

    def put(self, name: str, value: Any) -> None:
        """Set a part of the result and write it."""
        with self._lock:
            self.result[name] = value
            self.result["spent_s"] = self.spent_s
            fresh = self.out.with_suffix(".partial")
            fresh.write_text(json.dumps(self.result, indent=1) + "\n")
            fresh.replace(self.out)


def watchdog(report: Report, leave: Callable[[int], None] = os._exit) -> threading.Timer:
    """Ends the process, whatever it is doing, once the budget is spent; cancel it when all is done."""

    def bark() -> None:
        report.put("stopped", f"the budget of {report.budget_s:.0f} s was spent")
        print(f"stopped after {report.spent_s:.0f} s; {report.out} has what was measured", file=sys.stderr, flush=True)
        leave(1)

    timer = threading.Timer(max(report.budget_s - GRACE_S, 0.0), bark)
    timer.daemon = True
    timer.start()
    return timer


def steps(
    report: Report, name: str, device: torch.device, recorder: Callable[[], Recorder], grid: dict[str, Any],
    stop: Callable[[], bool],
) -> None:
    """The steps of one shape, cut to the layers that fit."""
    from hedgerow.models.made import random_net, shape

    made = shape(name)
    free = gpusteps.memory(device)
    layers = made.layers if free is None else made.fitting(0.7 * free)
    part: dict[str, Any] = {"layers": layers, "of_layers": made.layers, "cells": []}
    key = f"steps {name}"
    report.put(key, part)
    if not layers:
        part["left_out"] = "not one layer fits in the memory of the device"
        return report.put(key, part)
    part["weights_bytes"] = made.nbytes(layers)
    net = random_net(made, layers, device)
    todo = gpusteps.sizes(grid["rows"], grid["batches"], grid["contexts"], 512)

    def done(cell: dict[str, Any]) -> None:
        part["cells"].append(cell)
        report.put(key, part)
        if "left_out" not in cell:
            print(
                f"{name} ×{layers}: {cell['rows']} rows × {cell['batch']} at {cell['context']} ({cell['kv']}): "
                f"eager {1e3 * cell['eager']['step_s']:.2f} ms, recorded {1e3 * cell['recorded']['step_s']:.2f} ms, "
                f"host {1e3 * cell['recorded']['host_s']:.2f} ms, apart {cell['apart']:.3f}", flush=True,
            )

    gpusteps.measure(net, todo, recorder, grid["repetitions"], stop, done)
    part["sizes_left"] = len(todo) - len(part["cells"])
    return report.put(key, part)


def identity(
    report: Report, model: str, device: torch.device, families: str, max_tokens: int, stop: Callable[[], bool]
) -> None:
    """Plain and tree text of one loaded model, prompt by prompt, and what the target says where they part."""
    from hedgerow import api
    from hedgerow.bench.compare import divergence

    part: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "prompts": 0, "apart": []}
    try:
        session = api.load(model, device=str(device), max_batch=1, report=lambda line: print(line, flush=True))
    except HedgerowError as e:
        part["left_out"] = str(e)
        return report.put("identity", part)
    part["backend"] = session.target.info.backend
    plain = session.with_recipe("plain")
    part["tokens"] = part["steps"] = 0
    for prompt in prompts(families):
        if stop():
            break
        mine, base = (s.generate(prompt.messages, max_tokens=max_tokens) for s in (session, plain))
        part["tokens"] += mine.completion_tokens - 1
        part["steps"] += mine.steps
        part["prompts"] += 1
        if mine.token_ids != base.token_ids:
            asked = session.request(prompt.messages, max_tokens=max_tokens)
            part["apart"].append(divergence(session.target, asked, mine.token_ids, base.token_ids))
        report.put("identity", part)
    return report.put("identity", part)


def verdicts(result: dict[str, Any]) -> dict[str, bool]:
    """What must hold, and whether it does; a part that was left out is not judged."""
    cells = [c for k, v in result.items() if k.startswith("steps ") for c in v["cells"] if "left_out" not in c]
    out = {f"{k.removeprefix('failed ')} ran to its end": False for k in result if k.startswith("failed ")}
    if cells:
        out["recorded steps agree with eager ones"] = all(c["apart"] <= 0.25 for c in cells)
        out["every size was recorded"] = not any(c["why_not"] for c in cells)
        if result["device"] != "cpu":
            host_s = max(c["recorded"]["host_s"] for c in cells if c["batch"] <= 4)
            out[f"host time of a recorded step, batch 1 and 4, is at most {1e3 * HOST_S} ms"] = host_s <= HOST_S
    same = result.get("identity", {})
    if same.get("prompts"):
        out["texts are the same, or apart at near-ties"] = all(d is None or d["near_tie"] for d in same["apart"])
        share = 1 - len(same["apart"]) / same["prompts"]
        out[f"{IDENTICAL:.0%} of texts are the same"] = share >= IDENTICAL
    return out


def main(
    out: Annotated[Path, typer.Option(help="Where the results go (JSON), as they come.")],
    device: Annotated[str, typer.Option(help="`cuda`, `cuda:N`; `cpu` with --tiny to try the script itself.")] = "cuda",
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny shapes and few sizes.")] = False,
    model: Annotated[str, typer.Option(help="The model whose texts are compared.")] = "demo",
    budget: Annotated[float, typer.Option(help="Seconds, at most.")] = BUDGET_S,
) -> None:
    """Run every check and write the results; exits with 1 if one of them fails."""
    try:
        ok = run(out, device, tiny, model, budget)
    except HedgerowError as e:
        print(f"error: {e}", file=sys.stderr)
        raise typer.Exit(e.exit_code) from None
    raise typer.Exit(0 if ok else 1)


def run(out: Path, device: str, tiny: bool, model: str, budget_s: float) -> bool:
    """As `main`; returns whether all that was judged holds. Raises: UsageError without a device for it."""
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        why = "this torch is a CPU build" if torch.version.cuda is None else "torch finds no device"
        raise UsageError(
            f"no CUDA device can be used ({why}); run this where there is one, or try it with --device cpu --tiny"
        )
    if where.type == "cpu" and not tiny:
        raise UsageError("device is 'cpu', where 8B shapes take hours; add --tiny")
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu"
    report = Report(out, {"table": "gpu", "provenance": provenance("gpu"), "device": name, "tiny": tiny}, budget_s)
    guard = watchdog(report)
    grid = TINY if tiny else GRID
    parts = _parts(report, where, tiny, model, grid)
    try:
        for part, share in SHARES.items():
            gpusteps.release(where)
            try:
                parts[part](report.over(share - GRACE_S / budget_s))
            except (RuntimeError, HedgerowError) as e:  # one part's failure, memory above all, is not the others'
                report.put(f"failed {part}", str(e).splitlines()[0])
        found = verdicts(report.result)
        report.put("verdicts", found)
        report.put("complete", True)
    finally:
        guard.cancel()
    for what, holds in found.items():
        print(f"{'ok    ' if holds else 'FAILED'} {what}")
    return all(found.values())


def _parts(
    report: Report, device: torch.device, tiny: bool, model: str, grid: dict[str, Any]
) -> dict[str, Callable[[Callable[[], bool]], None]]:
    """What is run, by its name in `SHARES`; each is told when to stop."""

    def recorder() -> Recorder:
        return CudaRecorder(device) if device.type == "cuda" else TapeRecorder()

    batches, rows, turns = ((1, 2), (1, 5), 5) if tiny else ((1, 4, 16, 32), (1, 8, 16, 64), 30)
    families, tokens = ("mt_bench:1", 16) if tiny else (FAMILIES, 128)
    dense, experts = ("tiny", "tiny-moe") if tiny else ("llama-8b", "qwen3-30b-a3b")

    def host(stop: Callable[[], bool]) -> None:
        report.put("host", gpusteps.host(device, batches, rows, turns))
        report.put("read_bytes_s", gpusteps.reading(device, 2**20 if tiny else 2**32))

    return {
        "host": host,
        "dense": lambda stop: steps(report, dense, device, recorder, grid, stop),
        "identity": lambda stop: identity(report, model, device, families, tokens, stop),
        "experts": lambda stop: steps(report, experts, device, recorder, grid, stop),
    }


if __name__ == "__main__":
    typer.run(main)
