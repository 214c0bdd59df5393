"""Every error once: one line on stderr, nothing on stdout, the right exit code."""

from __future__ import annotations

import io
import re
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from hedgerow.cli.main import explain
from hedgerow.cli.terminal import read_prompt
from hedgerow.core.errors import UsageError
from tests.cli.conftest import CONTEXT

Invoke = Callable[..., Result]

# Found before a model is loaded, so the model named does not matter.
EARLY = {
    "unknown command": (["genrate"], b"", 2, "unknown command 'genrate'. Did you mean 'generate'?"),
    "unknown flag": (["generate", "--recip", "x", "hi"], b"", 2, "unknown option '--recip'. Did you mean '--recipe'?"),
    "strange flag": (["generate", "--zzz", "hi"], b"", 2, "unknown option '--zzz'. `hedgerow generate --help` lists"),
    "unknown flag of the program": (["--versoin"], b"", 2, "unknown option '--versoin'. Did you mean '--version'?"),
    "unknown recipe": (["generate", "-r", "sufix", "hi"], b"", 2, "unknown recipe 'sufix'. Did you mean 'suffix'?"),
    "unknown recipe shown": (["recipes", "show", "autto"], b"", 2, "unknown recipe 'autto'. Did you mean 'auto'?"),
    "unknown command of recipes": (["recipes", "shw"], b"", 2, "unknown command 'shw'. Did you mean 'show'?"),
    "two prompts": (["generate", "a", "b"], b"", 2, "unexpected extra argument"),
    "a flag without its value": (["generate", "hi", "--model"], b"", 2, "'--model' requires an argument"),
    "empty prompt": (["generate", ""], b"", 2, "the prompt is empty"),
    "blank prompt": (["generate", "  \n"], b"", 2, "the prompt is empty"),
    "empty stdin": (["generate"], b"", 2, "the prompt is empty"),
    "a line break on stdin": (["generate", "-"], b"\n", 2, "the prompt is empty"),
    "empty raw prompt": (["generate", "--raw", ""], b"", 2, "the prompt is empty"),
    "no UTF-8 on stdin": (["generate", "-"], b"abc\xffd", 2, "not valid UTF-8: byte 0xff at offset 3"),
    "no UTF-8 in the argument": (["generate", "a\udcff"], b"", 2, "the prompt is not valid UTF-8"),
    "no tokens": (["generate", "-n", "0", "hi"], b"", 2, "--max-tokens is 0; at least 1"),
    "fewer than no tokens": (["generate", "--max-tokens", "-3", "hi"], b"", 2, "--max-tokens is -3; at least 1"),
    "tokens in letters": (["generate", "--max-tokens", "ten", "hi"], b"", 2, "--max-tokens is 'ten'"),
    "tokens in letters, with =": (["generate", "--max-tokens=ten", "hi"], b"", 2, "--max-tokens is 'ten'"),
    "more at least than at most": (["generate", "-n", "4", "--min-tokens", "5", "hi"], b"", 2, "allowed: 0 to --max"),
    "nodes in letters": (["generate", "--nodes", "many", "hi"], b"", 2, "--nodes is 'many'; allowed: 'auto', 0"),
    "fewer than no nodes": (["generate", "--nodes", "-1", "hi"], b"", 2, "--nodes is '-1'; allowed: 'auto', 0"),
    "no threads": (["generate", "--threads", "0", "hi"], b"", 2, "--threads is 0; at least 1"),
    "negative temperature": (["generate", "-t", "-1", "hi"], b"", 2, "temperature is -1.0; allowed: 0"),
    "no mass": (["generate", "--top-p", "0", "hi"], b"", 2, "top_p is 0.0; allowed: more than 0"),
    "negative top-k": (["generate", "--top-k", "-1", "hi"], b"", 2, "top_k is -1; allowed: 0"),
    "min-p above one": (["generate", "--min-p", "2", "hi"], b"", 2, "min_p is 2.0; allowed: 0 to 1"),
    "a profile": (["generate", "--profile", "mine", "hi"], b"", 2, "--profile is 'mine'"),
    "trace in no directory": (["generate", "--trace", "no/such/f", "hi"], b"", 1, "--trace file 'no/such/f' cannot be"),
    "chat without tokens": (["chat", "-n", "0"], b"", 2, "--max-tokens is 0; at least 1"),
    "chat with an unknown recipe": (["chat", "-r", "pain"], b"", 2, "unknown recipe 'pain'. Did you mean 'plain'?"),
    "no such directory": (["generate", "-m", "./no/such", "hi"], b"", 1, "model './no/such' is no directory"),
}


