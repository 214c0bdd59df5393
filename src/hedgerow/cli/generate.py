"""`hedgerow generate`: one text, streamed, with what it cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from hedgerow.cli import options as o
from hedgerow.cli import render
from hedgerow.cli.terminal import on_interrupt, read_prompt
from hedgerow.core.errors import HedgerowError

if TYPE_CHECKING:
    from hedgerow.api import Result, Session

INTERRUPTED = 130


def generate(
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT|-", help="Text, or `-` for stdin.")] = None,
    model: o.Model = "demo",
    recipe: o.RecipeName = "auto",
    drafter: o.Drafter = None,
    nodes: o.Nodes = "auto",
    max_tokens: o.MaxTokens = 256,
    min_tokens: o.MinTokens = 0,
    temperature: o.Temperature = 0.0,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    min_p: o.MinP = 0.0,
    seed: o.Seed = 0,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be repeated.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The prompt as it is, without the chat template.")] = False,
    quant: o.Quant = "none",
    stream: o.Stream = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    profile: o.Profile = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write a JSON line per step (slows it down).")] = None,
    no_compile: o.NoCompile = False,
    compare: Annotated[bool, typer.Option("--compare", help="Time plain decoding as well, in turns.")] = False,
    show_tree: Annotated[bool, typer.Option("--show-tree", help="Draw the tree that accepted most.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, the rest on stderr.")] = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Generate from PROMPT, or from stdin.

    The text goes to stdout as it comes, messages and statistics to stderr. The chat template of the model is applied
    unless --raw is given. Ctrl-C ends the text after the current step (exit code 130).
    """
    o.check_numbers(nodes, max_tokens, min_tokens, threads, profile)
    o.check_law(temperature, top_p, top_k, min_p)
    text = read_prompt(prompt, raw)
    report = o.say(quiet)
    asked: dict[str, Any] = {
        "raw": raw, "max_tokens": max_tokens, "min_tokens": min_tokens, "temperature": temperature, "top_p": top_p,
        "top_k": top_k, "min_p": min_p, "seed": seed, "stop": stop or [],
    }
    with ExitStack() as closing:
        if json:  # whatever a library prints must not come between
            closing.enter_context(redirect_stdout(sys.stderr))
        lines = closing.enter_context(_open(trace)) if trace else None
        session = o.open_session(
            model, recipe, drafter, nodes, quant, dtype, device, threads, no_compile, report, stream=stream
        )
        session.request(text, **asked)  # a bad request is refused before the first word is printed
        out = _silent if json and quiet else _writer(sys.stdout)
        result, interrupted = _stream(replace(session, trace=_tracer(lines)), text, asked, out)
        for line in render.stats(result, traced=trace is not None):
            report(line)
        try:
            if (compare or show_tree) and not interrupted:
                result = _more(session, text, asked, result, compare, show_tree, report)
        except KeyboardInterrupt:
            report("interrupted: the rest is left out")
            interrupted = True
    if json:
        print(result.to_json())
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _stream(session: Session, text: str, asked: dict[str, Any], out: Callable[[str], None]) -> tuple[Result, bool]:
    """The visible run: text to `out` as it comes; Ctrl-C ends it after the current step."""
    result: Result | None = None
    last = ""
    with on_interrupt(session.cancel) as interrupted:
        for chunk in session.stream(text, **asked):
            if chunk.text:
                out(chunk.text)
                last = chunk.text
            result = chunk.result or result
    if result is None:  # Ctrl-C came before the first token
        raise KeyboardInterrupt
    if not last.endswith("\n"):
        out("\n")
    return result, bool(interrupted)


def _more(
    session: Session, text: str, asked: dict[str, Any], result: Result, compare: bool, show_tree: bool,
    report: Callable[[str], None],
) -> Result:
    """The runs behind --compare and --show-tree; the tree goes to stderr, --quiet or not."""
    from hedgerow.bench import compare as bench
    from hedgerow.bench.drawing import print_tree

    if compare:
        result, best = bench.compare(
            session, text, progress=lambda n, of: report(f"comparing with plain decoding: run {n} of {of}"), **asked
        )
        for line in render.comparison(result):
            report(line)
    else:
        watched, watcher = bench.watch(session.fresh())
        watched.generate(text, **asked)
        best = watcher.best
    if show_tree:
        print_tree(best, session.tokenizer.decode, sys.stderr)
    return result


def _open(trace: Path) -> TextIO:
    """The file a trace goes to. Raises HedgerowError where it cannot be written."""
    try:
        return trace.open("w", encoding="utf-8")
    except OSError as e:
        raise HedgerowError(f"--trace file {str(trace)!r} cannot be written: {e.strerror}; name another file") from None


def _writer(stream: TextIO) -> Callable[[str], None]:
    def write(text: str) -> None:
        stream.write(text)
        stream.flush()

    return write


def _silent(text: str) -> None:
    """Nowhere."""


def _tracer(lines: TextIO | None) -> Callable[[Any], None] | None:
    """Each record becomes a whole line at once, so that what an interrupted run leaves can be read."""
    if lines is None:
        return None

    def write(record: Any) -> None:
        lines.write(record.to_json() + "\n")
        lines.flush()

    return write
