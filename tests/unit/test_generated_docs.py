"""The generator of README and docs: it fills what it knows, refuses what it does not, and notices what is stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hedgerow.bench import docs
from hedgerow.bench.figures import figures
from hedgerow.bench.run import summary
from hedgerow.core.errors import UsageError

PAGE = "a\n<!-- generated: {} -->\nSTALE\n<!-- end -->\nb\n"


def test_text_outside_the_marks_stays() -> None:
    made = docs.render(PAGE.format("tree"))
    assert made.startswith("a\n<!-- generated: tree -->\n```\nsrc/hedgerow/\n")
    assert made.endswith("\n```\n<!-- end -->\nb\n")
    assert "STALE" not in made
    assert docs.render(made) == made


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown generated part .trees.; known: tree, recipes, ready, cli, figures"):
        docs.render(PAGE.format("trees"))


def test_figures_come_from_what_a_benchmark_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    page = PAGE.format("figures demo")
    assert docs.render(page) == page.replace("STALE", "_Not measured yet._")
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "docs" / "figures" / "demo.txt").write_text("61 tok/s\n", encoding="utf-8")
    assert docs.render(page) == page.replace("STALE", "```\n61 tok/s\n```")


def row(**other: object) -> dict[str, object]:
    """One prompt's measurement as `bench.run` writes it."""
    seconds = {"draft": 0.1, "verify": 1.0, "overhead": 0.1, "prefill": 0.5, "total": 1.7}
    return {
        "family": "gsm8k", "tokens": 21, "steps": 10, "cold_tokens": 21, "cold_steps": 16, "drafted": 100,
        "accepted": 10, "plain_tok_s": 10.0, "tok_s": 16.7, "speedup": 1.67, "divergence": None,
        "prompt_tokens": 5, "seconds": seconds,
        "plain_seconds": {**seconds, "total": 2.5}, "plain_steps": 20, **other,
    }


def test_a_measured_recipe_becomes_a_table(tmp_path: Path) -> None:
    near = {"position": 3, "gap": 0.0, "near_tie": True}
    result = {
        "setup": {"recipe": "auto", "model": "demo", "max_tokens": 128, "repetitions": 2},
        "summary": summary([row(), row(family="repeat", divergence=near)]),
        "provenance": {
            "command": "python -m hedgerow.bench.run", "date": "2026-11-30", "versions": {"torch": "2.13.0"},
            "machine": {"cpu": "a chip", "cores": 2},
        },
    }
    (tmp_path / "auto.json").write_text(json.dumps(result), encoding="utf-8")
    text = figures(tmp_path, "auto")
    assert "| gsm8k | 1 | 2.00 | 1.25 | 1.00 | 0.100 | 1.67 | 1.67 | 16.7 | 10.0 | none |" in text
    assert "| repeat | 1 | 2.00 | 1.25 | 1.00 | 0.100 | 1.67 | 1.67 | 16.7 | 10.0 | 1 (1 at a near-tie) |" in text
    assert text.endswith("`python -m hedgerow.bench.run`, 2026-11-30, a chip, 2 cores, torch 2.13.0.")


def test_check_names_stale_pages_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    page = tmp_path / "README.md"
    page.write_text(PAGE.format("figures plain"), encoding="utf-8")
    assert docs.main(["--check"]) == 1
    assert capsys.readouterr().out == "README.md: out of date; run `make docs`\n"
    assert page.read_text(encoding="utf-8") == PAGE.format("figures plain")
    assert docs.main([]) == 0
    assert capsys.readouterr().out == "README.md: written\n"
    assert docs.main(["--check"]) == 0


def test_a_file_says_what_it_is_in_its_first_sentence(tmp_path: Path) -> None:
    file = tmp_path / "part.py"
    for text, said in (
        ('"""Trees, e.g. of\ntokens. More."""', "Trees, e.g. of tokens"),
        ('"""One line."""', "One line"),
        ("x = 1", ""),
    ):
        file.write_text(text, encoding="utf-8")
        assert docs.first_sentence(file) == said