def one_error(result: Result, code: int, message: str) -> None:
    """The result is this error and nothing else."""
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ") and message in lines[0]
    assert result.exit_code == code


@pytest.mark.parametrize("case", EARLY)
def test_errors_before_loading(invoke: Invoke, case: str) -> None:
    args, stdin, code, message = EARLY[case]
    one_error(invoke(*args, stdin=stdin), code, message)


LATE = {
    "prompt longer than the context": (["x" * (CONTEXT + 1)], 1, f"context limit of cycle is {CONTEXT}"),
    "an empty stop string": (["--stop", "", "hi"], 2, "none of them empty"),
    "dtype": (["--dtype", "fp7", "hi"], 2, "dtype is 'fp7'; allowed:"),
    "quant": (["--quant", "int3", "hi"], 2, "quant is 'int3'; allowed:"),
    "nodes for a recipe without drafts": (["-r", "plain", "--nodes", "3", "hi"], 2, "nodes is 3, but recipe 'plain'"),
}


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize("case", LATE)
def test_errors_with_a_model(invoke: Invoke, cycle_model: str, case: str, json: bool) -> None:
    args, code, message = LATE[case]
    one_error(invoke("generate", "-m", cycle_model, *args, *(["--json"] if json else [])), code, message)


def test_no_chat_template(invoke: Invoke, untemplated_model: str) -> None:
    one_error(invoke("generate", "-m", untemplated_model, "hi"), 1, "no chat template; use --raw")
    one_error(invoke("chat", "-m", untemplated_model), 1, "no chat template")
    assert invoke("generate", "-m", untemplated_model, "--raw", "-n", "3", "hi").exit_code == 0


def test_directory_without_a_model(invoke: Invoke, tmp_path: Path) -> None:
    one_error(invoke("generate", "-m", str(tmp_path), "hi"), 1, "is no model: it has no config.json")


def test_truncated_safetensors(invoke: Invoke, cycle_model: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(cycle_model, copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    one_error(invoke("generate", "-m", str(copy), "hi"), 1, "model.safetensors' is truncated")


HEADER = b"GGUF" + struct.pack("<IQQ", 3, 9, 9)


@pytest.mark.parametrize("data", [b"GGUF", b"no GGUF file at all, but long enough", HEADER])
def test_broken_gguf(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "cut.gguf"
    file.write_bytes(data)
    result = invoke("generate", "-m", str(file), "hi")
    assert (result.exit_code, result.stdout) == (1, "")
    error = result.stderr.splitlines()[-1]  # lines before it tell what was going on
    assert re.match(r"Error: .*cut.gguf' (is no GGUF file|cannot be read as a GGUF model)", error)
    assert not list((tmp_path / "cache").rglob("hedgerow.json"))


def test_prompt_is_needed_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(UsageError, match="there is no prompt; give it as an argument, or pipe it in"):
        read_prompt(None, raw=False)


def test_debug_shows_the_traceback(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("generate", "--debug", "-m", str(tmp_path), "hi")
    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback") and "\nError: directory" in result.stderr


def test_what_nobody_expected_is_one_line_too(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError("first\nsecond")

    monkeypatch.setattr("hedgerow.api.load", fail)
    one_error(invoke("generate", "hi"), 1, "unexpected ValueError: first second; --debug shows where")


def test_a_full_disk_is_named() -> None:
    assert explain(OSError(28, "No space left on device", "/tmp/x")) == ("No space left on device: /tmp/x", 1)


def test_interrupt_while_loading(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hedgerow.api.load", interrupted)
    result = invoke("generate", "hi", "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_messages_name_no_python_types(invoke: Invoke) -> None:
    for args, stdin, _, _ in EARLY.values():
        assert not re.search(r"Traceback|Exception|<class", invoke(*args, stdin=stdin).stderr)
