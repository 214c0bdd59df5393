"""What stands between a generation and the terminal: the prompt coming in, Ctrl-C, and what the screen can show."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hedgerow.core.errors import UsageError


def read_prompt(argument: str | None, raw: bool) -> str:
    """The prompt: the argument, or stdin for `-` and for a pipe. A final line break is dropped unless `raw`.

    Raises: UsageError for no prompt at a terminal, an empty one, or text that is not UTF-8.
    """
    if argument is None and sys.stdin.isatty():
        raise UsageError("there is no prompt; give it as an argument, or pipe it in: echo 'Hello' | hedgerow generate")
    if argument is not None and argument != "-":
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError("the prompt is not valid UTF-8; give text in UTF-8") from None
        text = argument
    else:
        text = decode(sys.stdin.buffer.read(), "the prompt on stdin")
        text = text if raw else text.removesuffix("\n").removesuffix("\r")
    if not text.strip() if not raw else not text:
        raise UsageError("the prompt is empty; give some text")
    return text


def decode(data: bytes, what: str) -> str:
    """Bytes as UTF-8 text. Raises UsageError that shows the first bad byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise UsageError(
            f"{what} is not valid UTF-8: byte 0x{data[e.start]:02x} at offset {e.start}; convert it to UTF-8"
        ) from None


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[Interrupted]:
    """Within the block the first Ctrl-C calls `stop` and sets the flag; the second one ends the process."""
    seen = Interrupted()

    def first(signum: int, frame: Any) -> None:
        seen.flag = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stop()

    before = signal.signal(signal.SIGINT, first)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


class Interrupted:
    """Whether Ctrl-C came."""

    flag = False

    def __bool__(self) -> bool:
        return self.flag
