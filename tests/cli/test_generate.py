"""`hedgerow generate`: whole outputs, the JSON contract, streams, interrupts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import Result

from hedgerow.core.record import read
from tests.cli.conftest import CYCLE

Invoke = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[bytes]"]

COMMAND = [sys.executable, "-m", "hedgerow.cli.main"]
BYTES = len(CYCLE.encode())               # tokens of one round of the text
STATS = (
    r"{n} tokens \({reason}\)   [\d.]+ tok/s   [\d.]+ tokens per step   \d+ steps in [\d.]+ s   "
    r"prompt \d+ tokens in [\d.]+ s"
)


def run(invoke: Invoke, model: str, *args: str, stdin: bytes = b"") -> Result:
    result = invoke("generate", "-m", model, *args, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result


def parsed(result: Result, schema: dict[str, Any]) -> dict[str, Any]:
    """The object on stdout, valid and alone."""
    assert result.stdout.endswith("\n") and len(result.stdout.splitlines()) == 1
    found = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    jsonschema.validate(found, schema)
    return dict(found)


def test_schema_is_one(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert set(schema["required"]) == set(schema["properties"])


def test_text_and_statistics(invoke: Invoke, cycle_model: str) -> None:
    result = run(invoke, cycle_model, "-n", str(4 * BYTES), "Hi")
    assert result.stdout == CYCLE * 4 + "\n"
    first, second = result.stderr.splitlines()[-2:]
    assert re.fullmatch(STATS.format(n=4 * BYTES, reason="length"), first)
    assert second.startswith("speculation active: recipe auto (exact), up to 15 nodes; ")


def test_plain_says_why_nothing_is_drafted(invoke: Invoke, cycle_model: str) -> None:
    for args in (["--nodes", "0"], ["--recipe", "plain"]):
        result = run(invoke, cycle_model, *args, "-n", str(BYTES), "Hi")
        assert result.stdout == CYCLE + "\n"
        assert result.stderr.splitlines()[-1].startswith("speculation not active: nodes is 0: plain decoding was asked")


def test_quiet(invoke: Invoke, cycle_model: str, schema: dict[str, Any]) -> None:
    result = run(invoke, cycle_model, "--quiet", "-n", "3", "Hi")
    assert (result.stdout, result.stderr) == ("aé\n", "")
    result = run(invoke, cycle_model, "--quiet", "--json", "-n", "3", "Hi")
    assert parsed(result, schema)["text"] == "aé" and result.stderr == ""


def test_json(invoke: Invoke, cycle_model: str, schema: dict[str, Any]) -> None:
    result = run(invoke, cycle_model, "--json", "-n", str(5 * BYTES), "--seed", "7", "Hi")
    found = parsed(result, schema)
    assert result.stderr.startswith(CYCLE * 5 + "\n") or f"\n{CYCLE * 5}\n" in result.stderr
    assert (found["text"], found["finish_reason"]) == (CYCLE * 5, "length")
    assert found["completion_tokens"] == len(found["token_ids"]) == 5 * BYTES
    assert found["committed"] == 5 * BYTES - 1 and found["steps"] == sum(found["histogram"])
    assert found["accepted"] == sum(k * n for k, n in enumerate(found["histogram"]))
    assert found["tokens_per_step"] == found["committed"] / found["steps"] > 1.5
    assert found["acceptance_rate"] == found["accepted"] / found["drafted"]
    assert sum(found["speculation"]["share"].values()) == pytest.approx(1)
    assert found["speculation"]["active"] and found["speculation"]["reason"] is None
    seconds = found["seconds"]
    assert sum(seconds[k] for k in ("prefill", "draft", "verify", "overhead")) == pytest.approx(seconds["total"])
    assert found["tok_s"] == pytest.approx(found["committed"] / (seconds["total"] - seconds["prefill"]))
    assert (found["seed"], found["model"], found["recipe"], found["exact"]) == (7, "cycle", "auto", True)
    assert [found[k] for k in ("plain", "speedup", "identical", "divergence", "profile")] == [None] * 5


def test_one_token(invoke: Invoke, cycle_model: str, schema: dict[str, Any]) -> None:
    found = parsed(run(invoke, cycle_model, "--json", "-n", "1", "Hi"), schema)
    assert (found["text"], found["steps"], found["tokens_per_step"], found["tok_s"]) == ("a", 0, None, None)
    result = run(invoke, cycle_model, "-n", "1", "Hi")
    assert "- tok/s   - tokens per step   0 steps" in result.stderr


def test_end_of_text(invoke: Invoke, cycle_model: str, schema: dict[str, Any]) -> None:
    found = parsed(run(invoke, cycle_model, "--json", "--raw", "End."), schema)
    assert (found["text"], found["finish_reason"], found["completion_tokens"]) == ("", "stop", 1)
    found = parsed(run(invoke, cycle_model, "--json", "--raw", "--min-tokens", "4", "-n", "9", "End."), schema)
    assert found["completion_tokens"] == 9


def test_stop_strings(invoke: Invoke, cycle_model: str, schema: dict[str, Any]) -> None:
    args = ("--json", "--stop", "never", "--stop", "🌳 aé", "-n", "99", "Hi")
    found = parsed(run(invoke, cycle_model, *args), schema)
    assert (found["text"], found["finish_reason"]) == ("aé→", "stop")
    assert found["completion_tokens"] == len("aé→🌳 aé".encode())


def test_prompt_from_stdin(invoke: Invoke, cycle_model: str, schema: dict[str, Any]) -> None:
    def tokens(*args: str, stdin: bytes = b"") -> int:
        found = parsed(run(invoke, cycle_model, "--json", "-n", "2", *args, stdin=stdin), schema)
        return int(found["prompt_tokens"])

    argument = tokens("Grüße")
    assert tokens(stdin="Grüße".encode()) == tokens("-", stdin="Grüße\n".encode()) == argument
    assert tokens("-", stdin="Grüße\r\n".encode()) == argument
    assert tokens("Grüße", stdin=b"not read") == argument
    assert tokens("--raw", stdin="Grüße\n".encode()) == len("Grüße\n".encode())


def test_the_same_seed_gives_the_same_tokens(invoke: Invoke, cycle_model: str, schema: dict[str, Any]) -> None:
    def ids(*args: str) -> list[int]:
        asked = ("--json", "-n", "60", "-t", "3", "--seed", "3", *args, "Hi")
        return list(parsed(run(invoke, cycle_model, *asked), schema)["token_ids"])

    drawn = ids()
    assert drawn == ids("--nodes", "0") == ids("--recipe", "suffix")
    assert drawn != ids("--seed", "4")
    assert len(set(drawn)) > 15           # hot enough to leave the cycle now and then


def test_compare(invoke: Invoke, cycle_model: str, schema: dict[str, Any]) -> None:
    result = run(invoke, cycle_model, "--json", "--compare", "-n", str(6 * BYTES), "Hi")
    found = parsed(result, schema)
    assert found["identical"] is True and found["divergence"] is None
    assert found["plain"]["token_ids"] == found["token_ids"]
    assert found["plain"]["tok_s"] > 0 and found["speedup"] > 0
    lines = result.stderr.splitlines()
    assert lines[-1] == "same tokens as plain decoding: yes"
    assert re.fullmatch(r"plain decoding [\d.]+ tok/s, this [\d.]+ tok/s: [\d.]+ times as fast", lines[-2])


def test_show_tree(invoke: Invoke, cycle_model: str) -> None:
    result = run(invoke, cycle_model, "--quiet", "--show-tree", "-n", str(6 * BYTES), "Hi")
    assert result.stdout == CYCLE * 6 + "\n"
    title, root, *nodes, last = result.stderr.splitlines()
    assert re.match(r"the step that accepted most: \d+ of \d+ draft tokens kept, so \d+ tokens", title)
    kept, drafted = map(int, re.findall(r"\d+", title)[:2])
    assert len(nodes) == drafted and sum("✓" in line for line in nodes) == kept > 3
    assert all(re.search(r"[├└]─ [✓ ] .+ [01]\.\d\d$", line) for line in nodes)
    assert root and last.endswith("is the target's own next token") and last.startswith("→ ")


def test_show_tree_of_plain_decoding(invoke: Invoke, cycle_model: str) -> None:
    result = run(invoke, cycle_model, "--quiet", "--show-tree", "-r", "plain", "-n", "4", "Hi")
    assert result.stderr == "no tree to draw: nothing was drafted\n"


def test_trace(invoke: Invoke, cycle_model: str, schema: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    result = run(invoke, cycle_model, "--json", "--trace", str(file), "-n", "30", "Hi")
    found = parsed(result, schema)
    records = list(read(file))
    assert len(records) == found["steps"] and sum(r.committed for r in records) == 29
    assert "(traced, which is slow)" in result.stderr


def test_streams_whole_characters(invoke: Invoke, cycle_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hedgerow.cli import generate

    pieces: list[str] = []
    monkeypatch.setattr(generate, "_writer", lambda stream: pieces.append)
    run(invoke, cycle_model, "-r", "plain", "-n", str(3 * BYTES), "Hi")
    assert pieces == [*CYCLE * 3, "\n"]   # one character at a time though a token is one byte


def test_a_cut_character_is_replaced_at_the_end_only(invoke: Invoke, cycle_model: str) -> None:
    assert run(invoke, cycle_model, "-q", "-n", str(BYTES + 2), "Hi").stdout == CYCLE + "a\ufffd\n"


def test_a_screen_without_utf8(invoke: Invoke, cycle_model: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "generate", "-m", cycle_model, "-n", str(4 * BYTES), "--show-tree", "Hi"], capture_output=True,
        check=True, timeout=120, env={**os.environ, "PYTHONIOENCODING": "ascii"}, stdin=subprocess.DEVNULL,
    )
    assert done.stdout == b"a??? a??? a??? a??? \n"
    assert b"`- * " in done.stderr


def read_some(process: subprocess.Popen[bytes], count: int) -> bytes:
    """At least `count` bytes of the process's stdout, as they come."""
    assert process.stdout is not None
    text = b""
    while len(text) < count and (more := os.read(process.stdout.fileno(), 4096)):
        text += more
    assert len(text) >= count, process.communicate()[1]
    return text


