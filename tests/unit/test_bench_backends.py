"""The benchmark of backends and peers: its step graph, its turns, and its talk with another engine's process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.bench import engines, tables
from hedgerow.bench.backends import interleaved
from hedgerow.bench.engines import Peer, Worker
from hedgerow.bench.stepengines import ENGINES, Job, Missing, Torch, rows_equal
from hedgerow.bench.stepgraph import Dims, StepGraph, ancestors, binary_tree, make_step
from hedgerow.core.errors import HedgerowError, ModelError

DIMS = Dims(layers=2, hidden=24, heads=6, kv_heads=2, head_dim=4, vocab=31, eps=1e-5, rope_theta=100.0)


def weights() -> dict[str, torch.Tensor]:
    some = torch.Generator().manual_seed(1)

    def w(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=some) / shape[-1] ** 0.5

    out = {"model.embed_tokens.weight": w(31, 24), "model.norm.weight": 1 + w(24)}
    for i in range(DIMS.layers):
        at = f"model.layers.{i}."
        shapes = {"q": (24, 24), "k": (8, 24), "v": (8, 24), "o": (24, 24)}
        out |= {f"{at}self_attn.{n}_proj.weight": w(*shape) for n, shape in shapes.items()}
        out |= {f"{at}mlp.{n}_proj.weight": w(40, 24) for n in ("gate", "up")}
        out |= {f"{at}mlp.down_proj.weight": w(24, 40), f"{at}input_layernorm.weight": 1 + w(24)}
        out[f"{at}post_attention_layernorm.weight"] = 1 + w(24)
    return out


GRAPH = StepGraph(DIMS, weights(), torch.float32).eval()
TEXT = torch.arange(31)[torch.randperm(31, generator=torch.Generator().manual_seed(2))]


def test_the_step_graph_is_transformers_llama(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=31, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=4, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict(weights() | {"lm_head.weight": weights()["model.embed_tokens.weight"]})
    config.save_pretrained(tmp_path)
    assert Dims.of(tmp_path) == DIMS
    step = make_step(GRAPH, TEXT, 1, 20)
    with torch.no_grad():
        want = model(TEXT[None, :21]).logits[0, -1:]
        torch.testing.assert_close(GRAPH(*step.flat)[0], want, rtol=1e-4, atol=1e-5)


@given(rows=st.integers(1, 12), context=st.integers(1, 15))
@settings(max_examples=15, deadline=None)
def test_a_row_of_the_tree_is_the_end_of_its_path(rows: int, context: int) -> None:
    step = make_step(GRAPH, TEXT, rows, context)
    seen = ancestors(binary_tree(rows))
    row = rows - 1
    path = np.flatnonzero(seen[row])
    chain = torch.cat([TEXT[:context], step.tokens[path]])
    alone = make_step(GRAPH, chain, 1, len(chain) - 1)
    with torch.no_grad():
        torch.testing.assert_close(GRAPH(*step.flat)[0][row], GRAPH(*alone.flat)[0][0], rtol=1e-4, atol=1e-5)


def test_a_text_too_short_is_refused() -> None:
    with pytest.raises(ModelError, match="31 tokens do not fill a context of 30 and 4 rows"):
        make_step(GRAPH, TEXT, 4, 30)


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ModelError, match="gpt2"):
        Dims.of(tmp_path)


def test_rows_that_depend_on_their_number_are_noticed() -> None:
    job = Job(Path(), DIMS, weights(), TEXT, 1)
    engine = Torch(job, torch.float32, compiled=False)
    step = make_step(GRAPH, TEXT, 8, 10)
    assert rows_equal(engine.ready, step, [8]) == {"8": 1.0}
    shifted = rows_equal(lambda s: lambda: engine.ready(s)() + (len(s.tokens) == 4), step, [4, 8])
    assert shifted == {"4": 0.0, "8": 1.0}


def test_a_missing_library_is_a_reason_and_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(Missing, match="openvino is not installed"):
        ENGINES["openvino bf16"](Job(Path(), DIMS, weights(), TEXT, 1))


def test_every_turn_runs_everybody_and_begins_with_another() -> None:
    order: list[str] = []

    def run(name: str) -> Any:
        return lambda: order.append(name)

    timed = interleaved({"a": run("a"), "b": run("b")}, 2)
    assert order == list("aabb" "bbaa" "aabb")
    assert all(0 <= t["min_s"] <= t["median_s"] <= t["max_s"] for t in timed.values())


# ------------------------------------------------------------------------------------------------- another engine

FAKE = """
import json, os, sys
job = json.load(open(sys.argv[2]))
print(json.dumps({"ready": True, "version": os.environ["FAKE"]}), flush=True)
for line in sys.stdin:
    n = int(line)
    if n > len(job["prompts"]):
        sys.exit("too many requests")
    print(json.dumps({"total_s": 2.0, "first_s": 1.0, "token_ids": job["prompts"][:n]}), flush=True)
"""


def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "fake.py").write_text(FAKE)
    monkeypatch.setattr(engines, "files", lambda package: tmp_path)
    peer = Peer("fake.py", {"FAKE": "on {cores} of {threads}"})
    return Worker(peer, Path(sys.executable), tmp_path, {"prompts": [[1], [2]], "threads": 2})


def test_the_other_engine_answers_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(tmp_path, monkeypatch) as other:
        assert other.version == "on 0-1 of 2"
        assert other.run(2)["token_ids"] == [[1], [2]]
        assert other.run(1)["token_ids"] == [[1]]
    assert other._process.returncode == 0


def test_an_engine_that_dies_is_told_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(tmp_path, monkeypatch) as other, pytest.raises(HedgerowError, match="too many requests"):
        other.run(3)


def test_a_row_takes_prefill_off() -> None:
    mine = {"total_s": 3.0, "first_s": 1.0, "token_ids": [[1, 2, 3], [4, 5, 6]]}
    theirs = {"total_s": 5.0, "first_s": 1.0, "token_ids": [[1, 2, 9], [4, 5, 6]]}
    row = engines._row(2, 3, [mine, mine], [theirs, theirs])
    assert (row["ours_tok_s"], row["theirs_tok_s"], row["ratio"]) == (2.0, 1.0, 2.0)
    assert row["same_tokens"] == 5 / 6
    result = {"engines": {"x": {"peer": "fake", "version": "7", "backend": "packed", "rows": [{"batch": 2, **row}]}}}
    assert "| fake 7 | packed | 2 | 2.0 | 1.0 | 2.00 (2.00–2.00) |" in tables.peers_table(result)


def test_the_table_of_backends() -> None:
    cells = [
        {"backend": b, "rows": r, "context": 128, "median_s": s, "min_s": s / 2, "max_s": 2 * s}
        for b, r, s in (("a", 4, 0.01), ("a", 8, 0.02), ("b", 4, 0.03), ("b", 8, 0.04))
    ]
    good = {"relative_error": 0.0123, "same_best": 1.0, "rows_equal": {"4": 0.5}}
    shown = tables.backends_table({
        "cells": cells, "quality": {"a": good, "b": good}, "missing": {"c": "it is not installed"}, "threads": 2,
        "repetitions": 3,
    })
    assert "| backend | 4 rows, 128 | 8 rows, 128 | error | same rows |" in shown
    assert "| a | 10.0 (5.0–20.0) | 20.0 (10.0–40.0) | 0.0123 | 50 % |" in shown
    assert "Not measured: c: it is not installed." in shown
