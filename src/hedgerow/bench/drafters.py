"""Learned drafters side by side in seconds: each alone, at equal nodes, in turns with plain decoding.

    python -m hedgerow.bench.drafters --drafters eagle3=DIR,dflash=DIR --nodes 7 --out docs/figures/drafters.json

A drafter that answers node by node grows its tree best first, in at most four calls; one that fills a block in one pass
takes the best prefixes of its laws (DDTree). `hedgerow train compare` leaves such directories.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hedgerow.bench.run import prompts, provenance
from hedgerow.bench.terms import compared, counter, summary, table
from hedgerow.control.controller import Fixed
from hedgerow.core.errors import UsageError
from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.draft.opening import open_drafter
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.block import Block
from hedgerow.verify.match import Match

BLOCKS = ("dflash", "dspark", "domino", "medusa")
"""Methods whose drafters fill a block in one pass, by the name their card has."""


def main(
    out: Annotated[Path, typer.Option(help="Where the results go (JSON).")],
    drafters: Annotated[str, typer.Option(help="NAME=DIRECTORY, with commas.")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    nodes: Annotated[int, typer.Option(help="Draft nodes a step, all verified.")] = 7,
    families: Annotated[str, typer.Option(help="Prompt families.")] = "mt_bench:8,gsm8k:8,humaneval:8",
    max_tokens: Annotated[int, typer.Option(help="New tokens a prompt.")] = 64,
    quant: Annotated[str, typer.Option(help="Quantisation of the target.")] = "none",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
) -> None:
    """Measure drafters interleaved and write every prompt's result."""
    from hedgerow import api

    given = dict(named(part) for part in drafters.split(","))
    plain = api.load(model, recipe="plain", quant=quant, threads=threads, max_batch=1)
    sessions: dict[str, api.Session] = {}
    for name, path in given.items():
        made = api.assemble(plain.target, plain.tokenizer, recipe(name, nodes), drafter=str(path), prices=plain.prices)
        sessions[name] = replace(made, threads=threads, max_batch=1, controller=Fixed(nodes=nodes))
    calls = {name: counter(s.drafters) for name, s in sessions.items()}
    rows: list[dict[str, Any]] = []
    console, todo = Console(stderr=True), prompts(families)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        for i, prompt in enumerate(bar.track(todo, description="prompts")):
            base = plain.generate(prompt.messages, max_tokens=max_tokens)
            for name in list(sessions) if i % 2 else reversed(list(sessions)):
                before = calls[name]()
                mine = sessions[name].generate(prompt.messages, max_tokens=max_tokens)
                rows.append(compared(name, prompt, mine, base, calls[name]() - before))
    result: dict[str, Any] = {
        "table": "drafters",
        "setup": {"model": model, "quant": quant, "nodes": nodes, "families": families, "max_tokens": max_tokens},
        "provenance": provenance("drafters"), "summary": summary(rows), "rows": rows,
    }
    command = result["provenance"]["command"]
    for name, path in given.items():       # a folder's place is a matter of this machine
        command = command.replace(f"{name}={path}", f"{name}=DIR")
    result["provenance"]["command"] = command
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    console.print(table(result["summary"]))


def named(part: str) -> tuple[str, Path]:
    """NAME=DIRECTORY. Raises UsageError for anything else."""
    name, sign, path = part.partition("=")
    if not (name and sign and path):
        raise UsageError(f"--drafters has {part!r}; NAME=DIRECTORY is expected, with commas between")
    return name, Path(path)


def recipe(name: str, nodes: int) -> Recipe:
    """The recipe that fits a drafter of this name."""
    block = name in BLOCKS
    source = DraftSource(name, "block" if block else "autoregressive", open_drafter)
    policy = Block() if block else BestFirst(fanout=8, batch=6, rounds=4)
    return Recipe(
        name=name, version=1, title=name, paper="", sources=(source,), policy=policy, rule=Match(), nodes=nodes,
    )


if __name__ == "__main__":
    typer.run(main)
