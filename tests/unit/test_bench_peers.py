"""Plain decoding against transformers: who runs when, what is compared with what, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hedgerow.bench import peers
from hedgerow.bench.figures import figures
from hedgerow.bench.peers import THEIRS, compared, taking_turns
from hedgerow.core.errors import UsageError

MADE = {
    "command": "python -m hedgerow.bench.peers", "date": "2026-11-30", "versions": {"torch": "2.13.0"},
    "machine": {"cpu": "a chip", "cores": 2},
}


def test_every_turn_runs_all_and_another_begins_it() -> None:
    now, order = 0.0, ""

    def run(name: str, takes_s: float) -> Callable[[], None]:
        def once() -> None:
            nonlocal now, order
            now, order = now + takes_s, order + name[0]

        return once

    runs = {name: run(name, s) for name, s in ((THEIRS, 4.0), ("bf16", 2.0), ("int8", 1.0))}
    spent = taking_turns(runs, 3, lambda: now)
    assert order == "tbi" "bit" "itb" "tbi"
    assert spent == {THEIRS: [4.0] * 3, "bf16": [2.0] * 3, "int8": [1.0] * 3}          # the first turn warms up


def test_a_ratio_is_that_of_one_turn() -> None:
    found = compared({THEIRS: [4.0, 8.0, 6.0], "bf16": [2.0, 2.0, 3.0], "int8": [1.0, 1.0, 1.0]}, 12)
    assert found["theirs_tok_s"] == 2.0
    assert found["ours"]["bf16"] == {"tok_s": 6.0, "ratio": 2.0, "ratios": [2.0, 4.0, 2.0]}
    assert found["ours"]["int8"] == {"tok_s": 12.0, "ratio": 6.0, "ratios": [4.0, 8.0, 6.0]}


def test_the_table_names_what_is_quantised(tmp_path: Path) -> None:
    row = compared({THEIRS: [4.0, 6.0], "bf16": [2.0, 2.0], "int8": [1.0, 1.0]}, 12)
    over = {"ratio": 2.5, "ratio_min": 2.0, "ratio_max": 3.0}
    result = {
        "provenance": MADE, "theirs": "bf16", "summary": {"bf16": over, "int8": {**over, "ratio_max": 6.0}},
        "prompts": [{"prompt": "chat", "prompt_tokens": 44, **row}],
    }
    (tmp_path / "plain.json").write_text(json.dumps(result), encoding="utf-8")
    lines = figures(tmp_path, "plain").splitlines()
    assert lines[4:8] == [
        "| prompt | prompt tokens | `generate` bf16, tok/s | ours bf16, tok/s | ratio | ours int8, tok/s | ratio |",
        "|---|---|---|---|---|---|---|",
        "| chat | 44 | 2.4 | 6.0 | 2.50 (2.00–3.00) | 12.0 | 5.00 (4.00–6.00) |",
        "| all | | | | 2.50 (2.00–3.00) | | 2.50 (2.00–6.00) |",
    ]
    assert "int8, quantised against bf16" in " ".join(lines[:3])


def test_a_form_twice_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--quant is int8,int8; give each form once"):
        peers.main(tmp_path / "x.json", model="./no/such", quant="int8,int8")
