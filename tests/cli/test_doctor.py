"""`hedgerow doctor` tells what there is, and survives what there is not."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from hedgerow.cli import doctor
from hedgerow.models import weights

Invoke = Callable[..., Result]


def test_report(invoke: Invoke) -> None:
    result = invoke("doctor")
    assert (result.exit_code, result.stderr) == (0, "")
    machine, backends = result.stdout.split("\n\n")
    found = dict(line.split(maxsplit=1) for line in machine.splitlines())
    assert found["torch"] == importlib.metadata.version("torch")
    assert list(found)[:2] == ["hedgerow", "python"]
    assert {"system", "cpu", "memory", "device", "compiler", "cache"} <= set(found)
    assert backends.splitlines()[0].split() == ["backend", "active", "because"]


def test_json(invoke: Invoke) -> None:
    result = invoke("doctor", "--json")
    found = json.loads(result.stdout)
    assert len(result.stdout.splitlines()) == 1
    assert set(found) == {"versions", "system", "cpu", "device", "compiler", "backends", "cache", "demo"}
    assert found["cpu"]["cores"] >= 1 and found["system"]["memory_bytes"] > 1 << 28
    assert found["cache"]["path"] == str(weights.cache_dir()) and found["cache"]["free_bytes"] >= 0
    products = [b["active"] for b in found["backends"] if b["name"].startswith(("matrix products", "compiled"))]
    assert sorted(products) == [False, False, True]  # one of them, never two or none
    assert all(b["reason"] for b in found["backends"])


def test_no_compiler(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = json.loads(invoke("doctor", "--json").stdout)
    assert found["compiler"] == {"path": None, "effect": "none found: layers are not compiled"}
    compiled = next(b for b in found["backends"] if b["name"] == "compiled layers")
    assert not compiled["active"] and "need a C compiler (gcc), and none was found" in compiled["reason"]


@pytest.mark.parametrize("name", ["torch", "hedgerow.models.weights", "hedgerow.systems.linear"])
def test_a_missing_library(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # importing it raises ImportError
    if "." in name:
        monkeypatch.delattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], raising=False)
    result = invoke("doctor")
    assert result.exit_code == 0 and "hedgerow" in result.stdout
    if name == "torch":
        assert "unknown: torch cannot be imported" in result.stdout


def test_nothing_can_be_found_out(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError

    for probe in ("_cpu", "_device", "_memory", "_backends", "_cache", "_demo"):
        monkeypatch.setattr(doctor, probe, fail)
    result = invoke("doctor")
    assert result.exit_code == 0
    assert "unknown" in result.stdout


def test_demo_state(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "there"))
    found = json.loads(invoke("doctor", "--json").stdout)
    assert found["demo"]["ready"] is False and found["cache"]["state"] == "writable"
    entry = weights.cache_dir() / "models" / f"{weights.DEMO}-{weights.DEMO_VERSION}-abc"
    entry.mkdir(parents=True)
    assert json.loads(invoke("doctor", "--json").stdout)["demo"]["ready"] is False  # without its marker it is not whole
    (entry / weights.MARKER).write_text("{}")
    assert json.loads(invoke("doctor", "--json").stdout)["demo"] == {
        "state": "ready (0.0 GiB)", "ready": True, "path": str(entry)
    }
