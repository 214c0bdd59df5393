"""`hedgerow chat`, its lines coming from a pipe."""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from hedgerow.cli.chat import History, Live
from hedgerow.core.errors import CapacityError
from tests.cli.conftest import CONTEXT, CYCLE

Invoke = Callable[..., Result]
TURN = len(CYCLE.encode())


@pytest.fixture
def talk(invoke: Invoke, cycle_model: str) -> Callable[..., Result]:
    def run(text: str, *args: str) -> Result:
        return invoke("chat", "-m", cycle_model, "-n", str(TURN), *args, stdin=text.encode())

    return run


def test_turns(talk: Callable[..., Result]) -> None:
    result = talk("Hello\n\nAgain\n/exit\nnot read\n")
    assert result.exit_code == 0
    assert result.stdout == f"{CYCLE}\n{CYCLE}\n"
    status = [line for line in result.stderr.splitlines() if " tok/s " in line]
    assert len(status) == 2
    assert all(re.match(rf"{TURN} tokens   [\d.]+ tok/s   [\d.]+ tokens per step", line) for line in status)


def test_the_end_of_the_input_ends_it(talk: Callable[..., Result]) -> None:
    assert talk("Hello").stdout == CYCLE + "\n"
    assert talk("").stdout == ""


def test_quiet(talk: Callable[..., Result]) -> None:
    result = talk("Hello\n", "--quiet")
    assert (result.stdout, result.stderr) == (CYCLE + "\n", "")


def test_commands(talk: Callable[..., Result]) -> None:
    result = talk("/help\n/reset\n/rest\nHi\n", "--nodes", "0")
    assert result.exit_code == 0 and result.stdout == CYCLE + "\n"
    lines = result.stderr.splitlines()[-6:]
    assert [line.split()[0] for line in lines[:3]] == ["/exit", "/reset", "/help"]
    assert lines[3] == "the conversation is forgotten"
    assert lines[4] == "Error: unknown command '/rest'. Did you mean '/reset'?"
    assert lines[5].endswith("speculation not active: nodes is 0: plain decoding was asked for")


def test_old_turns_go_when_the_context_is_full(talk: Callable[..., Result]) -> None:
    result = talk("".join(f"{'x' * 200} {i}\n" for i in range(4)))
    assert result.stdout == f"{CYCLE}\n" * 4
    gone = f"the conversation no longer fits the context of {CONTEXT} tokens: the oldest 1 turn is forgotten"
    assert result.stderr.splitlines().count(gone) == 2


def test_a_turn_that_never_fits(talk: Callable[..., Result]) -> None:
    result = talk(f"{'x' * (CONTEXT + 1)}\nHello\n")
    assert result.exit_code == 0 and result.stdout == CYCLE + "\n"
    assert re.search(rf"Error: this turn has {CONTEXT + 4} tokens; the context of {CONTEXT} leaves room", result.stderr)


def test_invalid_utf8(invoke: Invoke, cycle_model: str) -> None:
    result = invoke("chat", "-m", cycle_model, "-n", "1", stdin=b"Hi\n\xc3(\n")
    assert (result.exit_code, result.stdout) == (2, "a\n")
    assert result.stderr.splitlines()[-1].startswith("Error: line 2 of stdin is not valid UTF-8: byte 0xc3 at offset 0")


def test_the_model_sees_the_conversation() -> None:
    history = History(session(limit=100), reserve=10)
    assert list(history.ask("one")) == []
    history.answer("two")
    assert list(history.ask("three")) == []
    assert [m["role"] + ":" + m["content"] for m in history.messages] == ["user:one", "assistant:two", "user:three"]
    history.answer(None)                  # interrupted before the first token: the turn is taken back
    assert [m["content"] for m in history.messages] == ["one", "two"]


def test_a_refused_turn_leaves_the_conversation_alone() -> None:
    history = History(session(limit=40), reserve=10)
    list(history.ask("a" * 10))
    history.answer("b" * 10)
    with pytest.raises(CapacityError, match="this turn has 50 tokens; the context of 40 leaves room for 30"):
        list(history.ask("c" * 50))
    assert [m["content"][0] for m in history.messages] == ["a", "b"]


def session(limit: int) -> Any:
    """As much of a session as a history reads: one token a character."""

    class Info:
        max_len = limit

    class Target:
        info = Info

    class Tokenizer:
        @staticmethod
        def chat(messages: list[dict[str, str]]) -> list[int]:
            return [0] * sum(len(m["content"]) for m in messages)

    class Fake:
        target, tokenizer = Target, Tokenizer

    return Fake


def test_interrupt_ends_the_answer_only(
    talk: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hedgerow.cli import chat

    shown = chat.Plain.show

    def interrupt_at_first(self: chat.Plain, text: str, status: str) -> None:
        shown(self, text, status)
        if text and not done:
            done.append(True)
            signal.raise_signal(signal.SIGINT)

    done: list[bool] = []
    monkeypatch.setattr(chat.Plain, "show", interrupt_at_first)
    result = talk("Hello\nAgain\n", "-r", "plain", "-n", "500")
    first, second = result.stdout.splitlines()
    assert result.exit_code == 0
    assert len(first) < 10 and len(second) > 100


def test_a_terminal_keeps_the_status_below(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    live = Live()
    screen = io.StringIO()
    live.console = live.live.console = Console(file=screen, force_terminal=True, width=60, highlight=False)
    with live.open():
        for piece in ("one", " line\ntwo", " lines", "\nthree"):
            live.show(piece, "9.9 tok/s")
    live.end("done")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "")
    assert text.index("one line\n") < text.index("two lines\n") < text.rindex("three\n") < text.rindex("done")
    assert "9.9 tok/s" in text
