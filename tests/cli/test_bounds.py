"""`hedgerow bounds`: what an oracle could reach on a recorded generation, checked against the target itself."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from hedgerow.bench.bounds import Known, bounds, oracle_tree, stories
from hedgerow.cli.main import app
from hedgerow.core.parts import Sampling
from hedgerow.core.probs import entropy
from hedgerow.core.record import read
from hedgerow.recipes import get
from hedgerow.verify.theory import speed_of_light
from tests.unit.simulate_kit import Recorded, run, tiny


def invoke(*args: str) -> Result:
    return CliRunner().invoke(app, ["bounds", *args])


@pytest.fixture
def greedy(tmp_path: Path) -> Recorded:
    return run(tiny(), get("recycle"), tmp_path / "greedy.jsonl", Sampling(), runs=[(30, 20)])


@pytest.fixture
def sampled(tmp_path: Path) -> Recorded:
    return run(tiny(), get("recycle"), tmp_path / "sampled.jsonl", Sampling(1.0), runs=[(30, 20)])


def test_greedy_text_holds_no_surprise_for_an_oracle(greedy: Recorded) -> None:
    found = bounds(greedy.path)
    assert found["tau"] == pytest.approx(greedy.tau) and found["requests"] == 2 and found["temperatures"] == [0.0]
    assert found["tokens"] == 48 and found["rows"] == 48
    assert found["laws"]["sampled"] is None and found["laws"]["raw"]["mu"] > 0.0
    assert [h["hit"] for h in found["hits"]] == [1.0] * 6, "the argmax is the text"
    for b in found["budgets"]:
        assert found["tau"] <= b["oracle_tau"] + 1e-9 and b["ceiling_sampled"] is None
    for story in stories(read(greedy.path)):
        root = story.roots[0]
        left = len(story.text) - 1 - root
        assert oracle_tree(story, root, 7) == [float(n) for n in range(1, min(7, left) + 1)]


def test_sampled_text_meets_theory_and_the_targets_own_rows(sampled: Recorded) -> None:
    found = bounds(sampled.path, budgets=(1, 7))
    assert found["laws"]["sampled"]["mu"] == pytest.approx(found["laws"]["raw"]["mu"], abs=1e-4)
    rows = []
    for story in stories(read(sampled.path)):
        for position, token in story.chosen:
            row = story.row(position, ())
            assert row is not None and token in row.ids
            p = row.law(Sampling(1.0))
            assert p.sum() == pytest.approx(1.0), "48 tokens: all of them are listed"
            assert row.entropy == pytest.approx(entropy(p), abs=1e-5)
            rows.append(p)
        best = oracle_tree(story, story.roots[0], 5)
        first = story.row(story.roots[0], ())
        assert first is not None and best[0] == pytest.approx(first.law(Sampling(1.0)).max())
        assert all(0.0 < b - a <= best[0] + 1e-12 for a, b in pairwise(best))
    light = speed_of_light(rows, 7)
    assert found["laws"]["sampled"]["mu2"] == pytest.approx(light.mu2)
    assert found["budgets"][1]["ceiling_sampled"] == pytest.approx(light.ceiling)
    assert found["budgets"][1]["bound_sampled"] == pytest.approx(light.bound)
    assert found["budgets"][0]["ceiling_sampled"] == 0.0
    mass = [h["mass"] for h in found["hits"]]
    assert mass == sorted(mass) and found["hits"][-1]["hit"] == 1.0


def test_unlisted_tokens_add_at_least_their_mean_surprise() -> None:
    p = np.array([0.6, 0.2, 0.1, 0.06, 0.04])
    head = Known([0, 1], np.log(p[:2]), 0.0, entropy(p))
    mu, mu2 = head.surprise(None)
    assert mu == pytest.approx(entropy(p))
    assert (p[:2] * np.log(p[:2]) ** 2).sum() < mu2 <= (p * np.log(p) ** 2).sum()
    assert head.surprise(Sampling(0.5))[0] == pytest.approx(entropy(np.array([0.9, 0.1])))


def test_the_command_prints_and_its_json_is_one_line(sampled: Recorded, greedy: Recorded) -> None:
    result = invoke("--trace", str(sampled.path), "--json")
    assert result.exit_code == 0 and result.stdout.count("\n") == 1
    found = json.loads(result.stdout)
    assert set(found) == {
        "trace", "requests", "steps", "tokens", "tau", "temperatures", "rows", "laws", "budgets", "hits",
    }
    assert all(math.isfinite(b["oracle_tau"]) for b in found["budgets"])
    shown = invoke("--trace", str(sampled.path)).stdout
    assert "temperature 1" in shown and "ln P/mu (sampled)" in shown and "best oracle tree" in shown
    assert "ln P/mu (raw)" in invoke("--trace", str(greedy.path)).stdout


def test_what_is_no_trace_is_refused(tmp_path: Path, greedy: Recorded) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert invoke("--trace", str(empty)).exit_code == 2
    assert invoke("--trace", str(tmp_path / "nowhere.jsonl")).exit_code == 1
    half = tmp_path / "half.jsonl"
    half.write_text("\n".join(greedy.path.read_text().splitlines()[1:]))
    assert "not its first" in invoke("--trace", str(half)).stderr
