"""How much of what the target says a drafter's vocabulary lacks, by kind of prompt: such a token it can never draft.

    python -m hedgerow.bench.coverage --out docs/figures/coverage.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from hedgerow.bench.run import prompts, provenance
from hedgerow.core.errors import UsageError
from hedgerow.draft.formats import load as load_head
from hedgerow.draft.shipped import shipped


def main(
    out: Annotated[Path, typer.Option(help="Where the results go (JSON).")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    drafter: Annotated[Path | None, typer.Option(help="The drafter's directory; else the one shipped.")] = None,
    families: Annotated[str, typer.Option(help="Prompt families.")] = "mt_bench:20,gsm8k:20,humaneval:20,repeat:5",
    max_tokens: Annotated[int, typer.Option(help="New tokens a prompt.")] = 96,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
) -> None:
    """Let the target answer, greedily and at temperature 1, and count the tokens the drafter does not know."""
    from hedgerow import api

    session = api.load(model, recipe="plain", threads=threads)
    path = drafter or shipped(session.target.info.name)
    if path is None:
        raise UsageError(f"no drafter is shipped for {session.target.info.name!r}: give one with --drafter")
    ids = load_head(path).ids
    if ids is None:
        raise UsageError(f"the drafter in {path} knows the target's whole vocabulary; there is nothing to count")
    known, rows = set(ids.tolist()), list[dict[str, Any]]()
    for number, prompt in enumerate(track(prompts(families), console=Console(stderr=True))):
        for heat in (0.0, 1.0):
            said = session.generate(prompt.messages, max_tokens=max_tokens, temperature=heat, seed=number).token_ids
            rows.append({
                "family": prompt.family, "temperature": heat, "tokens": len(said),
                "outside": sum(t not in known for t in said),
            })
    result = {
        "table": "coverage",
        "setup": {"model": model, "families": families, "max_tokens": max_tokens, "vocabulary": len(known)},
        "provenance": provenance("coverage"), "summary": summary(rows), "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"]))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokens, and the share outside the vocabulary, by family and temperature.

    >>> summary([{"family": "a", "temperature": 0.0, "tokens": 8, "outside": 2}])[0]["share"]
    0.25
    """
    out = []
    for family, heat in dict.fromkeys((r["family"], r["temperature"]) for r in rows):
        group = [r for r in rows if (r["family"], r["temperature"]) == (family, heat)]
        tokens, outside = sum(r["tokens"] for r in group), sum(r["outside"] for r in group)
        out.append({
            "family": family, "temperature": heat, "prompts": len(group), "tokens": tokens, "share": outside / tokens,
        })
    return out


if __name__ == "__main__":
    typer.run(main)
