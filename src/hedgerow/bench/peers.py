"""Plain decoding against other engines: same model, dtype and threads, interleaved.

    python -m hedgerow.bench.peers --out docs/figures/plain.json
    python -m hedgerow.bench.peers --peer vllm --python ENVIRONMENT/bin/python --out docs/figures/peers.json

transformers' `generate` runs in this process; another engine in the environment it is installed in.
"""

from __future__ import annotations

import json
import sys
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
from hedgerow.core.errors import UnknownName, UsageError


def main(
    out: Annotated[Path, typer.Option(help="Where the result goes (JSON).")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    new: Annotated[int, typer.Option(help="New tokens a run, both without stops.")] = 96,
    repetitions: Annotated[int, typer.Option(help="Interleaved pairs a prompt.")] = 5,
    threads: Annotated[int | None, typer.Option(help="CPU threads of both.")] = None,
    peer: Annotated[str, typer.Option(help="transformers, vllm or openvino-genai.")] = "transformers",
    python: Annotated[Path, typer.Option(help="The interpreter that has the peer.")] = Path(sys.executable),
    peer_model: Annotated[Path | None, typer.Option(help="Its model, if not the directory ours is in.")] = None,
    batches: Annotated[str, typer.Option(help="Requests at a time, against other engines.")] = "1,8,32",
    quant: Annotated[str, typer.Option(help="Ours, as for `hedgerow generate`.")] = "none",
) -> None:
    """Time both and write the ratio of tokens per second, ours over theirs.

    Against transformers: the three demo prompts one by one. Against another engine: batches, prefill taken off.
    """
    if peer != "transformers":
        _batches(out, model, new, repetitions, threads, peer, python, peer_model, batches, quant)
    elif quant != "none":
        raise UsageError(f"quant is {quant!r}; allowed against transformers: none")
    else:
        _one_by_one(out, model, new, repetitions, threads)


def _batches(
    out: Path, model: str, new: int, repetitions: int, threads: int | None, name: str, python: Path,
    peer_model: Path | None, batches: str, quant: str,
) -> None:
    import torch

    from hedgerow import api
    from hedgerow.bench.engines import PEERS, against
    from hedgerow.models.weights import resolve

    if name not in PEERS:
        raise UnknownName("peer", name, ["transformers", *PEERS])
    sizes, console = [int(b) for b in batches.split(",")], Console(stderr=True)
    session = api.load(
        model, recipe="plain", quant=quant, threads=threads, max_batch=max(sizes), report=console.print
    )
    cores = torch.get_num_threads()
    version, rows = against(
        session, PEERS[name], python, peer_model or resolve(model), sizes, new, repetitions, cores
    )
    for row in rows:
        console.print(f"batch {row['batch']}: ours {row['ours_tok_s']:.1f} tok/s, {name} {row['theirs_tok_s']:.1f}, "
                      f"ratio {row['ratio']:.2f}, same tokens {row['same_tokens']:.2f}")
    earlier = json.loads(out.read_text())["engines"] if out.exists() else {}
    made = provenance("peers")
    entry = {"provenance": made, "peer": name, "version": version, "new": new, "threads": cores, "rows": rows,
             "repetitions": repetitions, "backend": session.target.info.backend}
    engines = {**earlier, f"{name}; ours {session.target.info.dtype if quant == 'none' else quant}": entry}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"table": "peers", "provenance": made, "engines": engines}, indent=1) + "\n")
    print(json.dumps({str(row["batch"]): row["ratio"] for row in rows}))


def _one_by_one(out: Path, model: str, new: int, repetitions: int, threads: int | None) -> None:
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
