"""What `bench.rules` and `bench.policies` measured, as Markdown tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

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


MAKERS: dict[str, Callable[[dict[str, Any]], str]] = {"rules": rules_tables, "policies": policies_tables}
"""Tables by the name of the benchmark that measured them."""
