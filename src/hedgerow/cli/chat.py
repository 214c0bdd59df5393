"""`hedgerow chat`: a conversation, with the speed of the answer in a status line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hedgerow.cli import options as o
from hedgerow.cli.terminal import decode, on_interrupt
from hedgerow.core.errors import CapacityError, HedgerowError, UnknownName

if TYPE_CHECKING:
    from hedgerow.api import Result, Session

HELP = {
    "/exit": "leave (so does the end of the input)",
    "/reset": "forget the conversation",
    "/help": "this list",
}


def chat(
    model: o.Model = "demo",
    recipe: o.RecipeName = "auto",
    drafter: o.Drafter = None,
    nodes: o.Nodes = "auto",
    max_tokens: o.MaxTokens = 512,
    min_tokens: o.MinTokens = 0,
    temperature: o.Temperature = 0.0,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    min_p: o.MinP = 0.0,
    seed: o.Seed = 0,
    quant: o.Quant = "none",
    stream: o.Stream = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    profile: o.Profile = None,
    no_compile: o.NoCompile = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Talk with a model, one line a turn.

    /help lists the commands, Ctrl-C ends an answer, /exit ends it all. A status line shows tokens per second and
    tokens per step. Lines are read from stdin when it is not a terminal.
    """
    o.check_numbers(nodes, max_tokens, min_tokens, threads, profile)
    o.check_law(temperature, top_p, top_k, min_p)
    report = o.say(quiet)
    session = o.open_session(
        model, recipe, drafter, nodes, quant, dtype, device, threads, no_compile, report, stream=stream
    )
    asked = {
        "max_tokens": max_tokens, "min_tokens": min_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k,
        "min_p": min_p, "seed": seed,
    }
    history = History(session, reserve=max_tokens)
    history.check()
    for line in _lines():
        text = line.strip()
        if text == "/exit":
            return
        if not text:
            continue
        try:
            if text.startswith("/"):
                _command(text, history, report)
                continue
            for message in history.ask(text):
                report(message)
        except HedgerowError as error:
            print(f"Error: {error}", file=sys.stderr)
            continue
        screen: Screen = Live() if sys.stdout.isatty() and not quiet else Plain(report)
        history.answer(_answer(session, history.messages, asked, screen))


def _command(text: str, history: History, report: Callable[[str], None]) -> None:
    if text == "/reset":
        history.messages.clear()
        report("the conversation is forgotten")
    elif text == "/help":
        for name, what in HELP.items():
            report(f"{name:<8}{what}")
    else:
        raise UnknownName("command", text.split()[0], HELP)


def _answer(session: Session, messages: list[dict[str, str]], asked: dict[str, Any], screen: Screen) -> str | None:
    """Stream one answer; Ctrl-C ends it and keeps what there is: None before its first token."""
    from hedgerow.bench.compare import watch

    watched, watcher = watch(session)
    result: Result | None = None
    tokens, first = 0, 0.0
    with on_interrupt(watched.cancel), screen.open():
        for chunk in watched.stream(messages, **asked):
            now = time.perf_counter()
            first = first or now
            tokens += len(chunk.token_ids)
            screen.show(chunk.text, _status(tokens, watcher.steps, now - first))
            result = chunk.result or result
    if result is None:
        return None
    screen.end(_status(
        tokens, result.steps, result.seconds["total"] - result.seconds["prefill"],
        "" if result.speculation["active"] else f"   speculation not active: {result.speculation['reason']}",
    ))
    return result.text


def _status(tokens: int, steps: int, seconds: float, more: str = "") -> str:
    speed = f"{(tokens - 1) / seconds:.1f}" if seconds > 0 and tokens > 1 else "-"
    tau = f"{(tokens - 1) / steps:.2f}" if steps else "-"
    return f"{tokens} tokens   {speed} tok/s   {tau} tokens per step{more}"


@dataclass
class History:
    """The turns so far, kept short enough for the context: prompt and `reserve` tokens of an answer (at most a quarter
    of the context) must fit; the oldest turns go first.
    """

    session: Session
    reserve: int
    messages: list[dict[str, str]] = field(default_factory=list)

    def check(self) -> None:
        """Raises ModelError where the model has no chat template, before the first turn."""
        self.session.tokenizer.chat([{"role": "user", "content": "Hello"}])

    def ask(self, text: str) -> Iterator[str]:
        """Add a user's turn; yields a message if old turns had to go.

        Raises: CapacityError if the turn alone is too long; the conversation is then what it was.
        """
        limit = self.session.target.info.max_len
        room = limit - min(self.reserve, limit // 4)
        turn = {"role": "user", "content": text}
        kept = [*self.messages]
        while (length := len(self.session.tokenizer.chat([*kept, turn]))) > room and kept:
            kept = kept[2:]
        if length > room:
            raise CapacityError(
                f"this turn has {length} tokens; the context of {limit} leaves room for {room}: say it in fewer words"
            )
        gone = (len(self.messages) - len(kept)) // 2
        self.messages = [*kept, turn]
        if gone:
            yield (
                f"the conversation no longer fits the context of {limit} tokens: the oldest {gone} "
                f"{'turn is' if gone == 1 else 'turns are'} forgotten"
            )

    def answer(self, text: str | None) -> None:
        """Add the assistant's turn; None takes the user's turn back."""
        if text is None:
            self.messages.pop()
        else:
            self.messages.append({"role": "assistant", "content": text})


class Screen(Protocol):
    """Where an answer is shown."""

    def open(self) -> Any:
        """A context for one answer."""

    def show(self, text: str, status: str) -> None:
        """More text, and the status at this moment."""

    def end(self, status: str) -> None:
        """The answer is complete."""


@dataclass
class Plain:
    """Text to stdout as it comes, the status to stderr when it is complete."""

    report: Callable[[str], None]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Nothing to prepare."""
        yield

    def show(self, text: str, status: str) -> None:
        """Write the text."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def end(self, status: str) -> None:
        """End the line and report."""
        sys.stdout.write("\n")
        sys.stdout.flush()
        self.report(status)


class Live:
    """A terminal: finished lines scroll by, the unfinished one and the status stay below them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self.console = Console(highlight=False)
        self.live = RichLive(console=self.console, transient=True, refresh_per_second=12, vertical_overflow="visible")
        self.line = ""

    @contextmanager
    def open(self) -> Iterator[None]:
        """The area below is there as long as the answer runs."""
        with self.live:
            yield

    def show(self, text: str, status: str) -> None:
        """Print what is complete, redraw the rest."""
        from rich.console import Group
        from rich.text import Text

        *done, self.line = (self.line + text).split("\n")
        for line in done:
            self.console.print(Text(line))
        self.live.update(Group(Text(self.line), Text(status, style="dim")))

    def end(self, status: str) -> None:
        """Print the last line and the final status."""
        from rich.text import Text

        self.console.print(Text(self.line))
        self.console.print(Text(status, style="dim"))


def _lines() -> Iterator[str]:
    """The user's lines: from a prompt on a terminal, else from stdin to its end. Raises UsageError for bad UTF-8."""
    if not sys.stdin.isatty():
        for number, line in enumerate(sys.stdin.buffer, 1):
            yield decode(line, f"line {number} of stdin")
        return
    import readline  # noqa: F401 - arrow keys and history at the prompt

    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
