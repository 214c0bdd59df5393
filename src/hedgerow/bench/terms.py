"""The four terms of a speed-up at several tree sizes: τ, T(rows) / T(plain), drafter calls a step, what drafting costs.

    python -m hedgerow.bench.terms --recipe auto_learned --nodes 3,7,15,31 --out docs/figures/terms_learned.json

Speed-up = τ / (T(rows) / T(plain) + drafting / T(plain) + the rest of the host). Per prompt plain decoding and every
size take turns. `calls` counts passes of a learned drafter's network.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hedgerow.bench.run import prompts, provenance
from hedgerow.bench.workloads import Prompt
from hedgerow.control.controller import Fixed
from hedgerow.engine.result import Result


def main(
    out: Annotated[Path, typer.Option(help="Where the results go (JSON).")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    recipe: Annotated[str, typer.Option(help="The recipe to measure.")] = "auto",
    drafter: Annotated[str | None, typer.Option(help="The drafter's directory; else the one shipped.")] = None,
    nodes: Annotated[str, typer.Option(help="Tree sizes, with commas.")] = "3,7,15,31",
    families: Annotated[str, typer.Option(help="Prompt families.")] = "mt_bench:20,gsm8k:20,humaneval:20",
    max_tokens: Annotated[int, typer.Option(help="New tokens a prompt.")] = 96,
    quant: Annotated[str, typer.Option(help="Quantisation of the target.")] = "none",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    whole: Annotated[bool, typer.Option(help="Verify every tree whole, whether it pays or not.")] = False,
) -> None:
    """Measure a recipe at several sizes, interleaved with plain decoding, and write every prompt's result."""
    from hedgerow import api

    sizes = [int(n) for n in nodes.split(",")]
    first = api.load(
        model, recipe=recipe, nodes=sizes[0], drafter=drafter, quant=quant, threads=threads, max_batch=1
    )
    sessions = {n: first.with_recipe(recipe, nodes=n) for n in sizes}
    for n, session in sessions.items():
        if whole:
            session.controller = Fixed(nodes=n)
    plain = first.with_recipe("plain")
    calls = {n: counter(s.drafters) for n, s in sessions.items()}
    todo, rows = prompts(families), list[dict[str, Any]]()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    partial = out.with_suffix(".partial.jsonl")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with Progress(*columns, console=console) as bar, partial.open("w") as log:
        task = bar.add_task("prompts", total=len(todo))
        for i, prompt in enumerate(todo):
            bar.update(task, completed=i, description=f"{prompt.family} {prompt.id}")
            base = plain.generate(prompt.messages, max_tokens=max_tokens)
            for n in sizes if i % 2 else reversed(sizes):
                before = calls[n]()
                mine = sessions[n].generate(prompt.messages, max_tokens=max_tokens)
                rows.append(compared(n, prompt, mine, base, calls[n]() - before))
                log.write(json.dumps(rows[-1]) + "\n")
            log.flush()
    result: dict[str, Any] = {
        "table": "terms",
        "setup": {
            "model": model, "recipe": recipe, "drafter": "shipped" if drafter is None else "given", "quant": quant,
            "families": families, "max_tokens": max_tokens, "whole": whole,
        },
        "provenance": provenance("terms"), "summary": summary(rows), "rows": rows,
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    partial.unlink()
    console.print(table(result["summary"]))


def compared(key: int | str, prompt: Prompt, mine: Result, base: Result, calls: int) -> dict[str, Any]:
    """One prompt's result beside plain decoding's, for `summary`; `key` is the size, or whatever is compared."""
    return {
        "nodes": key, "family": prompt.family, "id": prompt.id, "tokens": mine.completion_tokens, "steps": mine.steps,
        "drafted": mine.drafted, "accepted": mine.accepted, "calls": calls, "seconds": mine.seconds,
        "plain_seconds": base.seconds, "plain_steps": base.steps, "tok_s": mine.tok_s, "plain_tok_s": base.tok_s,
        "identical": mine.token_ids == base.token_ids,
    }


def counter(drafters: list[Any]) -> Callable[[], int]:
    """How many passes the networks of these drafters have run so far. Mutates the networks: what runs them counts.

    A drafter without a network that says how it is run counts by being asked.
    """
    count = [0]

    def counted(owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def run(*args: Any, **options: Any) -> Any:
            count[0] += 1
            return inner(*args, **options)

        setattr(owner, name, run)

    for drafter in drafters:
        learned = getattr(drafter, "learned", drafter)
        for part in ("net", "runner"):
            if hasattr(getattr(learned, part, None), "run"):
                counted(getattr(learned, part), "run")
                break
        else:
            if hasattr(learned, "net"):
                counted(learned, "children")
    return lambda: count[0]


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The terms per size, over all prompts and per family; speed-ups are medians over prompts."""
    out = []
    for n in dict.fromkeys(r["nodes"] for r in rows):
        mine = [r for r in rows if r["nodes"] == n]
        for family in ["all", *dict.fromkeys(r["family"] for r in mine)]:
            group = [r for r in mine if family in ("all", r["family"])]
            steps, plain_steps = sum(r["steps"] for r in group), sum(r["plain_steps"] for r in group)
            base = sum(r["plain_seconds"]["total"] - r["plain_seconds"]["prefill"] for r in group) / plain_steps
            ratios = sorted(r["tok_s"] / r["plain_tok_s"] for r in group if r["tok_s"] and r["plain_tok_s"])

            def share(part: str, group: list[dict[str, Any]] = group, per: float = steps * base) -> float:
                return float(sum(r["seconds"][part] for r in group) / per)

            out.append({
                "nodes": n, "family": family, "prompts": len(group),
                "tokens_per_step": sum(r["tokens"] - 1 for r in group) / steps,
                "verify": share("verify"), "draft": share("draft"), "host": share("overhead"),
                "calls": sum(r["calls"] for r in group) / steps,
                "drafted": sum(r["drafted"] for r in group) / steps,
                "speedup_median": median(ratios), "speedup_min": ratios[0], "speedup_max": ratios[-1],
                "identical": sum(r["identical"] for r in group), "plain_step_s": base,
            })
    return sorted(out, key=lambda t: (t["family"] != "all", t["family"], t["nodes"]))


def table(terms: list[dict[str, Any]]) -> Table:
    """The summary for people."""
    heads = ("family", "nodes", "verified", "τ", "T(rows)/T(plain)", "calls", "drafting", "host", "speed-up", "same")
    shown = Table(*heads, box=None)
    for t in terms:
        shown.add_row(
            t["family"], str(t["nodes"]), f"{t['drafted']:.1f}", f"{t['tokens_per_step']:.2f}", f"{t['verify']:.2f}",
            f"{t['calls']:.2f}", f"{t['draft']:.2f}", f"{t['host']:.2f}",
            f"{t['speedup_median']:.2f} ({t['speedup_min']:.2f}–{t['speedup_max']:.2f})",
            f"{t['identical']}/{t['prompts']}",
        )
    return shown


if __name__ == "__main__":
    typer.run(main)