def test_interrupt_keeps_the_text(start: Start, endless_model: str) -> None:
    process = start("generate", "-m", endless_model, "-n", "100000", "-r", "plain", "Hi")
    text = read_some(process, 3 * BYTES)
    process.send_signal(signal.SIGINT)
    rest, messages = process.communicate(timeout=60)
    said = (text + rest).decode().removesuffix("\n").removesuffix("\ufffd")
    assert process.returncode == 130
    assert said and (CYCLE * (len(said) // len(CYCLE) + 1)).startswith(said)
    assert b"tokens (interrupted)" in messages and b"Traceback" not in messages


def test_interrupt_with_json(start: Start, endless_model: str, schema: dict[str, Any]) -> None:
    process = start("generate", "-m", endless_model, "-n", "100000", "-r", "plain", "--json", "Hi")
    assert process.stderr is not None
    assert CYCLE[0].encode() in os.read(process.stderr.fileno(), 1) + process.stderr.readline(20)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    found = json.loads(out)
    jsonschema.validate(found, schema)
    assert process.returncode == 130
    assert found["finish_reason"] == "interrupted" and found["completion_tokens"] == len(found["token_ids"]) > 0


def test_the_second_interrupt_kills() -> None:
    from hedgerow.cli.terminal import on_interrupt

    stopped: list[bool] = []
    before = signal.getsignal(signal.SIGINT)
    with on_interrupt(lambda: stopped.append(True)) as interrupted:
        assert not interrupted
        signal.raise_signal(signal.SIGINT)
        assert interrupted and stopped == [True]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupted_comparison(
    invoke: Invoke, cycle_model: str, schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hedgerow.bench.compare.compare", interrupted)
    result = invoke("generate", "-m", cycle_model, "--json", "--compare", "-n", "5", "Hi")
    found = parsed(result, schema)
    assert (result.exit_code, found["completion_tokens"], found["plain"]) == (130, 5, None)
    assert result.stderr.splitlines()[-1] == "interrupted: the rest is left out"


def test_a_reader_that_goes_away(start: Start, endless_model: str) -> None:
    process = start("generate", "-m", endless_model, "-n", "100000", "-r", "plain", "Hi")
    read_some(process, BYTES)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    messages = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert b"Error" not in messages and b"Traceback" not in messages


@pytest.mark.model
def test_demo_model(invoke: Invoke, schema: dict[str, Any]) -> None:
    prompt = "Repeat three times: red, green, blue."
    found = parsed(run(invoke, "demo", "--json", "--compare", "-n", "48", prompt), schema)
    assert found["model"] == "SmolLM2-135M-Instruct" and found["speculation"]["active"]
    assert found["identical"] or found["divergence"]["near_tie"]
