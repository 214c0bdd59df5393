"""Measured figures as Markdown: what the benchmarks wrote to docs/figures, with the machine and command behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hedgerow.bench import tables

NONE = "_Not measured yet._"

RECIPE = """\
Recipe `{recipe}` against plain decoding on the same loaded target: model `{model}`, {how}, up to {max_tokens} new
tokens, {repetitions} interleaved pairs a prompt, first turns only. *Warm*: one process, the prompts in order, what was
learned is kept; *cold*: everything is forgotten before each prompt. *all* leaves out `repeat`, the prompts that ask for
their own text again. τ is tokens per step; *apart* counts prompts whose tokens differ from plain decoding's.
"""
RECIPE_HEAD = """\
| prompts | | τ warm | τ cold | T(rows) / T(plain) | drafting / T(plain) | speed-up | worst | tok/s \
| plain tok/s | apart |
|---|---|---|---|---|---|---|---|---|---|---|"""
PLAIN = """\
Plain decoding against `generate` of transformers: same model and threads, taking turns in one run, prefill included.
`generate` computes in {theirs}, ours in the form its column names: where that is int8, quantised against {theirs}.
Ratios are medians over turns, lowest and highest in brackets.
"""


def figures(folder: Path, name: str) -> str:
    """The figures of a name: NAME.json of `bench.run`, `peers`, `rules` or `policies` as tables, NAME.txt as printed.

    >>> figures(Path("nowhere"), "demo")
    '_Not measured yet._'
    """
    printed, measured = folder / f"{name}.txt", folder / f"{name}.json"
    if printed.exists():
        return f"```\n{printed.read_text(encoding='utf-8').strip()}\n```"
    if not measured.exists():
        return NONE
    result = json.loads(measured.read_text(encoding="utf-8"))
    if "table" in result:
        return tables.MAKERS[result["table"]](result) + "\n\n" + _provenance(result["provenance"])
    return (_recipe(result) if "setup" in result else _plain(result)) + "\n\n" + _provenance(result["provenance"])


def _recipe(result: dict[str, Any]) -> str:
    heat = result["setup"].get("temperature", 0.0)
    how = f"temperature {heat:g}, plain decoding at the same seeds" if heat else "greedy"
    lines = [RECIPE.format(**result["setup"], how=how), RECIPE_HEAD]
    for family, t in result["summary"].items():
        cells = [
            family, str(t["prompts"]), f"{t['tokens_per_step']:.2f}", f"{t['tokens_per_step_cold']:.2f}",
            f"{t['verify_per_step_to_plain']:.2f}", f"{t['draft_per_step_to_plain']:.3f}",
            f"{t['speedup_of_seconds']:.2f}", f"{t['speedup_min']:.2f}", f"{t['tok_s']:.1f}", f"{t['plain_tok_s']:.1f}",
            f"{t['divergences']} ({t['divergences_near_tie']} at a near-tie)" if t["divergences"] else "none",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _plain(result: dict[str, Any]) -> str:
    forms, theirs = list(result["summary"]), result["theirs"]
    heads = ["prompt", "prompt tokens", f"`generate` {theirs}, tok/s", *(f"ours {f}, tok/s | ratio" for f in forms)]
    lines = [PLAIN.format(theirs=theirs), f"| {' | '.join(heads)} |", "|---" * (3 + 2 * len(forms)) + "|"]
    for p in result["prompts"]:
        cells = [p["prompt"], str(p["prompt_tokens"]), f"{p['theirs_tok_s']:.1f}"]
        for o in (p["ours"][form] for form in forms):
            cells += [f"{o['tok_s']:.1f}", _ratio(o["ratio"], min(o["ratios"]), max(o["ratios"]))]
        lines.append(f"| {' | '.join(cells)} |")
    every = [_ratio(s["ratio"], s["ratio_min"], s["ratio_max"]) for s in result["summary"].values()]
    return "\n".join([*lines, f"| all | | | {' | '.join(f'| {r}' for r in every)} |"])


def _ratio(middle: float, low: float, high: float) -> str:
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def _provenance(made: dict[str, Any]) -> str:
    machine, versions = made["machine"], made["versions"]
    built = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions)
    return f"`{made['command']}`, {made['date']}, {machine['cpu']}, {machine['cores']} cores, {built}."
