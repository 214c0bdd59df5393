"""transformers' models with recorded steps: loaded through the self-test, equal to the same model without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.parts import Needs, TargetInfo
from hedgerow.models import opened
from hedgerow.models.hf import HFNet
from hedgerow.models.opened import open_net
from hedgerow.models.runner import Runner
from hedgerow.models.truncate import first_layers
from hedgerow.systems.recorders import TapeRecorder
from hedgerow.target.lm import LMTarget
from tests.unit.models_kit import call, prefill, random_tree, tree_group, write_llama

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
FP32 = torch.float32


def target(net: Any, kv: Any = "paged") -> LMTarget:
    return LMTarget(Runner(net, 4, 400, kv=kv), TargetInfo("m", net.vocab, 400, "cpu", "fp32", "torch"))


@pytest.mark.parametrize(("model", "options"), [("llama", {}), ("qwen3", {"head_dim": 16}), ("qwen3_moe", MOE)])
def test_recorded_steps_of_a_batch_equal_the_models_own(model: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m", model=model, **options)
    eager = target(open_net(path, "m", FP32, "cpu").net)
    found = open_net(path, "m", FP32, "cpu", recorder=TapeRecorder())
    assert found.backend.endswith("; steps recorded as recorded operators")
    fast = target(found.net, "contiguous")
    rng, needs = np.random.default_rng(0), Needs(taps=(0, 1), last_hidden=True)
    sizes, contexts = (6, 0, 11), (30, 5, 290)
    for _ in range(2):
        trees = [random_tree(rng, n, 128) for n in sizes]
        texts = [rng.integers(0, 128, n).tolist() for n in contexts]
        results = []
        for t in (eager, fast):
            slots = [prefill(t, text) for text in texts]
            groups = [tree_group(s, 7, n, tree) for s, n, tree in zip(slots, contexts, trees, strict=True)]
            results.append(call(t, groups, needs))
            for slot in slots:
                t.release(slot)
        (rows, feats), (again, more) = results
        for i, n in enumerate(sizes):
            spread = float(rows.device_logits(i).std())
            for row in range(n + 1):
                np.testing.assert_allclose(again.logits(i, row), rows.logits(i, row), atol=1e-3 * spread)
            torch.testing.assert_close(more[i].taps, feats[i].taps, atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(more[i].last_hidden, feats[i].last_hidden, atol=1e-3, rtol=1e-3)
    kept = found.net.captured
    assert kept is not None and kept.count(fast.runner.kv) == 1, "what is looked at replayed a recording of other trees"


def test_the_first_layers_record_their_own_steps(tmp_path: Path) -> None:
    net = open_net(write_llama(tmp_path / "m"), "m", FP32, "cpu", recorder=TapeRecorder()).net
    cut = first_layers(net, 1)
    assert cut.captured is not None and cut.captured is not net.captured
    one, whole = target(cut), target(net)
    tree = random_tree(np.random.default_rng(0), 4, 128)
    rows = [call(t, [tree_group(prefill(t, [5, 6, 7]), 7, 3, tree)])[0].logits(0, 4) for t in (one, whole)]
    assert not np.allclose(*rows, atol=1e-2)


def test_no_compile_records_nothing(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m")
    assert open_net(path, "m", FP32, "cpu", compile=False, recorder=TapeRecorder()).net.captured is None
    assert open_net(path, "m", FP32, "cpu").net.captured is None, "the CPU has compiled layers or none"


def test_a_model_that_waits_for_values_runs_without(tmp_path: Path) -> None:
    """Experts in a loop over those that were hit, and rotary angles by the longest position, need values."""
    path = write_llama(tmp_path / "moe", model="qwen3_moe", **MOE)
    told: list[str] = []

    class Loops(TapeRecorder):
        def record(self, work: Any) -> Any:
            net.model.set_experts_implementation("eager")
            return super().record(work)

    net = open_net(path, "m", FP32, "cpu").net
    words = opened.capture(net, Loops(), told.append)
    assert told == [words] and words.startswith("steps run without recorded operators: ")
    scaled = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    path = write_llama(tmp_path / "scaled", rope_parameters=scaled)
    found = open_net(path, "m", FP32, "cpu", recorder=TapeRecorder())
    assert "steps run without recorded operators: " in found.backend and "\n" not in found.backend
    tree, both = random_tree(np.random.default_rng(0), 4, 128), []
    for one in (target(found.net), target(open_net(path, "m", FP32, "cpu").net)):
        both.append(call(one, [tree_group(prefill(one, [5, 6, 7]), 7, 3, tree)])[0].logits(0, 4))
    assert np.array_equal(*both)


def test_recorded_steps_that_are_wrong_are_found_out(tmp_path: Path) -> None:
    class Stale(TapeRecorder):
        """Replays nothing: results stay those of the step that was recorded."""

        def record(self, work: Any) -> Any:
            super().record(work)
            return lambda: None

    told: list[str] = []
    found = open_net(write_llama(tmp_path / "m"), "m", FP32, "cpu", recorder=Stale(), report=told.append)
    assert isinstance(found.net, HFNet) and found.net.captured is None
    assert len(told) == 1 and told[0] in found.backend and told[0].startswith("steps run without recorded operators: ")
