"""What `bench.rules`, `policies`, `backends` and `peers` measured, as Markdown tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hedgerow.bench.attention_table import attention_table
from hedgerow.bench.gpu_table import gpu_tables
from hedgerow.bench.learned_tables import (
    coverage_table,
    drafters_table,
    exported_table,
    temperature_table,
    terms_table,
    trainings_table,
)
from hedgerow.bench.steady_table import steady_table
from hedgerow.bench.stream_table import stream_tables

GAPS = {
    "root": "one node, given the real p and q after each context's root: the chance that a child is accepted",
    "joint": "whole trees on laws of three tokens (two children, one below each): E[accepted]",
}


def rules_tables(result: dict[str, Any]) -> str:
    """τ of every rule, a table a drafter and temperature; then what is left to gain."""
    setup, cells = result["setup"], result["tau"]
    drafters = list(dict.fromkeys(c["drafter"] for c in cells))
    budgets = setup["budgets"]
    out = [_contexts(result)]
    for drafter in drafters:
        out += ["", f"### Drafter: {drafter}", ""]
        mine = {(c["case"], c["budget"], c["temperature"]): c for c in cells if c["drafter"] == drafter}
        heads = [f"T = {t:g}, {b} nodes" for t in setup["temperatures"] for b in budgets]
        out += ["| rule · selection · shape | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
        for case in dict.fromkeys(c["case"] for c in cells):
            row = [_tau(mine.get((case, b, t))) for t in setup["temperatures"] for b in budgets]
            out.append(f"| {case} | " + " | ".join(row) + " |")
    for kind, title in GAPS.items():
        found = [g for g in result["gaps"] if g["kind"] == kind]
        if not found:
            continue
        heats = list(dict.fromkeys(g["temperature"] for g in found))
        out += ["", f"### What is left to gain: {title}", ""]
        out += ["| | " + " | ".join(f"T = {t:g}" for t in heats) + " |", "|---" * (len(heats) + 1) + "|"]
        at = {(g["what"], g["temperature"]): g for g in found}
        for what in dict.fromkeys(g["what"] for g in found):
            out.append(f"| {what} | " + " | ".join(_spread(at.get((what, t)), 3) for t in heats) + " |")
    return "\n".join(out)


def policies_tables(result: dict[str, Any]) -> str:
    """τ, E(A) and calibration error of every recipe, a table a budget, best τ first."""
    setup, cells = result["setup"], result["tau"]
    about = {r["recipe"]: r for r in result["recipes"]}
    heats = setup["temperatures"]
    out = [_contexts(result)]
    for budget in setup["budgets"]:
        at = {(c["recipe"], c["temperature"]): c for c in cells if c["budget"] == budget}
        heads = [*(f"τ, T = {t:g}" for t in heats), "E(A)", *(f"error, T = {t:g}" for t in heats), "nodes", "depth"]
        out += ["", f"### Up to {budget} nodes", ""]
        out += ["| recipe | rule | source | " + " | ".join(heads) + " |", "|---" * (len(heads) + 3) + "|"]
        recipes = dict.fromkeys(c["recipe"] for c in cells)
        for name in sorted(recipes, key=lambda r: -max(at[r, t]["mean"] for t in heats[:1])):
            one = at[name, heats[0]]
            none = abs(one["expected"] - one["nodes"]) < 1e-6     # a shape without estimates promises nothing
            row = [
                *(_tau(at[name, t]) for t in heats), "–" if none else f"{one['expected']:.2f}",
                *("–" if none else f"{at[name, t]['error']:+.2f}" for t in heats),
                f"{one['nodes']:.1f}", f"{one['depth']:.1f}",
            ]
            out.append(f"| `{name}` | {about[name]['rule']} | {about[name]['sources']} | " + " | ".join(row) + " |")
    return "\n".join(out)


def backends_table(result: dict[str, Any]) -> str:
    """Milliseconds of a step by every backend, then how exact each is and why some are missing."""
    cells = {(c["backend"], c["context"], c["rows"]): c for c in result["cells"]}
    at = list(dict.fromkeys((c["context"], c["rows"]) for c in result["cells"]))
    heads = [f"{rows} rows, {context}" for context, rows in at]
    out = [
        f"Whole steps in ms by rows and context: medians of {result['repetitions']} interleaved runs, "
        f"{result['threads']} threads, lowest and highest in brackets. *Error*: of the logits against float32, ‖·‖₂ "
        "relative. *Same rows*: share of rows that are bit for bit the same in a step of fewer rows.", "",
        "| backend | " + " | ".join(heads) + " | error | same rows |", "|---" * (len(heads) + 3) + "|",
    ]
    for name, good in result["quality"].items():
        row = [cells[name, context, rows] for context, rows in at]
        times = [f"{1e3 * c['median_s']:.1f} ({1e3 * c['min_s']:.1f}–{1e3 * c['max_s']:.1f})" for c in row]
        same = min(good["rows_equal"].values(), default=1.0)
        out.append(f"| {name} | " + " | ".join(times) + f" | {good['relative_error']:.4f} | {100 * same:.0f} % |")
    out += [""] if result["missing"] else []
    return "\n".join(out + [f"Not measured: {name}: {why}." for name, why in result["missing"].items()])


def peers_table(result: dict[str, Any]) -> str:
    """Tokens per second of plain decoding, ours and the other engine's, by batch."""
    out = [
        "Plain decoding, greedy, of the same prompts of about 100 tokens; prefill taken off; medians and ratios of "
        "interleaved pairs, lowest and highest in brackets.", "",
        "| the other engine | ours | batch | ours, tok/s | theirs, tok/s | ratio |", "|---|---|---|---|---|---|",
    ]
    for entry in result["engines"].values():
        for r in entry["rows"]:
            ratio = f"{r['ratio']:.2f} ({min(r['ratios']):.2f}–{max(r['ratios']):.2f})"
            speeds = f"{r['ours_tok_s']:.1f} | {r['theirs_tok_s']:.1f}"
            out.append(
                f"| {entry['peer']} {entry['version']} | {entry['backend']} | {r['batch']} | {speeds} | {ratio} |"
            )
    return "\n".join(out)


