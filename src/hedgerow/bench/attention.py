"""Attention of a step: a whole mask or a short one, shared beginnings read once or by each request.

    python -m hedgerow.bench.attention --out docs/figures/attention.json

On torch's operators keys and values are random, of the demo model's sizes; a step makes its masks and attends in every
layer. In compiled layers whole steps of a model are timed, and the part of them that is attention. All variants run in
turns on the same keys, and their outputs are compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer

from hedgerow.bench.attention_table import attention_table
from hedgerow.bench.run import provenance
from hedgerow.core.parts import Needs, RowGroup
from hedgerow.core.tree import TokenTree
from hedgerow.systems.attention import MIN_ROWS, NEVER, WHOLE, Parts, Span, StepAttention, Workspace
from hedgerow.systems.kv_paged import PagedKV
from hedgerow.target.lm import load_target

LAYERS, KV_HEADS, FOLD, DIM = 30, 3, 3, 64
VARIANTS = {"whole mask": WHOLE, "short mask": Parts(1, NEVER), "read once": Parts(1, 1)}


def filled(kv: PagedKV, slot: int, tokens: int, source: torch.Generator) -> None:
    """Commit so many tokens of random keys and values."""
    while tokens:
        n = min(tokens, kv.max_rows)
        at = kv.length(slot)
        kv.stage(slot, n)
        for layer in range(kv.layers):
            kv.write(layer, slot, at, *torch.randn(2, KV_HEADS, n, DIM, generator=source).bfloat16())
        kv.commit(slot, range(n))
        tokens -= n


def step(
    kv: PagedKV, spans: Sequence[Span], q: torch.Tensor, parts: Parts, workspace: Workspace
) -> tuple[float, torch.Tensor]:
    """Seconds of the attention of a whole step, and what its last layer returns."""
    start = time.perf_counter()
    attention = StepAttention(kv, spans, q.shape[1], KV_HEADS * FOLD, workspace, ordered=True, parts=parts)
    for layer in range(kv.layers):
        out = attention.attend(layer, q, DIM**-0.5)
    return time.perf_counter() - start, out


@torch.inference_mode()
def case(context: int, requests: int, rows: int, tail: int, repetitions: int) -> dict[str, Any]:
    """Steps of `requests` trees of `rows` rows behind `context` tokens they share and `tail` of their own."""
    source, rng = torch.Generator().manual_seed(0), np.random.default_rng(rows)
    kv = PagedKV(LAYERS, KV_HEADS, DIM, requests + 1, context + tail + 256, 256, torch.bfloat16)
    base = kv.acquire()
    filled(kv, base, context, source)
    spans = list[Span]()
    for i in range(requests):
        slot = kv.acquire()
        kv.fork(base, slot, context)
        filled(kv, slot, tail, source)
        kv.stage(slot, rows)
        tree = TokenTree.of([0] * (rows - 1), [int(rng.integers(-1, j)) for j in range(rows - 1)])
        spans.append(Span(slot, i * rows, rows, context + tail, tree.mask, tree.positions(context + tail)))
    q = torch.randn(KV_HEADS * FOLD, max(requests * rows, MIN_ROWS), DIM, generator=source).bfloat16()
    run = partial(step, kv, spans, q, workspace=Workspace())
    spent: dict[str, list[float]] = {name: [] for name in VARIANTS if requests > 1 or name != "read once"}
    same = True
    for turn in range(repetitions + 1):
        outs = []
        for name, found in spent.items():
            seconds, out = run(parts=VARIANTS[name])
            outs.append(out)
            found += [seconds] if turn else []      # the first turn warms up
        same &= all(torch.equal(outs[0], out) for out in outs[1:])
    return {
        "context": context, "requests": requests, "rows": rows, "tail": tail, "same_bits": same,
        "seconds": {n: _spread(s) for n, s in spent.items()},
        "ratio": {n: _ratio(spent[n], spent["whole mask"]) for n in spent if n != "whole mask"},
    }


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    return _spread([a / b for a, b in zip(ours, theirs, strict=True)])


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "least": min(values), "most": max(values)}


@torch.inference_mode()
def compiled(target: Any, shared: int, requests: int, rows: int, tail: int, repetitions: int) -> dict[str, Any]:
    """Whole steps of compiled layers, common keys read by each request and once, in turns."""
    net, rng = target.runner.net, np.random.default_rng(rows)
    usual, never = net.shared, 1 << 40
    common, slots = target.acquire(), [target.acquire() for _ in range(requests)]
    _prefill(target, common, rng, 0, shared)
    groups = []
    for slot in slots:
        target.fork(common, slot, shared)
        _prefill(target, slot, rng, shared, tail)
        tree = TokenTree.of([7] * (rows - 1), [int(rng.integers(-1, j)) for j in range(rows - 1)])
        tokens = np.concatenate([[7], tree.tokens])
        groups.append(RowGroup("tree", slot, tokens, tree.positions(shared + tail), tree.mask))
    spent: dict[str, list[float]] = {"by each": [], "once": []}
    inside: dict[str, list[float]] = {"by each": [], "once": []}
    outs = {}
    for turn in range(repetitions + 1):
        for name, least in (("by each", never), ("once", usual)):
            net.shared, net.seconds = least, np.zeros(4)
            start = time.perf_counter()
            found, _ = target.collect(target.submit(groups, Needs()))
            outs[name] = [found.argmax(i) for i in range(requests)], [found.logits(i, 0) for i in range(requests)]
            if turn:
                spent[name].append(time.perf_counter() - start)
                inside[name].append(float(net.seconds[1]))
    net.shared, net.seconds = usual, None
    for slot in (common, *slots):
        target.release(slot)
    same = all(np.array_equal(a, b) for a, b in zip(outs["by each"][1], outs["once"][1], strict=True))
    return {
        "context": shared, "requests": requests, "rows": rows, "tail": tail, "same_bits": same,
        "seconds": {n: _spread(s) for n, s in spent.items()}, "attention": {n: _spread(s) for n, s in inside.items()},
        "ratio": _ratio(spent["once"], spent["by each"]),
        "attention_ratio": _ratio(inside["once"], inside["by each"]),
    }


def _prefill(target: Any, slot: int, rng: np.random.Generator, begin: int, count: int) -> None:
    ids, at = rng.integers(100, target.info.vocab - 100, count), np.arange(begin, begin + count)
    target.submit([RowGroup("prefill", slot, ids, at, np.empty((count, 0), np.bool_))], Needs())
    target.commit(slot, range(count))


def main(
    out: Annotated[Path, typer.Option(help="Where the results go (JSON).")],
    contexts: Annotated[str, typer.Option(help="Tokens behind the tree of one request.")] = "128,256,512,1024,4096",
    rows: Annotated[str, typer.Option(help="Rows of a request.")] = "1,16",
    requests: Annotated[str, typer.Option(help="Requests that share a beginning.")] = "2,8",
    shared: Annotated[int, typer.Option(help="Tokens they share.")] = 2048,
    tail: Annotated[int, typer.Option(help="Tokens of their own.")] = 100,
    repetitions: Annotated[int, typer.Option(help="Timed steps of each variant.")] = 7,
    model: Annotated[str, typer.Option(help="A model that runs in compiled layers.")] = "demo",
) -> None:
    """Time attention under a whole mask and a short one, for one request and for some that begin alike."""
    sizes = [int(x) for x in rows.split(",")]
    batches = [(int(r), n) for r in requests.split(",") for n in sizes]
    found: dict[str, Any] = {
        "table": "attention", "provenance": provenance("attention"), "repetitions": repetitions,
        "threads": torch.get_num_threads(), "model": {"layers": LAYERS, "kv_heads": KV_HEADS, "fold": FOLD, "dim": DIM},
        "torch": [], "compiled": [], "backend": "",
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    todo = [("torch", partial(case, int(c), 1, n, 0, repetitions)) for c in contexts.split(",") for n in sizes]
    todo += [("torch", partial(case, shared, r, n, tail, repetitions)) for r, n in batches]
    target, _ = load_target(model, device="cpu", max_slots=max(r for r, _ in batches) + 1, max_len=shared + tail + 64)
    if hasattr(target.runner.net, "decoder"):
        found["backend"] = target.info.backend
        todo += [("compiled", partial(compiled, target, shared, r, n, tail, repetitions)) for r, n in batches]
    for kind, each in todo:
        found[kind].append(each())
        out.write_text(json.dumps(found, indent=1) + "\n")
    print(attention_table(found))


if __name__ == "__main__":
    typer.run(main)
