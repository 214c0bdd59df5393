"""`hedgerow train compare`: several methods on one text, the same CPU time each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hedgerow.cli import options as o
from hedgerow.core.errors import UsageError


def compare(
    run: Annotated[Path, typer.Option("--run", help="The folder of a training run that has written its text.")],
    out: Annotated[Path, typer.Option("--out", help="The JSON file to write.")],
    model: o.Model = "demo",
    minutes: Annotated[float, typer.Option("--minutes", help="CPU minutes for each.")] = 7.0,
    variants: Annotated[
        str, typer.Option("--variants", help="Of eagle3, hass, gto, dflash, independent, medusa, hydra.")
    ] = "eagle3,dflash,independent,medusa,hydra",
    start: Annotated[
        Path | None, typer.Option("--start", help="Go on from a trained method's folder, as RUN/eagle3.")
    ] = None,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Train several methods on one text for the same CPU time and write what validation says of each.

    The drafters lie in RUN/trainings; time them with `generate --drafter`. What is done is not trained again.
    """
    if not 0.0 < minutes < float("inf"):
        raise UsageError(f"--minutes is {minutes}; more than 0 are needed")
    if not list((run / "features").glob("*.safetensors")):
        raise UsageError(
            f"{run} has no text with features; write one with `hedgerow train eagle3 --run {run} --out …`, then compare"
        )
    import torch

    from hedgerow.bench.run import provenance
    from hedgerow.train.compare import Comparison

    torch.set_num_threads(1)

    def done(rows: list[dict[str, Any]]) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = {**provenance(), "command": _command(run, minutes, variants, start)}
        setup = {"model": model, "cpu_minutes": minutes, "goes_on": start is not None, "threads": 1}
        out.write_text(json.dumps({"table": "trainings", "setup": setup, "provenance": made, "rows": rows}, indent=1))

    Comparison(model, run.expanduser(), minutes, start, told=o.say(quiet))(variants.split(","), done)


def _command(run: Path, minutes: float, variants: str, start: Path | None) -> str:
    """As a reader would repeat it: a run's folder is a name of this machine."""
    more = "" if start is None else f" --start RUN/{start.name}"
    return f"hedgerow train compare --run RUN --minutes {minutes:g} --variants {variants}{more} --out FILE"
