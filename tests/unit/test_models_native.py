"""Which models get compiled layers, and what is said of those that do not."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import TargetInfo
from hedgerow.core.tree import TokenTree
from hedgerow.models import hf
from hedgerow.models.native import NativeNet, compiled_net
from hedgerow.models.runner import Runner
from hedgerow.models.truncate import first_layers
from hedgerow.target.lm import LMTarget, load_target
from tests.unit.models_kit import call, prefill, prompt_group, tree_group, write_llama

WIDE = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 130}


pytestmark = pytest.mark.usefixtures("library")            # skips where there is no compiler


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
    tmp_path: Path, library: ctypes.CDLL, kind: str, options: dict[str, Any]
) -> None:
    path = write_llama(tmp_path / "m", model=kind, **{**WIDE, **options})
    told: list[str] = []
    net = hf.load(
        path, kind, torch.bfloat16, "cpu", lambda model: None,
        fast=lambda model: compiled_net(model, library, "none"), told=told.append,
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
def test_other_models_run_on_torch_and_say_why(
    tmp_path: Path, library: ctypes.CDLL, options: dict[str, Any], reason: str
) -> None:
    path = write_llama(tmp_path / "m", **{**WIDE, **options})
    net = hf.load(path, "m", torch.bfloat16, "cpu", lambda model: None)
    with pytest.raises(hf.ModelError, match=reason):
        compiled_net(net.model, library, "none")


def test_a_model_whose_modules_hide_a_difference_fails_the_self_test(tmp_path: Path, library: ctypes.CDLL) -> None:
    path = write_llama(tmp_path / "m", **WIDE)
    told: list[str] = []

    def tampered(model: Any) -> NativeNet:
        net = compiled_net(model, library, "none")
        model.model.layers[0].mlp.down_proj.weight.data.neg_()  # the model itself now does something else
        return net

    net = hf.load(path, "m", torch.bfloat16, "cpu", lambda model: None, fast=tampered, told=told.append)
    assert isinstance(net, hf.HFNet)
    assert "away from the same path alone" in told[0]


@pytest.fixture(scope="module")
def small(library: ctypes.CDLL, tmp_path_factory: pytest.TempPathFactory) -> NativeNet:
    """A random model of two layers in compiled layers."""
    path = write_llama(tmp_path_factory.mktemp("small") / "m", **{**WIDE, "max_position_embeddings": 600})
    net = hf.load(
        path, "m", torch.bfloat16, "cpu", lambda model: None, fast=lambda model: compiled_net(model, library, "none")
    )
    assert isinstance(net, NativeNet)
    return net


@pytest.mark.parametrize("rows", [[1] * 13, [2, 1, 12, 1, 3, 1, 1, 2, 1], [9, 9, 1, 1, 1, 1, 1, 1, 1, 1]])
def test_what_requests_have_in_common_is_read_once_and_no_bit_tells(
    small: NativeNet, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, rng = NativeNet(small.decoder, small.config, None), np.random.default_rng(len(rows))
    info = TargetInfo("small", net.vocab, 600, "cpu", "bf16", "compiled bf16")
    target = LMTarget(Runner(net, len(rows) + 1, 600, 256), info)
    common = prefill(target, rng.integers(0, 128, 410).tolist())
    groups, joined = [], list[int]()
    for i, n in enumerate(rows):
        slot, length = target.acquire(), 410 if i % 4 else 300   # the last pages of some are their own
        target.fork(common, slot, length)
        call(target, [prompt_group(slot, rng.integers(0, 128, 3 * i + 1).tolist(), length)])
        target.commit(slot, range(3 * i + 1))
        tree = TokenTree.of(rng.integers(0, 128, n - 1), [int(rng.integers(-1, j)) for j in range(n - 1)])
        groups.append(tree_group(slot, 5, length + 3 * i + 1, tree))
    forward = net.decoder.forward

    def watched(*args: Any) -> Any:
        joined.extend(s.joined for s in args[3])
        return forward(*args)

    monkeypatch.setattr(net.decoder, "forward", watched)
    together, _ = call(target, groups)
    assert sorted(set(joined)) == [0, 256] and joined.count(0) == 1
    net.shared = 1 << 40
    apart, _ = call(target, groups)
    assert not any(joined[len(rows) :])
    alone = [call(target, [g])[0] for g in groups]
    for i, n in enumerate(rows):
        for row in range(n):
            assert np.array_equal(together.logits(i, row), apart.logits(i, row))
            assert np.array_equal(together.logits(i, row), alone[i].logits(0, row))


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
