"""Which models get compiled layers, and what is said of those that do not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import UsageError
from hedgerow.models import hf
from hedgerow.models.native import NativeNet, compiled_net
from hedgerow.models.truncate import first_layers
from hedgerow.systems import compiled
from hedgerow.target.lm import LMTarget, load_target
from tests.unit.models_kit import call, prefill, prompt_group, write_llama

WIDE = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 130}


@pytest.fixture(scope="module", autouse=True)
def needs_a_compiler(tmp_path_factory: pytest.TempPathFactory) -> None:
    if why := compiled.build(tmp_path_factory.mktemp("native")).why_not:
        pytest.skip(f"no compiled layers on this machine: {why}")


def open_target(path: Path, **options: Any) -> LMTarget:
    return load_target(str(path), device="cpu", max_slots=2, max_len=200, **options)[0]


def logits(target: LMTarget, ids: list[int]) -> np.ndarray:
    slot = target.acquire()
    rows, _ = call(target, [prompt_group(slot, ids)])
    target.release(slot)
    return rows.logits(0, len(ids) - 1)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}), ("llama", {"attention_bias": True, "mlp_bias": True}), ("qwen2", {}),
        ("qwen3", {"head_dim": 64}), ("mistral", {"sliding_window": None}),
    ],
)
def test_models_of_the_known_kinds_are_compiled_and_close_to_themselves(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    path = write_llama(tmp_path / "m", model=kind, **{**WIDE, **options})
    built = compiled.build(tmp_path / "native")
    assert built.library is not None
    told: list[str] = []
    net = hf.load(
        path, kind, torch.bfloat16, "cpu", lambda model: None,
        fast=lambda model: compiled_net(model, built.library, "none"), told=told.append,  # type: ignore[arg-type]
    )
    assert isinstance(net, NativeNet) and not told
    assert net.model is None, "the weights are not held twice"
    cut = first_layers(net, 1)
    assert isinstance(cut, NativeNet) and cut.layers == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"hidden_act": "gelu"}, "its gate is not a SiLU"),
        ({"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}, "multiples of 16 and 64"),
    ],
)
def test_other_models_run_on_torch_and_say_why(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    path = write_llama(tmp_path / "m", **{**WIDE, **options})
    built = compiled.build(tmp_path / "native")
    net = hf.load(path, "m", torch.bfloat16, "cpu", lambda model: None)
    assert built.library is not None
    with pytest.raises(hf.ModelError, match=reason):
        compiled_net(net.model, built.library, "none")


def test_a_model_whose_modules_hide_a_difference_fails_the_self_test(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m", **WIDE)
    built = compiled.build(tmp_path / "native")
    told: list[str] = []

    def tampered(model: Any) -> NativeNet:
        net = compiled_net(model, built.library, "none")  # type: ignore[arg-type]
        model.model.layers[0].mlp.down_proj.weight.data.neg_()  # the model itself now does something else
        return net

    net = hf.load(path, "m", torch.bfloat16, "cpu", lambda model: None, fast=tampered, told=told.append)
    assert isinstance(net, hf.HFNet)
    assert "away from the same path alone" in told[0]


@pytest.mark.model
def test_the_backend_is_named_and_int8_without_compiled_layers_is_refused(demo: Path) -> None:
    ids = np.random.default_rng(0).integers(100, 40000, 30).tolist()
    found = {}
    for name, options in {"bf16": {}, "int8": {"quant": "int8"}, "torch": {"compile": False}}.items():
        target = open_target(demo, **options)
        found[name] = logits(target, ids)
        assert target.info.quant == ("int8" if name == "int8" else "none")
        assert target.info.backend.startswith({"bf16": "compiled bf16", "int8": "compiled int8"}.get(name, ""))
    assert "not compiled, as asked" in target.info.backend
    spread = found["torch"].std()
    assert np.sqrt(np.mean((found["bf16"] - found["torch"]) ** 2)) < 0.15 * spread
    assert np.sqrt(np.mean((found["int8"] - found["torch"]) ** 2)) < 0.4 * spread
    with pytest.raises(UsageError, match=r"quant is 'int8'.*not compiled, as asked.*leave --quant out"):
        open_target(demo, quant="int8", compile=False)
    with pytest.raises(UsageError, match="quant is 'int7'; allowed: none, int8"):
        open_target(demo, quant="int7")


@pytest.mark.model
def test_the_time_of_the_parts_is_within_the_call(demo: Path) -> None:
    target = open_target(demo)
    net = target.runner.net
    assert isinstance(net, NativeNet)
    slot = prefill(target, list(range(100, 140)))
    net.seconds = np.zeros(4)
    start = time.perf_counter()
    call(target, [prompt_group(slot, list(range(300, 360)), 40)])
    wall = time.perf_counter() - start
    assert (net.seconds > 0).all() and net.seconds.sum() <= wall
