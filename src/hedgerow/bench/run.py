"""The figures of the README: a recipe against plain decoding over real prompts, interleaved, on one loaded target.

    python -m hedgerow.bench.run --out docs/figures/auto.json

Per prompt the runs take turns: plain, then one warm session per repetition, then a cold one. Warm sessions see every
prompt once, in the files' order, so none meets its own answer again; a cold session forgets everything before each
prompt. Results are written as they come; a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hedgerow.bench.workloads import Prompt, load

FAMILIES = "mt_bench:20,gsm8k:20,humaneval:20,repeat:5"


@dataclass(frozen=True)
class Setup:
    """What a run was asked for; a file written by another setup is not continued."""

    model: str
    recipe: str
    nodes: str
    families: str
    max_tokens: int
    repetitions: int
    quant: str
    threads: int | None
    temperature: float = 0.0

    def options(self, number: int) -> dict[str, Any]:
        """What prompt `number` is generated with; drawn texts have a seed of their own each."""
        drawn = {"temperature": self.temperature, "seed": number} if self.temperature else {}
        return {"max_tokens": self.max_tokens, **drawn}


def main(
    out: Annotated[Path, typer.Option(help="Where the results go (JSON).")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    recipe: Annotated[str, typer.Option(help="The recipe to measure.")] = "auto",
    nodes: Annotated[str, typer.Option(help="`auto` or a number of draft nodes.")] = "auto",
    families: Annotated[str, typer.Option(help="Prompt families and how many of each.")] = FAMILIES,
    max_tokens: Annotated[int, typer.Option(help="New tokens a prompt.")] = 128,
    repetitions: Annotated[int, typer.Option(help="Timed pairs a prompt.")] = 2,
    quant: Annotated[str, typer.Option(help="Quantisation of the target.")] = "none",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy; else one seed a prompt.")] = 0.0,
) -> None:
    """Measure a recipe against plain decoding and write every prompt's result."""
    setup = Setup(model, recipe, nodes, families, max_tokens, repetitions, quant, threads, temperature)
    partial = out.with_suffix(".partial.jsonl")
    rows = resume(partial, setup)
    console = Console(stderr=True)
    try:
        measure(setup, rows, partial, console)
    except KeyboardInterrupt:
        console.print(f"interrupted after {len(rows)} prompts; the same command goes on from there")
        raise typer.Exit(130) from None
    terms = summary(rows)
    result = {"setup": vars(setup), "provenance": provenance(), "summary": terms, "prompts": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    partial.unlink(missing_ok=True)
    console.print(table(terms))
    print(json.dumps(terms))


def prompts(families: str) -> list[Prompt]:
    """`name:count,…` as prompts."""
    out: list[Prompt] = []
    for part in families.split(","):
        name, _, count = part.partition(":")
        out += load(name, int(count) if count else None)
    return out


def resume(partial: Path, setup: Setup) -> list[dict[str, Any]]:
    """Rows of an interrupted run of the same setup, or none."""
    if not partial.exists():
        return []
    lines = [json.loads(line) for line in partial.read_text().splitlines() if line.strip()]
    return lines[1:] if lines and lines[0] == vars(setup) else []


def measure(setup: Setup, rows: list[dict[str, Any]], partial: Path, console: Console) -> None:
    """Run every prompt that has no row yet. Mutates `rows`; writes each to `partial` as it comes.

    Prompts of an interrupted run are drafted again (untimed) so that warm sessions know what they knew.
    """
    from hedgerow import api
    from hedgerow.bench.compare import divergence

    session = api.load(
        setup.model, recipe=setup.recipe, nodes=setup.nodes, quant=setup.quant, threads=setup.threads, max_batch=1,
        report=console.print,
    )
    plain = session.with_recipe("plain")
    warm = [session.fresh() for _ in range(setup.repetitions)]
    todo = prompts(setup.families)
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.write_text("".join(json.dumps(x) + "\n" for x in (vars(setup), *rows)))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar, partial.open("a") as log:
        task = bar.add_task("prompts", total=len(todo))
        for i, prompt in enumerate(todo):
            bar.update(task, completed=i, description=f"{prompt.family} {prompt.id}")
            if i < len(rows):
                for each in warm:
                    each.generate(prompt.messages, **setup.options(i))
                continue
            base: list[api.Result] = []
            mine: list[api.Result] = []
            for turn, each in enumerate(warm):
                pair = [(plain, base), (each, mine)]
                for who, results in pair if turn % 2 == 0 else reversed(pair):
                    results.append(who.generate(prompt.messages, **setup.options(i)))
            cold = session.fresh().generate(prompt.messages, **setup.options(i))
            apart = divergence(
                session.target, session.request(prompt.messages, **setup.options(i)), mine[0].token_ids,
                base[0].token_ids,
            )
            ratios = [a.tok_s / b.tok_s for a, b in zip(mine, base, strict=True) if a.tok_s and b.tok_s]
            spent = [m.seconds for m in mine]
            rows.append({
                "family": prompt.family, "id": prompt.id, "tokens": mine[0].completion_tokens, "steps": mine[0].steps,
                "cold_tokens": cold.completion_tokens, "cold_steps": cold.steps, "drafted": mine[0].drafted,
                "accepted": mine[0].accepted, "share": mine[0].speculation["share"],
                "plain_tok_s": median(b.tok_s or 0.0 for b in base), "tok_s": median(m.tok_s or 0.0 for m in mine),
                "ratios": ratios, "speedup": median(ratios) if ratios else None, "divergence": apart,
                "prompt_tokens": mine[0].prompt_tokens,
                "seconds": {k: median(s[k] for s in spent) for k in spent[0]},
                "plain_seconds": {k: median(b.seconds[k] for b in base) for k in spent[0]},
                "plain_steps": base[0].steps,
            })
            log.write(json.dumps(rows[-1]) + "\n")
            log.flush()


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The four terms and the rest, per family and over all but the repeating prompts."""
    families = list(dict.fromkeys(r["family"] for r in rows))
    groups = {f: [r for r in rows if r["family"] == f] for f in families}
    groups["all"] = [r for r in rows if r["family"] != "repeat"] or rows
    return {name: _terms(group) for name, group in groups.items()}


def _terms(rows: list[dict[str, Any]]) -> dict[str, Any]:
    gained = sum(r["tokens"] - 1 for r in rows)
    seconds = {k: sum(r["seconds"][k] for r in rows) for k in ("draft", "verify", "overhead", "prefill")}
    decode = seconds["draft"] + seconds["verify"] + seconds["overhead"]
    base = sum(r["plain_seconds"]["total"] - r["plain_seconds"]["prefill"] for r in rows)
    steps, plain_steps = sum(r["steps"] for r in rows), sum(r["plain_steps"] for r in rows)
    speedups = sorted(r["speedup"] for r in rows if r["speedup"])
    apart = [r["divergence"] for r in rows if r["divergence"]]
    return {
        "prompts": len(rows), "tokens": gained + len(rows),
        "tokens_per_step": gained / steps,
        "tokens_per_step_cold": sum(r["cold_tokens"] - 1 for r in rows) / sum(r["cold_steps"] for r in rows),
        "speedup_of_seconds": (base / sum(r["tokens"] - 1 for r in rows)) / (decode / gained) if decode else None,
        "speedup_median": median(speedups) if speedups else None,
        "speedup_min": speedups[0] if speedups else None, "speedup_max": speedups[-1] if speedups else None,
        "plain_tok_s": median(r["plain_tok_s"] for r in rows), "tok_s": median(r["tok_s"] for r in rows),
        "verify_per_step_to_plain": (seconds["verify"] / steps) / (base / plain_steps),
        "draft_per_step_to_plain": (seconds["draft"] / steps) / (base / plain_steps),
        "host_share": (seconds["draft"] + seconds["overhead"]) / decode,
        "drafted_per_step": sum(r["drafted"] for r in rows) / steps,
        "divergences": len(apart), "divergences_near_tie": sum(d["near_tie"] for d in apart),
        "divergences_per_1000_tokens": 1000 * len(apart) / (gained + len(rows)),
        "identical_prompts": len(rows) - len(apart),
    }


def table(groups: dict[str, dict[str, Any]]) -> Table:
    """The summary for people."""
    heads = ("family", "prompts", "τ warm", "τ cold", "plain tok/s", "tok/s", "speed-up", "min", "host", "apart")
    shown = Table(*heads, box=None)
    for name, t in groups.items():
        shown.add_row(
            name, str(t["prompts"]), f"{t['tokens_per_step']:.2f}", f"{t['tokens_per_step_cold']:.2f}",
            f"{t['plain_tok_s']:.1f}", f"{t['tok_s']:.1f}", f"{t['speedup_of_seconds']:.2f}", f"{t['speedup_min']:.2f}",
            f"{100 * t['host_share']:.1f} %", f"{t['divergences']} ({t['divergences_near_tie']} near-ties)",
        )
    return shown


def provenance(module: str = "run") -> dict[str, Any]:
    """What a figure depends on, written next to it; `module` of hedgerow.bench measured it."""
    from hedgerow.api import versions

    try:
        sha = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        sha = ""
    return {
        "command": " ".join(["python", "-m", f"hedgerow.bench.{module}", *sys.argv[1:]]), "git": sha,
        "versions": versions(),
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "system": platform.system(), "arch": platform.machine()},
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    typer.run(main)
