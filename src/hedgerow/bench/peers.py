"""Plain decoding against transformers' `generate`: same model, dtype and threads, interleaved.

    python -m hedgerow.bench.peers --out docs/figures/plain.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from hedgerow.bench.run import provenance
from hedgerow.bench.workloads import load


def main(
    out: Annotated[Path, typer.Option(help="Where the result goes (JSON).")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    new: Annotated[int, typer.Option(help="New tokens a run, both without stops.")] = 96,
    repetitions: Annotated[int, typer.Option(help="Interleaved pairs a prompt.")] = 5,
    threads: Annotated[int | None, typer.Option(help="CPU threads of both.")] = None,
) -> None:
    """Time both on the three demo prompts and write the ratio of tokens per second, ours over theirs."""
    import torch

    from hedgerow import api
    from hedgerow.models.baseline import transformers_generate
    from hedgerow.models.weights import resolve

    console = Console(stderr=True)
    session = api.load(model, recipe="plain", threads=threads, max_batch=1, report=console.print)
    dtype = torch.bfloat16 if session.target.info.dtype == "bf16" else torch.float32
    theirs = transformers_generate(resolve(model), dtype, session.target.info.device)
    rows: list[dict[str, Any]] = []
    for prompt in load("demo"):
        ids = session.request(prompt.messages).prompt
        ours_s: list[float] = []
        theirs_s: list[float] = []
        runs: list[tuple[Callable[[], object], list[float]]] = [
            (partial(session.generate, prompt.messages, max_tokens=new, ignore_eos=True), ours_s),
            (partial(theirs, ids, new), theirs_s),
        ]
        for turn in range(repetitions + 1):
            for run, spent in runs if turn % 2 else reversed(runs):
                start = time.perf_counter()
                run()
                if turn:  # the first pair warms up
                    spent.append(time.perf_counter() - start)
        ratios = [b / a for a, b in zip(ours_s, theirs_s, strict=True)]
        rows.append({
            "prompt": prompt.id, "prompt_tokens": len(ids), "ratio": median(ratios), "ratios": ratios,
            "ours_tok_s": new / median(ours_s), "theirs_tok_s": new / median(theirs_s),
        })
        console.print(f"{prompt.id}: ours {rows[-1]['ours_tok_s']:.1f} tok/s, transformers "
                      f"{rows[-1]['theirs_tok_s']:.1f} tok/s (prefill included), ratio {rows[-1]['ratio']:.2f}")
    every = [r for row in rows for r in row["ratios"]]
    summary = {"ratio": median(every), "ratio_min": min(every), "ratio_max": max(every)}
    out.parent.mkdir(parents=True, exist_ok=True)
    result = {"provenance": provenance("peers"), "summary": summary, "prompts": rows}
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    typer.run(main)
