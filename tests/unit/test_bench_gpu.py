"""The GPU checks run their whole script on tiny shapes on the CPU; without a device they say so in one line."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from hedgerow.bench import gpu, gpusteps, tables
from hedgerow.core.errors import UnknownName
from hedgerow.models.made import SHAPES, random_net, shape
from hedgerow.systems.recorders import TapeRecorder
from tests.cli.conftest import write_model

app = typer.Typer()
app.command()(gpu.main)


def test_the_whole_script_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "figures" / "gpu.json"
    model = write_model(tmp_path / "cycle")
    asked = ["--out", str(out), "--device", "cpu", "--tiny", "--model", str(model)]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    assert result["complete"] and result["verdicts"] and all(result["verdicts"].values())
    for name in ("steps tiny", "steps tiny-moe"):
        cells = result[name]["cells"]
        assert len(cells) == 8 and result[name]["sizes_left"] == 0
        assert {c["kv"] for c in cells} == {"paged", "contiguous"}
        assert all(c["recordings"] >= 1 and not c["why_not"] and c["apart"] < 0.05 for c in cells)
        assert all(c["recorded"]["step_s"] > 0 and c["eager"]["step_s"] > 0 for c in cells)
    assert result["identity"]["prompts"] == 1 and result["identity"]["tokens"] > 0
    assert {(h["batch"], h["rows"]) for h in result["host"]} == {(1, 1), (1, 5), (2, 1), (2, 5)}
    assert result["read_bytes_s"] > 0
    shown = tables.MAKERS["gpu"](result)
    assert "| 5 | 2 | 60 | contiguous |" in shown and "* yes: every size was recorded" in shown
    assert not list(out.parent.glob("*.partial"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    done = CliRunner().invoke(app, ["--out", str(out)])
    assert done.exit_code == 2 and not done.stdout and not out.exists()
    assert done.stderr.startswith("error: no CUDA device can be used (") and done.stderr.count("\n") == 1
    done = CliRunner().invoke(app, ["--out", str(out), "--device", "cpu"])
    assert done.exit_code == 2 and "add --tiny" in done.stderr


def test_what_is_spent_ends_parts_and_a_hang_ends_the_run(tmp_path: Path) -> None:
    report = gpu.Report(tmp_path / "r.json", {"device": "cpu"}, budget_s=0.2)
    net = random_net(shape("tiny"), 1, "cpu")
    seen: list[object] = []
    gpusteps.measure(net, [gpusteps.Size(1, 1, 9)], TapeRecorder, 1, lambda: True, seen.append)
    assert not seen
    left: list[int] = []
    gone = threading.Event()

    def leave(code: int) -> None:
        left.append(code)
        gone.set()

    report.put("cells", [1])
    gpu.watchdog(report, leave)           # the grace is longer than the budget: it barks at once
    assert gone.wait(10) and left == [1]
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["cells"] == [1] and not found["complete"] and "0 s was spent" in found["stopped"]
    time.sleep(0.25)
    assert report.over(1.0)() and not report.over(1e9)()


def test_one_parts_failure_is_not_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(gpu, "steps", broken)
    asked = ["--out", str(tmp_path / "r.json"), "--device", "cpu", "--tiny", "--model", str(tmp_path / "none")]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 1 and "FAILED dense ran to its end" in done.stdout
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["failed experts"] == "out of memory" and result["host"] and "left_out" in result["identity"]
    assert "Texts were not compared" in tables.MAKERS["gpu"](result)


def test_steps_that_disagree_and_texts_that_part_are_failures() -> None:
    cell = {"apart": 0.3, "why_not": "", "batch": 1, "recorded": {"host_s": 0.001}}
    tie, clear = {"near_tie": True}, {"near_tie": False}
    texts = {"prompts": 20, "apart": [tie, clear]}
    found = gpu.verdicts({"device": "H", "steps x": {"cells": [cell, {"left_out": ""}]}, "identity": texts})
    assert list(found.values()) == [False, True, False, False, False]
    assert all(gpu.verdicts({"device": "H", "identity": {"prompts": 20, "apart": [tie]}}).values())


def test_shapes_are_the_published_sizes() -> None:
    assert 7.9e9 < shape("llama-8b").nbytes(32) / 2 < 8.2e9
    assert 30e9 < shape("qwen3-30b-a3b").nbytes(48) / 2 < 31e9
    assert shape("llama-8b").fitting(8e9) == 13 and shape("llama-8b").fitting(1e9) == 0
    assert all(s.fitting(1e15) == s.layers for s in SHAPES.values())
    with pytest.raises(UnknownName, match="Did you mean 'llama-8b'"):
        shape("llama8b")
