"""scripts/setup says in words what is missing, before it changes anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def setup(folder: Path, tools: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the script with nothing but `tools` on the path."""
    return subprocess.run(
        ["/bin/sh", str(ROOT / "scripts" / "setup"), str(folder / "venv")], cwd=ROOT, capture_output=True, text=True,
        env={"PATH": str(tools), **env}, check=False,
    )


def fake(tools: Path, name: str, body: str) -> None:
    """An executable that runs a line of shell."""
    (tools / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    (tools / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    return folder


def test_no_python(tmp_path: Path, tools: Path) -> None:
    run = setup(tmp_path, tools)
    assert run.returncode == 1
    assert run.stderr == (
        "setup: no Python found; install Python 3.11, 3.12 or 3.13, or name it: make setup PYTHON=/path/to/python3.12\n"
    )


def test_python_too_old(tmp_path: Path, tools: Path) -> None:
    fake(tools, "python3", '[ "$1" = --version ] && { echo Python 3.9.2; exit 0; }; exit 1')
    run = setup(tmp_path, tools)
    assert run.returncode == 1
    assert "found only Python 3.9.2; hedgerow runs on Python 3.11, 3.12 or 3.13" in run.stderr


def test_named_python_does_not_work(tmp_path: Path, tools: Path) -> None:
    run = setup(tmp_path, tools, PYTHON="/nowhere/python3")
    assert run.returncode == 1
    assert run.stderr == "setup: PYTHON is '/nowhere/python3', which is no working Python 3.11, 3.12 or 3.13\n"


def test_no_venv_module(tmp_path: Path, tools: Path) -> None:
    fake(tools, "python3", 'case "$2" in *venv*) exit 1;; esac; [ "$1" = --version ] && echo Python 3.11.2; exit 0')
    run = setup(tmp_path, tools)
    assert run.returncode == 1
    assert run.stderr == "setup: python3 has no venv module; on Debian and Ubuntu: apt-get install python3-venv\n"
    assert not (tmp_path / "venv").exists()
