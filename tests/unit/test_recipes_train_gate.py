"""`hedgerow train gate`: what it reads from a trace, what it writes, what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from hedgerow.cli.main import app
from hedgerow.cli.train import Sample, path_entropy, samples
from hedgerow.core.parts import Sampling
from hedgerow.core.record import StepRecord, read
from hedgerow.policy.learned import Classified, Ffn, read_bins
from hedgerow.recipes import get
from hedgerow.testing.toy import play, random_law
from tests.unit.simulate_kit import run, tiny

STEP = StepRecord(
    request=0, step=0, position=4, root=9, proposed=4,
    tree={"parent": [-1, 0, -1, 2], "survival": [0.5, 0.4, 0.25, 0.1]},
    path=[0], token=3, stop="residual", committed=2, seconds={}, batch=1, rows=5, plan_nodes=4,
    entropy=[0.1, 0.2, 0.3, 0.4, 0.5],
)


def train(trace: Path, method: str, out: Path, *more: str) -> Result:
    args = ["train", "gate", "--trace", str(trace), "--method", method, "--out", str(out), *more]
    return CliRunner().invoke(app, args)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    return run(tiny(), get("suffix"), path, Sampling(), runs=[(40, 60)]).path


def made(path: Path, easy: int, hard: int) -> Path:
    """Steps of two kinds: a sure chain that is accepted whole, and two unsure siblings of which none is."""
    sure = replace(
        STEP, tree={"parent": [-1, 0, 1], "survival": [0.98, 0.97, 0.96]}, path=[0, 1, 2], entropy=[0.05] * 4, rows=4,
    )
    unsure = replace(STEP, tree={"parent": [-1, -1], "survival": [0.4, 0.35]}, path=[], entropy=[1.5] * 3, rows=3)
    path.write_text("".join(s.to_json() + "\n" for s in [*[sure] * easy, *[unsure] * hard]))
    return path


def test_samples_are_the_nodes_below_accepted_ones() -> None:
    assert samples([STEP]) == [Sample(0.5, 0.2, 1.0, 1.0), Sample(0.4, 0.3, 2.0, 0.0), Sample(0.25, 0.4, 1.0, 0.0)]


def test_the_entropy_of_a_path() -> None:
    first = -(0.5 * math.log(0.5) + 0.25 * math.log(0.25))
    assert path_entropy(STEP, 1) == pytest.approx(first, abs=1e-12)
    assert path_entropy(STEP, 2) == pytest.approx(first - 0.8 * math.log(0.8), abs=1e-12)
    assert path_entropy(STEP, 9) == path_entropy(STEP, 2)       # the tree ends there


def test_c2t_learns_which_nodes_are_accepted(tmp_path: Path) -> None:
    out = tmp_path / "gate.json"
    result = train(made(tmp_path / "t.jsonl", 30, 30), "c2t", out)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "150 nodes, 60% accepted, 100% told rightly" in result.stderr
    net = Ffn.from_json(out.read_text())
    assert net(0.97, 0.05, 2.0) > 0.9 and net(0.4, 1.5, 1.0) < 0.1
    assert len(out.read_text().splitlines()) >= 6               # readable: a layer a line


def test_heterospec_finds_the_two_regimes(tmp_path: Path) -> None:
    out = tmp_path / "gate.json"
    result = train(made(tmp_path / "t.jsonl", 30, 30), "heterospec", out, "--after", "2")
    assert result.exit_code == 0 and "60 steps, accepted a bin: 3.0, 0.0" in result.stderr
    bins = read_bins(out.read_text())
    assert bins.after == 2 and len(bins.edges) == 1 and 0.05 < bins.edges[0] < 0.7
    assert (bins.extra, bins.nodes) == ((1, 0), (3, 1))         # easy: a layer deeper; hard: as good as nothing


@pytest.mark.parametrize("method", ["c2t", "heterospec"])
def test_a_real_trace_gives_a_gate_that_grows_trees(trace: Path, tmp_path: Path, method: str) -> None:
    out = tmp_path / "gate.json"
    assert train(trace, method, out, "--quiet").stderr == ""
    drafted = [step for step in read(trace) if step.tree["parent"]]
    assert len(drafted) > 20
    if method == "heterospec":
        bins = read_bins(out.read_text())
        assert len(bins.nodes) == len(bins.edges) + 1 and min(bins.nodes) >= 1
        return
    seen = samples(drafted)
    net = Ffn.from_json(out.read_text())
    told = np.mean([(net(s.survival, s.entropy, s.depth) > 0.5) == bool(s.accepted) for s in seen])
    common = max(np.mean([s.accepted for s in seen]), 1 - np.mean([s.accepted for s in seen]))
    assert told >= common                                       # no worse than saying the same of every node
    assert play(Classified(net, beta=0.0), random_law(1, 5, 6), nodes=12).tree.nodes == 12


def test_the_fit_repeats(tmp_path: Path) -> None:
    trace = made(tmp_path / "t.jsonl", 30, 30)
    texts = []
    for name in ("a", "b"):
        assert train(trace, "c2t", tmp_path / name).exit_code == 0
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("c2t",), 2, "the trace has 3 verified nodes whose ancestors were accepted; at least 20 are needed"),
        (("heterospec",), 2, "the trace has 1 steps with drafts; at least 20 are needed"),
        (("c3t",), 2, "unknown gate 'c3t'. Did you mean 'c2t'?"),
        (("heterospec", "--after", "0"), 2, "--after is 0; at least 1"),
    ],
)
def test_refusals_are_one_line(tmp_path: Path, args: tuple[str, ...], code: int, words: str) -> None:
    trace, out = tmp_path / "t.jsonl", tmp_path / "gate.json"
    trace.write_text(STEP.to_json() + "\n")
    result = train(trace, args[0], out, *args[1:])
    assert (result.exit_code, result.stdout, out.exists()) == (code, "", False)
    assert words in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_file_that_is_no_trace(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    result = train(bad, "c2t", tmp_path / "gate.json")
    assert result.exit_code == 1 and "line 1 is no step record" in result.stderr
