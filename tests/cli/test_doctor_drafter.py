"""`hedgerow doctor --drafter`: a drafter that is known to be right, one that is wrong, and files that are neither."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer
from typer.testing import Result

from hedgerow.core.errors import ModelError
from hedgerow.draft import opening
from hedgerow.draft.formats import Head, HeadConfig, TargetFacts, save_own
from tests.cli.conftest import CYCLE

Invoke = Callable[..., Result]
SIZE = 272                                # of the model that writes a cycle: hidden and vocabulary


def head(model: str, ahead: int) -> Head:
    """One Medusa head that knows the cycle: it reads which byte stands there and names the one `ahead` steps on."""
    cycle = AutoTokenizer.from_pretrained(model).encode(CYCLE)
    weight = torch.zeros(SIZE, SIZE)
    for token in range(SIZE):
        at = cycle.index(token) if token in cycle else -1
        weight[cycle[(at + ahead) % len(cycle)], token] = 1.0
    tensors = {
        "heads.0.blocks.0.weight": torch.zeros(SIZE, SIZE), "heads.0.blocks.0.bias": torch.zeros(SIZE),
        "heads.0.lm_head.weight": weight,
    }
    config = HeadConfig("medusa", SIZE, SIZE, SIZE, SIZE, count=1, depth=1)
    return Head(config, tensors, facts={"seed": 1})


def run(invoke: Invoke, model: str, directory: Path, *more: str) -> Result:
    """The command on the small model, on the CPU."""
    return invoke("doctor", "--drafter", str(directory), "--model", model, "--device", "cpu", *more)


def test_a_drafter_that_is_right(invoke: Invoke, cycle_model: str, tmp_path: Path) -> None:
    save_own(head(cycle_model, 2), tmp_path / "d")
    result = run(invoke, cycle_model, tmp_path / "d", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["layout"], found["kind"], found["taps"], found["hidden"]) == ("hedgerow", "medusa", [], SIZE)
    assert found["card"] == {"seed": 1} and found["target"] == Path(cycle_model).name
    test = found["selftest"]
    assert test["acceptance"] == {"+0": 1.0} and test["tokens"] > 150 and test["reason"] == ""
    assert test["warnings"] == test["suspicions"] == []


def test_a_drafter_that_is_wrong(invoke: Invoke, cycle_model: str, tmp_path: Path) -> None:
    save_own(head(cycle_model, 5), tmp_path / "d")
    result = run(invoke, cycle_model, tmp_path / "d")
    assert result.exit_code == 0, result.stderr
    assert "as declared    0.0%" in result.stdout and "hardly ever right; look at:" in result.stdout
    assert "chat template" in result.stdout and 'card: {"seed": 1}' in result.stdout


def test_a_drafter_that_does_not_fit(invoke: Invoke, cycle_model: str, tmp_path: Path) -> None:
    made_for = TargetFacts(SIZE, SIZE, 1, "another", tokenizer="272 tokens, 0123456789abcdef")
    save_own(head(cycle_model, 2), tmp_path / "d", target=made_for)
    result = run(invoke, cycle_model, tmp_path / "d")
    assert result.exit_code == 1 and isinstance(result.exception, ModelError | SystemExit)
    assert "272 tokens, 0123456789abcdef" in str(result.exception) + result.stderr


def test_a_directory_that_is_none(invoke: Invoke, tmp_path: Path) -> None:
    result = run(invoke, "never-loaded", tmp_path)
    assert result.exit_code == 1 and "holds no weights" in str(result.exception) + result.stderr


def test_a_kind_that_nothing_runs(
    invoke: Invoke, cycle_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "OPENERS", {})
    save_own(head(cycle_model, 2), tmp_path / "d")
    result = run(invoke, cycle_model, tmp_path / "d")
    assert result.exit_code == 0 and "self-test: none, drafters of kind 'medusa'" in result.stdout
