"""What `make demo` prints."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
import typer
from rich.console import Console

from hedgerow.bench import demo, workloads
from tests.cli.conftest import CYCLE


def test_three_prompts_side_by_side_and_a_tree(endless_model: str) -> None:
    out = io.StringIO()
    demo.run(Console(file=out, width=120, highlight=False), endless_model, max_tokens=33, repetitions=3)
    text = out.getvalue()
    for prompt in workloads.load("demo"):
        assert f"{prompt.id}: {demo.shorten(prompt.text)}\n" in text
    assert text.count((CYCLE * 3).rstrip()) == 3
    lines = text.splitlines()
    header = next(i for i, line in enumerate(lines) if "speed-up" in line)
    assert lines[header].split() == [
        "prompt", "plain", "tok/s", "tree", "tok/s", "speed-up", "tokens", "per", "step", "identical"
    ]
    for line, name in zip(lines[header + 1 : header + 4], ("chat", "code", "summary"), strict=True):
        cells = line.split()
        assert cells[0] == name and cells[-1] == "yes"
        assert all(float(cell) > 0 for cell in cells[1:5]) and float(cells[4]) > 1.2
    assert "✓" in text and lines[-1].endswith("is the target's own next token")


def test_progress_on_a_terminal_only() -> None:
    screen = io.StringIO()
    with demo.progress(Console(file=screen, force_terminal=True, width=60), "chat") as tick:
        tick(2, 4)
    assert "measuring chat" in screen.getvalue()
    plain = io.StringIO()
    with demo.progress(Console(file=plain, width=60), "chat") as tick:
        tick(2, 4)
    assert plain.getvalue() == ""


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        demo.demo(model="./no/such", max_tokens=3, repetitions=1)
    message = capsys.readouterr().err
    assert left.value.exit_code == 1
    assert message.startswith("Error: model './no/such' is no directory") and len(message.splitlines()) == 1


def test_shorten() -> None:
    assert demo.shorten("a\n b  c") == "a b c"
    assert demo.shorten("word " * 50, 20) == "word word word word…"


@pytest.mark.model
def test_the_demo_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hedgerow.bench.demo", "--max-tokens", "24", "--repetitions", "1"], capture_output=True,
        text=True, timeout=600, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "SmolLM2-135M-Instruct, bf16" in done.stdout and "✓" in done.stdout
