"""Plain decoding against other engines: same model, dtype and threads, interleaved.

    python -m hedgerow.bench.peers --quant none,int8 --out docs/figures/plain.json
    python -m hedgerow.bench.peers --peer vllm --python ENVIRONMENT/bin/python --out docs/figures/peers.json

transformers' `generate` runs in this process; another engine in the environment it is installed in. Against `generate`
ours may be several at once, unquantised and quantised, all taking turns with it: the ratio of an int8 form is that of
int8 here to bf16 there, and its figures are named int8.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from hedgerow.bench.run import provenance
from hedgerow.bench.workloads import load
from hedgerow.core.errors import UnknownName, UsageError

THEIRS = "theirs"


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
    quant: Annotated[
        str, typer.Option(help="Ours, as for `hedgerow generate`; several against transformers, as none,int8.")
    ] = "none",
) -> None:
    """Time both and write the ratio of tokens per second, ours over theirs.

    Against transformers: the three demo prompts one by one. Against another engine: batches, prefill taken off.
    """
    if peer != "transformers":
        _batches(out, model, new, repetitions, threads, peer, python, peer_model, batches, quant)
    else:
        _one_by_one(out, model, new, repetitions, threads, quant.split(","))


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


def _one_by_one(
    out: Path, model: str, new: int, repetitions: int, threads: int | None, quants: Sequence[str]
) -> None:
    import torch

    from hedgerow import api
    from hedgerow.models.baseline import transformers_generate
    from hedgerow.models.weights import resolve

    if len(set(quants)) < len(quants):
        raise UsageError(f"--quant is {','.join(quants)}; give each form once, as none,int8")
    console = Console(stderr=True)
    sessions: dict[str, api.Session] = {}
    for quant in quants:
        session = api.load(model, recipe="plain", quant=quant, threads=threads, max_batch=1, report=console.print)
        sessions[session.target.info.dtype if quant == "none" else quant] = session
    info = next(iter(sessions.values())).target.info
    dtype = torch.bfloat16 if info.dtype == "bf16" else torch.float32
    theirs = transformers_generate(resolve(model), dtype, info.device)
    rows: list[dict[str, Any]] = []
    for prompt in load("demo"):
        ids = next(iter(sessions.values())).request(prompt.messages).prompt
        runs: dict[str, Callable[[], object]] = {THEIRS: partial(theirs, ids, new)}
        for form, session in sessions.items():
            runs[form] = partial(session.generate, prompt.messages, max_tokens=new, ignore_eos=True)
        row = {"prompt": prompt.id, "prompt_tokens": len(ids), **compared(taking_turns(runs, repetitions), new)}
        rows.append(row)
        console.print(f"{prompt.id}: transformers {info.dtype} {row['theirs_tok_s']:.1f} tok/s (prefill included); " + (
            ", ".join(f"ours {form} {o['tok_s']:.1f}, ratio {o['ratio']:.2f}" for form, o in row["ours"].items())
        ))
    summary = {form: _over([r for row in rows for r in row["ours"][form]["ratios"]]) for form in sessions}
    out.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "provenance": provenance("peers"), "theirs": info.dtype, "new": new, "repetitions": repetitions,
        "backends": {form: s.target.info.backend for form, s in sessions.items()}, "summary": summary, "prompts": rows,
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(summary))


def taking_turns(
    runs: Mapping[str, Callable[[], object]], repetitions: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each run in every turn but the first, which warms up; who begins a turn goes round."""
    names = list(runs)
    spent: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repetitions + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = clock()
            runs[name]()
            if turn:
                spent[name].append(clock() - start)
    return spent


def compared(spent: Mapping[str, Sequence[float]], new: int) -> dict[str, Any]:
    """Tokens per second of `THEIRS` and of every form of ours; ratios are those of one turn.

    >>> compared({"theirs": [2.0, 4.0], "int8": [1.0, 1.0]}, 8)["ours"]["int8"]
    {'tok_s': 8.0, 'ratio': 3.0, 'ratios': [2.0, 4.0]}
    """
    ours: dict[str, Any] = {}
    for form, seconds in spent.items():
        if form != THEIRS:
            ratios = [b / a for a, b in zip(seconds, spent[THEIRS], strict=True)]
            ours[form] = {"tok_s": new / median(seconds), "ratio": median(ratios), "ratios": ratios}
    return {"theirs_tok_s": new / median(spent[THEIRS]), "ours": ours}


def _over(ratios: Sequence[float]) -> dict[str, float]:
    return {"ratio": median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}


if __name__ == "__main__":
    typer.run(main)
