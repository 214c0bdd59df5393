"""`make demo`: plain decoding and a token tree side by side on three real prompts, then one tree as it was drawn.

Both run on the same loaded model, in turns; every run starts with empty drafters.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from hedgerow.core.errors import HedgerowError

RECIPE = "auto"


def demo(
    model: Annotated[str, typer.Option("--model", help="What `hedgerow generate --model` takes.")] = "demo",
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Tokens a run.")] = 64,
    repetitions: Annotated[int, typer.Option("--repetitions", help="Timed pairs a prompt.")] = 3,
) -> None:
    """Show plain decoding and a tree side by side on three prompts."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        run(console, model, max_tokens, repetitions)
    except HedgerowError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(130) from None


def run(console: Console, model: str, max_tokens: int, repetitions: int) -> None:
    """Load, compare on each prompt, print. Raises HedgerowError."""
    console.print("Loading the model (the first time it is fetched and converted) …")
    from hedgerow import api
    from hedgerow.bench import workloads
    from hedgerow.bench.compare import compare
    from hedgerow.bench.drawing import print_tree, sameness

    session = api.load(model, recipe=RECIPE, max_batch=1, report=console.print)
    info = session.target.info
    console.print(
        f"{info.name}, {info.dtype} on {info.device}, {info.backend}; loaded in "
        f"{session.seconds_load:.1f} s\n"
        f"recipe {RECIPE} with up to {session.nodes} draft nodes against plain decoding; greedy, {max_tokens} tokens, "
        f"the median of {repetitions} interleaved pairs\n"
    )
    prompts = workloads.load("demo")
    best, decode = None, session.tokenizer.decode
    table = Table("prompt", "plain tok/s", "tree tok/s", "speed-up", "tokens per step", "identical", box=None)
    for prompt in prompts:
        with progress(console, prompt.id) as tick:
            result, step = compare(
                session, prompt.messages, repetitions=repetitions, progress=tick, max_tokens=max_tokens
            )
        if step and (best is None or len(step.verdict.path) > len(best.verdict.path)):
            best = step
        console.print(Text(f"{prompt.id}: {shorten(prompt.text)}", style="bold"))
        console.print(Text(f"  {shorten(result.text, 200)}\n"))
        plain = result.plain["tok_s"] if result.plain else None
        table.add_row(
            prompt.id, _number(plain, ".1f"), _number(result.tok_s, ".1f"), _number(result.speedup, ".2f"),
            _number(result.tokens_per_step, ".2f"), sameness(result),
        )
    console.print(table)
    console.print()
    print_tree(best, decode, console.file)


@contextmanager
def progress(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar while a prompt is measured, on a terminal; nothing elsewhere."""
    if not console.is_terminal:
        yield lambda done, of: None
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), console=console, transient=True) as bar:
        task = bar.add_task(f"measuring {name}")
        yield lambda done, of: bar.update(task, completed=done, total=of)


def shorten(text: str, length: int = 76) -> str:
    """The beginning of a text on one line."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    typer.run(demo)
