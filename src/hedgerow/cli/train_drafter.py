"""`hedgerow train eagle3 …`: a drafter for your model, trained on text the model writes itself."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hedgerow.cli import options as o
from hedgerow.cli.terminal import on_interrupt
from hedgerow.core.errors import UsageError

if TYPE_CHECKING:
    from hedgerow.train.job import Told
    from hedgerow.train.trainer import Checked, Progress

class Usual(NamedTuple):
    """What a command says of its method: a line about it, and what holds where the options are left out."""

    about: str
    steps: int
    counted: str                          # what --steps counts
    layers: int = 1


METHODS = {
    "eagle3": Usual(
        "One layer that continues the target's features, trained as it drafts (EAGLE-3).", 3, "unrolled steps",
    ),
    "dflash": Usual("A block of tokens filled in one pass (DFlash).", 7, "depths of a block of 8"),
    "dspark": Usual("A block, corrected by the token before (DSpark).", 7, "depths of a block of 8"),
    "domino": Usual("A block, corrected along the path (Domino).", 15, "depths of a block of 16"),
    "medusa": Usual("Heads side by side on the last hidden state (Medusa).", 4, "heads"),
    "hydra": Usual("Heads that read the path before them (Hydra).", 4, "heads"),
    "independent": Usual("A few of the model's layers as a language model of their own.", 5, "depths validated", 4),
}
"""What can be trained; `train.methods` has the same names and numbers."""

HELP = """The model writes prompts and answers; the drafter learns from what the model saw meanwhile.

Ctrl-C ends it with what is learned so far; the same command goes on. MT-bench, HumanEval and the first 100 rows of
GSM8K are for evaluation: written prompts that share eight words with one of them are dropped."""



def about(name: str) -> str:
    """The help of a method's command."""
    usual = METHODS[name]
    return f"{usual.about} {HELP}\n\nUsual here: --layers {usual.layers}, --steps {usual.steps} ({usual.counted})."


EVALUATION = ("mt_bench", "gsm8k", "humaneval")
EXPORTED = "exported.json"                 # where a run's drafter was written: it may be replaced there
INTERRUPTED = 130


def drafter(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option("--out", help="Where the drafter goes: a new directory.")],
    model: o.Model = "demo",
    run: Annotated[Path | None, typer.Option("--run", help="The run's folder; the same one again goes on.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Budget of the whole run.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", help="Answer tokens the model writes, at most.")] = 1_000_000,
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the text, without --minutes.")] = 3,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="Your prompts, one a line (text or JSON); else the model's own.")
    ] = None,
    draft_vocab: Annotated[int, typer.Option("--draft-vocab", help="Tokens the drafter knows.")] = 8192,
    taps: Annotated[str, typer.Option("--taps", help="Hidden states to read, as 2,15,27; else the method's.")] = "",
    layers: Annotated[int | None, typer.Option("--layers", help="Layers of the drafter; else the usual.")] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Unrolled steps, heads, or depths of a block; else the usual.")
    ] = None,
    align: Annotated[float, typer.Option("--align", help="eagle3: weight of HASS's top-k loss.")] = 0.0,
    tree_reward: Annotated[float, typer.Option("--tree-reward", help="eagle3: weight of GTO's tree reward.")] = 0.0,
    batch: Annotated[int, typer.Option("--batch", help="Texts written side by side.")] = 64,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    threads: o.Threads = None,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Train a drafter of the command's name; see `HELP`."""
    method, tapped = str(ctx.info_name), _taps(taps)
    for name, value in (("layers", layers), ("steps", steps), ("epochs", epochs)):
        if value is not None and value < 1:
            raise UsageError(f"--{name} is {value}; at least 1 is needed")
    from hedgerow.models import weights

    folder = (run or weights.cache_dir() / "train" / _plain(model)).expanduser()
    _free(out, folder / method)
    import torch

    from hedgerow.bench.workloads import load
    from hedgerow.train.job import Job
    from hedgerow.train.methods import METHODS as KNOWN
    from hedgerow.train.methods import Options
    from hedgerow.train.run import Run
    from hedgerow.train.trainer import Settings

    chosen = KNOWN[method]
    for name, weight in (("align", align), ("tree_reward", tree_reward)):
        _check_weight(name, weight, method, [m for m, known in KNOWN.items() if name in known.terms])
    job = Job(
        model, folder, tokens, minutes, prompts, draft_vocab, tapped, batch, seed, threads, device,
        Settings(epochs=epochs, seed=seed), tuple(p.text for family in EVALUATION for p in load(family)),
    )
    wanted = Options(layers or chosen.layers, steps or chosen.steps, align, tree_reward, seed)
    if threads is not None:
        torch.set_num_threads(threads)
    with _shown(quiet) as told:
        work = Run(job, method, chosen, wanted, told)
        with on_interrupt(work.stop) as interrupted:
            result = work()
    say = o.say(quiet)
    if result is None:
        say(f"interrupted before anything was learned; the same command goes on in {folder}")
        raise typer.Exit(INTERRUPTED)
    chosen.save(result.method, out, result.facts, result.target.facts(weights.name_of(model)))
    _remember(out, folder / method)
    best = result.facts["validation"]
    say(
        f"best of {result.best}: τ of a 15-node tree {best['tree']:.2f}, of a chain {best['chain']:.2f} (simulated); "
        f"written to {out}"
    )
    if interrupted:
        say("interrupted: the same command goes on and replaces it")
        raise typer.Exit(INTERRUPTED)


