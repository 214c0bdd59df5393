"""The command line starts at once, and helps."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable

import pytest
from typer.testing import Result

from hedgerow import __version__

Invoke = Callable[..., Result]
FLAGS = [
    "model", "recipe", "drafter", "nodes", "max-tokens", "min-tokens", "temperature", "top-p", "top-k", "min-p", "seed",
    "stop", "raw", "quant", "dtype", "device", "threads", "profile", "trace", "no-compile", "compare", "show-tree",
    "json", "quiet", "debug",
]
HEAVY = ("torch", "numpy", "scipy", "transformers", "tokenizers", "rich", "jaxtyping")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from hedgerow.cli.main import app\n"
        "try: app(['generate', '--help'])\n"
        "except SystemExit as e: assert not e.code\n"
        f"heavy = sorted(set({HEAVY!r}) & set(sys.modules))\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "--show-tree" in done.stdout


def test_help_takes_half_a_second() -> None:
    def cpu_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = cpu_s()
    subprocess.run([sys.executable, "-m", "hedgerow.cli.main", "--help"], capture_output=True, timeout=60, check=True)
    assert cpu_s() - before < 0.5         # processor time, so that a busy machine does not fail it


def test_version(invoke: Invoke) -> None:
    assert invoke("--version").stdout == f"hedgerow {__version__}\n"


def test_without_a_command(invoke: Invoke) -> None:
    result = invoke()
    assert result.exit_code == 0
    assert result.stdout == invoke("--help").stdout


@pytest.mark.parametrize("command", ["generate", "chat", "recipes", "doctor"])
def test_help(invoke: Invoke, command: str) -> None:
    result = invoke(command, "-h")
    assert result.exit_code == 0 and result.stdout.startswith(f"Usage: hedgerow {command} ")


def test_flags_of_the_contract(invoke: Invoke) -> None:
    text = invoke("generate", "--help").stdout
    for flag in FLAGS:
        assert f"--{flag} " in text or f"--{flag}\n" in text