def steps_table(result: dict[str, Any]) -> str:
    """Whole steps by rows and context next to their products and their attention."""
    top = result["ceilings"]
    out = [
        f"Whole steps in ms: medians of {result['repetitions']}, sizes in turns, {result['threads']} threads, lowest "
        "and highest in brackets. *Products*: all matrix products of the same steps, head included. *Keys read*: the "
        f"time their keys and values take at the {top['read_bytes_s'] / 1e9:.0f} GB/s measured in the same run (bf16 "
        f"products of PyTorch: {top['bf16_flop_s'] / 1e9:.0f} GFLOP/s).", "",
        "| weights | context | rows | step | products | step / products | attention | keys read |", "|---" * 8 + "|",
    ]
    for quant, steps in result["quants"].items():
        for s in steps:
            step = f"{s['step_s'] * 1e3:.1f} ({s['step_s_low'] * 1e3:.1f}–{s['step_s_high'] * 1e3:.1f})"
            out.append(
                f"| {'bf16' if quant == 'none' else quant} | {s['context']} | {s['rows']} | {step} "
                f"| {s['products_s'] * 1e3:.1f} | {s['step_to_products']:.2f} | {s['attention_s'] * 1e3:.1f} "
                f"| {s['keys_bytes'] / top['read_bytes_s'] * 1e3:.1f} |"
            )
    return "\n".join(out)


def _contexts(result: dict[str, Any]) -> str:
    used = Counter(c["prompt"].split()[0] for c in result["contexts"])
    greedy = sum(c["temperature"] == 0.0 for c in result["contexts"])
    most = max((c["contexts"] for c in result["tau"]), default=0)
    least = min((c["contexts"] for c in result["tau"]), default=0)
    span = f"{most}" if most == least else f"{least} to {most}"
    return (
        f"Model `{result['setup']['model']}`; {span} contexts of "
        f"{', '.join(f'{n} {name}' for name, n in used.items())}, {greedy} of {sum(used.values())} from greedy "
        "answers, the others from answers sampled at temperature 1. A cell is the mean of τ = 1 + E[accepted] over "
        "contexts, with a bootstrap 95 % interval."
    )


def _tau(cell: dict[str, Any] | None) -> str:
    return _spread(cell, 2)


def _spread(cell: dict[str, Any] | None, digits: int) -> str:
    if cell is None:
        return "–"
    return f"{cell['mean']:.{digits}f} ({cell['low']:.{digits}f}–{cell['high']:.{digits}f})"


MAKERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "terms": terms_table, "temperature": temperature_table, "exported": exported_table,
    "trainings": trainings_table, "drafters": drafters_table, "coverage": coverage_table,
    "stream": stream_tables, "steady": steady_table,
    "rules": rules_tables, "policies": policies_tables, "backends": backends_table, "peers": peers_table,
    "steps": steps_table, "gpu": gpu_tables, "attention": attention_table,
}
"""Tables by the name of the benchmark that measured them."""