def _free(out: Path, run: Path) -> None:
    """Raises UsageError for an output directory with anything in it that this run did not write."""
    if out.is_file():
        raise UsageError(f"--out {out} is a file; give a new directory")
    if out.exists() and any(out.iterdir()) and str(out.resolve()) not in _exported(run):
        raise UsageError(f"--out {out} is not empty, and nothing this run wrote; give a new directory")


def _exported(run: Path) -> list[str]:
    file = run / EXPORTED
    found: list[str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return found


def _remember(out: Path, run: Path) -> None:
    known = _exported(run)
    if str(out.resolve()) not in known:
        (run / EXPORTED).write_text(json.dumps([*known, str(out.resolve())]), encoding="utf-8")


def _check_weight(name: str, weight: float, method: str, known: list[str]) -> None:
    """Refuse a loss the method has not, or a weight below 0. Raises UsageError."""
    flag = "--" + name.replace("_", "-")
    if not 0 <= weight < float("inf"):
        raise UsageError(f"{flag} is {weight}; allowed: 0 or more")
    if weight and method not in known:
        raise UsageError(f"{flag} is a loss of {', '.join(known)}; {method} has none of that name: leave it out")


def _taps(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(f"--taps is {text!r}; numbers of hidden states are expected, as 2,15,27") from None


def _plain(model: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in model)[-40:]


class _shown:
    """Progress bars on stderr for the stages of a run, and a line for every validation."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def __enter__(self) -> Told:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        from hedgerow.train.job import Told

        if self.quiet:
            self.bar: Any = None
            return Told()
        console = Console(file=sys.stderr)
        self.bar = Bars(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), console=console
        )
        tasks: dict[str, Any] = {}
        began: dict[str, tuple[float, int]] = {}

        def task(name: str, total: float) -> Any:
            if name not in tasks:
                self.bar.start()          # not before: an empty one would leave blank lines
                tasks[name] = self.bar.add_task(name, total=total)
            return tasks[name]

        def count(what: str, done: int, total: int) -> None:
            first = began.setdefault(what, (time.monotonic(), done))
            rate = (done - first[1]) / max(time.monotonic() - first[0], 1e-6)
            self.bar.update(task(what, total), completed=done, description=f"{what} ({rate:.0f}/s)")

        def update(share: float, progress: Progress, checked: Checked | None) -> None:
            rate = progress.rows / max(progress.seconds, 1e-6)
            self.bar.update(
                task("training", 1.0), completed=min(share, 1.0),
                description=f"update {progress.update}, pass {progress.epoch + 1} ({rate:.0f} positions/s)",
            )
            if checked is not None:
                depths = " ".join(f"{x:.2f}" for x in checked.by_depth)
                console.print(
                    f"update {progress.update}: loss {checked.loss:.3f}, accepted by depth {depths}, "
                    f"τ chain {checked.chain:.2f}, tree of 15 {checked.tree:.2f}", highlight=False, soft_wrap=True,
                )

        return Told(lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True), count, update)

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None and self.bar.tasks:
            self.bar.stop()

