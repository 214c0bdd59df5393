"""`hedgerow bounds`: what any method could reach on a recorded generation."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from hedgerow.cli import options as o
from hedgerow.cli.render import table


def bounds(
    trace: Annotated[Path, typer.Option("--trace", help="What `generate --trace` recorded.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    debug: o.Debug = False,
) -> None:
    """Print what any method could reach on TRACE: the target's surprise, ceilings at budgets of 7, 15 and 63 nodes, the
    best tree an oracle could have drafted, and how often the target's own best tokens were the text."""
    from hedgerow.bench.bounds import bounds as found_of

    found = found_of(trace)
    print(jsonlib.dumps(found) if json else "\n".join(lines(found)))


def lines(found: dict[str, Any]) -> list[str]:
    """What the bounds say to people."""
    heats = ", ".join(f"{t:g}" for t in found["temperatures"])
    out = [
        f"{found['requests']} requests, {found['steps']} steps, {found['tokens']} tokens, temperature {heats}; "
        f"{found['tau']:.3f} tokens per step were measured", "",
    ]
    words = {"raw": "raw law (temperature 1)", "sampled": "law as sampled"}
    rows = [
        [words[name], f"{d['mu']:.3f}", f"{d['mu2']:.3f}", " / ".join(f"{x:.2f}" for x in d["quartiles"]),
         str(d["rows"])]
        for name, d in found["laws"].items() if d is not None
    ]
    out += [*table(["of the rows that chose the text", "mu, nats", "mu2", "entropy quartiles", "rows"], rows), ""]
    name = "raw" if found["laws"]["sampled"] is None else "sampled"
    out += table(
        ["nodes", "best oracle tree, tokens per step", f"ln P/mu ({name})", "proven bound's term"],
        [
            [str(b["nodes"]), f"{b['oracle_tau']:.3f}", _cell(b[f"ceiling_{name}"]), _cell(b[f"bound_{name}"])]
            for b in found["budgets"]
        ],
    )
    out += [
        "The oracle knows p: no deterministic tree of that size does better on the rows that were recorded; where rows "
        "are missing", "more was possible. ln P/mu and the bound's leading term (arXiv 2512.11718) count accepted "
        "tokens, up to a constant.", "",
    ]
    return out + table(
        ["best k tokens", "held the text's token", "probability"],
        [[str(h["k"]), f"{h['hit']:.1%}", f"{h['mass']:.1%}"] for h in found["hits"]],
    )


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
