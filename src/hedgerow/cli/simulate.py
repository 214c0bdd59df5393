"""`hedgerow simulate`: what a recipe would do on a recorded trace, or under given acceptance rates, at whose costs."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hedgerow.cli import options as o
from hedgerow.cli.render import table
from hedgerow.core.errors import UsageError

if TYPE_CHECKING:
    from hedgerow.cost.profiles import Profile
    from hedgerow.simulate import Positional, Recorded, Report

INTERRUPTED = 130
WIDTH = 40                                 # of the longest bar
EVERY_S = 1.0                              # between two lines of progress


def simulate(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A name from `hedgerow recipes`.")],
    trace: Annotated[Path | None, typer.Option("--trace", help="Play on what `generate --trace` recorded.")] = None,
    acceptance: Annotated[str | None, typer.Option(
        "--acceptance", help="Play on rates by rank, e.g. 0.6,0.2,0.1; by depth too: 0.6,0.2;0.5,0.2.",
    )] = None,
    profile: Annotated[str | None, typer.Option(
        "--profile", help="Whose costs: a shipped profile's name or a file; without, no speed-up is predicted.",
    )] = None,
    nodes: o.Nodes = "auto",
    depth: Annotated[int | None, typer.Option("--depth", help="Deepest draft.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Requests at a time; else 1, or as recorded.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="End after so many steps of requests.")] = None,
    context: Annotated[int, typer.Option("--context", help="With --acceptance: tokens a step stands behind.")] = 512,
    quality: Annotated[float, typer.Option(
        "--quality", help="With --trace: how well stand-ins for neural drafters know the target, to 1.",
    )] = 0.75,
    as_recorded: Annotated[bool, typer.Option(
        "--as-recorded", help="With --trace: plan as many nodes as were planned at each recorded step.",
    )] = False,
    drafter: o.Drafter = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same play.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Play RECIPE without a model: the engine's own loop on a recorded trace, or under acceptance rates by rank.

    Prints tokens per step, the predicted speed-up under a cost profile, and how many tokens steps accepted. Ctrl-C
    prints what was played so far (exit code 130).
    """
    if (trace is None) == (acceptance is None):
        raise UsageError("give --trace FILE or --acceptance RATES, one of them: it says what is accepted")
    o.check_numbers(nodes, 1, 0, None, None)
    from hedgerow.bench.drawing import unicode_ok
    from hedgerow.cost.profiles import load
    from hedgerow.recipes import get
    from hedgerow.simulate import Positional, Recorded, play

    found = get(recipe)
    cost = load(profile) if profile is not None else None
    world: Positional | Recorded
    if trace is not None:
        world = Recorded.of(trace, quality)
        if world.rests and not as_recorded:
            o.say(quiet)(
                f"in {world.rests} recorded steps nothing was to be drafted; --as-recorded repeats that, "
                "else the recipe decides for itself"
            )
    else:
        world = Positional(_rates(acceptance or ""), (context,))
    report = play(
        found, world, cost, nodes=None if nodes == "auto" else int(nodes), depth=depth, batch=batch, steps=steps,
        seed=seed, as_recorded=as_recorded, drafter=drafter, on_progress=_progress(o.say(quiet)),
    )
    if json:
        print(jsonlib.dumps(report.to_dict()))
    else:
        print("\n".join(lines(report, cost, unicode_ok(sys.stdout))))
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def _rates(text: str) -> list[float] | list[list[float]]:
    """Rates by rank, or by depth and rank where the text has semicolons. Raises UsageError."""
    try:
        rows = [[float(x) for x in row.split(",")] for row in text.split(";")]
    except ValueError:
        raise UsageError(
            f"--acceptance is {text!r}; allowed: numbers with commas between ranks and semicolons between depths, "
            "e.g. 0.6,0.2,0.1"
        ) from None
    return rows if len(rows) > 1 else rows[0]


def _progress(say: Callable[[str], None]) -> Callable[[int, int | None], None]:
    """A line about every second; a short play says nothing."""
    last = time.monotonic()

    def progress(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last > EVERY_S:
            last = time.monotonic()
            say(f"played {done:,} steps" + (f" of {total:,}" if total is not None else ""))

    return progress


def lines(report: Report, cost: Profile | None, unicode: bool) -> list[str]:
    """What a report says to people."""
    if report.tau is None:
        return ["no step was played"]
    plus = "±" if unicode else "+-"
    error = f" {plus} {report.tau_error:.3f}" if report.tau_error is not None else ""
    rows = [
        ["recipe", f"{report.recipe} on a {report.world} world, up to {report.nodes} nodes, batch {report.batch}"],
        ["tokens per step", f"{report.tau:.3f}{error} over {report.steps:,} steps, {report.requests} requests"],
        ["drafted", f"{report.mean_nodes:.1f} nodes a step, {report.accepted / report.steps:.2f} of them accepted; "
                    + ", ".join(f"{v:.0%} {k}" for k, v in report.share.items() if v)],
    ]
    if report.known < 1.0:
        rows.append(["trace", f"held {report.known:.1%} of the verified rows"])
    if report.speedup is not None and report.seconds is not None and cost is not None:
        rows.append([
            "speed-up", f"{report.speedup:.3f} under {cost.name}: {report.tok_s:.1f} tokens a second; "
                        f"{report.seconds['draft'] / report.seconds['total']:.0%} of the time is drafting",
        ])
    out = table(["", ""], rows)[1:]
    if len(report.by_context) > 1:
        out += ["", *table(
            ["context", "steps", "tokens per step", "speed-up"],
            [
                [f"from {s.context}", str(s.steps), f"{s.tau:.3f}", f"{s.speedup:.3f}" if s.speedup else "-"]
                for s in report.by_context
            ],
        )]
    most = max(report.histogram)
    bar = "█" if unicode else "#"
    out += ["", *table(
        ["accepted", "steps", ""],
        [
            [str(k), f"{n / report.steps:.1%}", bar * round(WIDTH * n / most)] for k, n in enumerate(report.histogram)
        ],
    )]
    return out
