"""`hedgerow simulate`: what it prints, its JSON, its refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import hedgerow.simulate
from hedgerow.api import assemble
from hedgerow.cli.main import app
from hedgerow.control.controller import Fixed
from hedgerow.core.parts import Sampling
from hedgerow.core.record import StepRecord
from hedgerow.cost.profiles import load, save
from hedgerow.recipes import get
from hedgerow.simulate import Positional, Recorded, Report, play
from tests.unit.simulate_kit import learner, run, tiny

KEYS = {
    "recipe", "recipe_version", "world", "tau", "tau_error", "requests", "calls", "steps", "tokens", "proposed",
    "drafted", "accepted", "acceptance_rate", "mean_nodes", "histogram", "share", "by_context", "draft_calls", "batch",
    "nodes", "seed", "seconds", "plain_seconds", "speedup", "tok_s", "profile", "known", "interrupted",
}


def simulate(*args: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *args])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return run(tiny(), get("suffix"), tmp_path / "trace.jsonl", Sampling(), runs=[(40, 30)]).path


def test_json_is_one_object_on_one_line(trace: Path) -> None:
    for world in (("--trace", str(trace)), ("--acceptance", "0.6,0.2", "--steps", "40")):
        result = simulate("suffix", *world, "--profile", "h100-sxm-qwen3-8b-hf", "--json", "--seed", "3")
        assert result.exit_code == 0 and result.stdout.count("\n") == 1
        found = json.loads(result.stdout)
        assert set(found) == KEYS
        assert found["recipe"] == "suffix" and found["seed"] == 3 and found["profile"] == "h100-sxm-qwen3-8b-hf"
        assert found["speedup"] == pytest.approx(found["plain_seconds"] / found["seconds"]["total"])


def test_the_json_of_a_trace_is_the_replay(trace: Path) -> None:
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    found = json.loads(simulate("suffix", "--trace", str(trace), "--json").stdout)
    assert found["steps"] == len(lines) and found["tokens"] == sum(x["committed"] for x in lines)
    assert found["known"] == 1.0 and found["speedup"] is None


def test_what_people_read(trace: Path) -> None:
    result = simulate("suffix", "--acceptance", "0.6,0.2,0.1", "--profile", "m3pro-q8-tiles", "--steps", "50")
    assert result.exit_code == 0
    assert "tokens per step" in result.stdout and "50 steps" in result.stdout
    assert "speed-up" in result.stdout and "under m3pro-q8-tiles" in result.stdout and "accepted" in result.stdout
    assert "speed-up" not in simulate("suffix", "--acceptance", "0.6", "--steps", "9").stdout


def test_options_reach_the_play() -> None:
    def found(*args: str) -> dict:
        return json.loads(simulate("suffix", "--acceptance", "0.6,0.3", "--steps", "64", "--json", *args).stdout)

    assert found("--nodes", "0")["share"]["plain"] == 1.0
    assert len(found("--depth", "1")["histogram"]) == 2
    assert found("--batch", "4")["calls"] == 16
    assert found("--context", "3000")["by_context"][0]["context"] == 2048
    by_depth = json.loads(simulate("suffix", "--acceptance", "1.0;1.0;0.0", "--steps", "9", "--json").stdout)
    assert by_depth["tau"] == 3.0


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    save(load("m3pro-q8-tiles"), tmp_path / "mine.json")
    found = json.loads(simulate(
        "plain", "--acceptance", "0.5", "--steps", "9", "--json", "--profile", str(tmp_path / "mine.json")
    ).stdout)
    assert found["speedup"] == 1.0


def test_rests_are_mentioned(tmp_path: Path) -> None:
    guard = Fixed(7, price=lambda: 1.9, rest=3)
    path = run(tiny(), learner(), tmp_path / "t", Sampling(), controller=guard).path
    assert "--as-recorded repeats that" in simulate("recycle", "--trace", str(path)).stderr
    assert simulate("recycle", "--trace", str(path), "--quiet").stderr == ""
    again = simulate("recycle", "--trace", str(path), "--as-recorded", "--json")
    assert again.exit_code == 0 and again.stderr == "" and json.loads(again.stdout)["share"]["plain"] > 0.0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "give --trace FILE or --acceptance RATES"),
        (("--acceptance", "0.5", "--trace", "x"), "one of them"),
        (("--acceptance", "0.5,many"), "numbers with commas between ranks"),
        (("--acceptance", "0.9,0.9"), "at most 1 in all"),
        (("--acceptance", "0.5", "--profile", "m3"), "unknown profile 'm3'"),
        (("--acceptance", "0.5", "--nodes", "many"), "--nodes is 'many'"),
        (("--acceptance", "0.5", "--steps", "0"), "steps is 0; allowed: 1 or more"),
        (("--acceptance", "0.5", "--as-recorded"), "needs a trace"),
        (("--acceptance", "0.5", "--context", "0"), "contexts are [0]"),
    ],
)
def test_wrong_calls_are_refused_in_one_line(args: tuple[str, ...], words: str) -> None:
    result = simulate("suffix", *args)
    assert result.exit_code == 2 and result.stdout == ""
    assert words in result.stderr and result.stderr.count("\n") == 1


def test_a_file_that_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("{}\n")
    result = simulate("suffix", "--trace", str(tmp_path / "t"))
    assert result.exit_code == 1 and "line 1 is no step record" in result.stderr
    assert simulate("suffix", "--trace", str(tmp_path / "none")).exit_code == 1


def test_ctrl_c_prints_what_was_played(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: object, **options: object) -> Report:
        return replace(play(get("plain"), Positional([0.5]), steps=3), interrupted=True)

    monkeypatch.setattr(hedgerow.simulate, "play", stopped)
    result = simulate("plain", "--acceptance", "0.5")
    assert result.exit_code == 130 and "3 steps" in result.stdout


class Letters:
    """A tokenizer of the small target: a character a token."""

    eos: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return [ord(c) % 48 for c in text]

    def chat(self, messages: object) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(65 + i) for i in ids)


def test_a_session_is_replayed_with_the_guard_of_its_machine(tmp_path: Path) -> None:
    """Three calls of one session, its drafters remembering, its guard measuring: as recorded, the same steps."""
    engine: list[StepRecord] = []
    session = replace(assemble(tiny(), Letters(), get("auto")), trace=engine.append)  # type: ignore[arg-type]
    for prompts in (["abcabcab", "xyzxyzxyz"], ["abcabcab"], ["what", "is", "this"]):
        session.generate(prompts, raw=True, max_tokens=48)
    path = tmp_path / "t"
    path.write_text("".join(r.to_json() + "\n" for r in engine))
    again: list[StepRecord] = []
    report = play(get("auto"), Recorded.of(path), as_recorded=True, trace=again.append)
    assert [(r.position, r.tree, r.path, r.token, r.committed, r.batch) for r in engine] == [
        (r.position, r.tree, r.path, r.token, r.committed, r.batch) for r in again
    ]
    assert report.steps == len(engine) and report.known == 1.0
