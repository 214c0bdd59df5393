"""Which way of choosing and judging nodes is best when tokens are drawn: one table at equal nodes, one drafter.

    python -m hedgerow.bench.temperature --out docs/figures/temperature.json

All variants fill the same fixed shape, which the accepted shares of ranks in the drafter's model card make best, with
the same learned drafter. Texts at one seed differ between rules that are not match rules, so τ is over many texts; the
same prompts and seeds serve all, and plain decoding takes its turn beside each.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hedgerow.bench.run import prompts, provenance
from hedgerow.core.parts import Rule
from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import Selection
from hedgerow.draft.opening import open_drafter
from hedgerow.draft.shipped import shipped
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.sparse import medusa_tree
from hedgerow.verify.joint import Traversal
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection

RANKS = (0.42, 0.13, 0.07, 0.05)           # accepted shares by rank at every depth, where no others are given
VARIANTS: tuple[tuple[str, Selection, Rule], ...] = (
    ("top-k, match", Selection.TOP_K, Match()),
    ("coupled, match", Selection.COUPLED, Match()),
    ("without replacement, recursive rejection", Selection.WITHOUT_REPLACEMENT, Rejection()),
    ("without replacement, traversal", Selection.WITHOUT_REPLACEMENT, Traversal()),
)


def shape_of(nodes: int, depth: int) -> TreeShape:
    """The best static tree of so many nodes for `RANKS`, no deeper than `depth`."""
    return medusa_tree([list(RANKS)] * depth, nodes, depth, len(RANKS))


def recipes(shape: TreeShape) -> list[Recipe]:
    """One recipe a variant."""
    source = DraftSource("learned", "autoregressive", open_drafter)
    return [
        Recipe(
            name=name.replace(" ", "_").replace(",", ""), version=1, title=name, paper="", sources=(source,),
            policy=Fixed(shape, selection), rule=rule, nodes=shape.nodes,
        )
        for name, selection, rule in VARIANTS
    ]


def main(
    out: Annotated[Path, typer.Option(help="Where the results go (JSON).")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    drafter: Annotated[str | None, typer.Option(help="The drafter's directory; else the one shipped.")] = None,
    nodes: Annotated[int, typer.Option(help="Draft nodes a step.")] = 15,
    depth: Annotated[int, typer.Option(help="Deepest node: drafter calls a step.")] = 4,
    families: Annotated[str, typer.Option(help="Prompt families.")] = "mt_bench:20,gsm8k:20,humaneval:20",
    temperatures: Annotated[str, typer.Option(help="Temperatures, with commas.")] = "0.8,1.0",
    max_tokens: Annotated[int, typer.Option(help="New tokens a prompt.")] = 96,
    quant: Annotated[str, typer.Option(help="Quantisation of the target.")] = "none",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
) -> None:
    """Measure the variants at equal nodes and write every prompt's result."""
    from hedgerow import api

    session = api.load(model, recipe="plain", quant=quant, threads=threads, max_batch=1)
    path = drafter or shipped(session.target.info.name)
    console = Console(stderr=True)
    shape = shape_of(nodes, depth)
    runners = [
        replace(
            api.assemble(session.target, session.tokenizer, r, drafter=str(path), prices=session.prices),
            threads=threads, max_batch=1,
        )
        for r in recipes(shape)
    ]
    todo = [(t, p) for t in map(float, temperatures.split(",")) for p in prompts(families)]
    rows: list[dict[str, Any]] = []
    partial = out.with_suffix(".partial.jsonl")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar, partial.open("w") as log:
        task = bar.add_task("prompts", total=len(todo))
        for number, (heat, prompt) in enumerate(todo):
            bar.update(task, completed=number, description=f"T={heat} {prompt.family} {prompt.id}")
            options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": heat, "seed": number}
            for runner in runners:
                both = [(session, "plain"), (runner, "mine")]
                got = {k: s.generate(prompt.messages, **options) for s, k in (both if number % 2 else both[::-1])}
                mine, base = got["mine"], got["plain"]
                rows.append({
                    "temperature": heat, "variant": runner.recipe.title, "family": prompt.family, "id": prompt.id,
                    "tokens": mine.completion_tokens, "steps": mine.steps, "drafted": mine.drafted,
                    "accepted": mine.accepted, "seconds": mine.seconds, "tok_s": mine.tok_s, "plain_tok_s": base.tok_s,
                    "identical": mine.token_ids == base.token_ids, "match": not runner.recipe.rule.needs_q,
                })
                log.write(json.dumps(rows[-1]) + "\n")
            log.flush()
    result: dict[str, Any] = {
        "table": "temperature",
        "setup": {
            "model": model, "quant": quant, "nodes": shape.nodes, "depth": depth, "families": families,
            "max_tokens": max_tokens, "shape": list(shape.paths),
        },
        "provenance": provenance("temperature"), "summary": summary(rows), "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    partial.unlink()
    console.print(table(result["summary"]))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """τ, acceptance and speed of each variant at each temperature."""
    out = []
    keys = dict.fromkeys((r["temperature"], r["variant"]) for r in rows)
    for heat, variant in keys:
        group = [r for r in rows if (r["temperature"], r["variant"]) == (heat, variant)]
        ratios = sorted(r["tok_s"] / r["plain_tok_s"] for r in group if r["tok_s"] and r["plain_tok_s"])
        steps = sum(r["steps"] for r in group)
        decode = sum(r["seconds"]["total"] - r["seconds"]["prefill"] for r in group)
        out.append({
            "temperature": heat, "variant": variant, "prompts": len(group),
            "tokens_per_step": sum(r["tokens"] - 1 for r in group) / steps,
            "acceptance_rate": sum(r["accepted"] for r in group) / max(sum(r["drafted"] for r in group), 1),
            "speedup_median": median(ratios), "speedup_min": ratios[0], "speedup_max": ratios[-1],
            "draft_share": sum(r["seconds"]["draft"] for r in group) / decode,
            "host_share": sum(r["seconds"]["overhead"] for r in group) / decode,
            "identical_to_plain": sum(r["identical"] for r in group) if group[0]["match"] else None,
        })
    return out


def table(terms: list[dict[str, Any]]) -> Table:
    """The summary for people."""
    shown = Table("T", "variant", "τ", "accepted", "speed-up (range)", "draft", "same text", box=None)
    for t in terms:
        same = "-" if t["identical_to_plain"] is None else f"{t['identical_to_plain']}/{t['prompts']}"
        shown.add_row(
            str(t["temperature"]), t["variant"], f"{t['tokens_per_step']:.2f}", f"{100 * t['acceptance_rate']:.0f} %",
            f"{t['speedup_median']:.2f} ({t['speedup_min']:.2f}–{t['speedup_max']:.2f})",
            f"{100 * t['draft_share']:.0f} %", same,
        )
    return shown


if __name__ == "__main__":
    typer.run(main)
