"""Streamed weights: the same bits as loaded ones, never more than the window in memory, and errors in words."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core.errors import ModelError, UsageError
from hedgerow.core.parts import Needs
from hedgerow.core.tree import TokenTree
from hedgerow.models import hf, streamed
from hedgerow.models.hf import HFNet
from hedgerow.models.runner import Runner
from hedgerow.systems.disk import ALIGN, Disk, Reading, Stored, Stretch, catalogue, memory, stretches
from hedgerow.systems.linear import fuse_norms
from hedgerow.systems.ring import Ring, Unit
from hedgerow.systems.stream import StreamedHead, StreamedRows
from tests.unit.models_kit import prompt_group, random_tree, tree_group, write_llama

DIRECT = Reading(bypass=True)


def fused(model: Any) -> None:
    fuse_norms(model)


def loaded(path: Path, dtype: torch.dtype) -> HFNet:
    """The resident model, its products plain."""
    return hf.load(path, path.name, dtype, "cpu", fused)


def stream(path: Path, dtype: torch.dtype, window: int, reading: Reading = Reading()) -> HFNet:  # noqa: B008
    told: list[Any] = []
    build = streamed.builder(path, dtype, window, reading, told.append, lambda message: None)
    assert build is not None
    net = hf.load(path, path.name, dtype, "cpu", fused, build)
    net.streamed = told[0]
    return net


def logits(net: HFNet, tree: TokenTree, prompt: int = 20) -> torch.Tensor:
    """Of every row of a step behind a prompt."""
    runner = Runner(net, slots=1, max_len=128, max_rows=512)
    slot = runner.kv.acquire()
    runner.run([prompt_group(slot, list(range(prompt)))], Needs())
    runner.kv.commit(slot, range(prompt))
    return runner.run([tree_group(slot, 5, prompt, tree)], Needs()).device_logits(0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight layers, float32 on disk, embedding and head apart."""
    return write_llama(tmp_path_factory.mktemp("m") / "llama", num_hidden_layers=8, vocab_size=300)


# ------------------------------------------------------------------------------------------------ the same bits


@pytest.mark.parametrize("reading", [Reading(), DIRECT], ids=["cached", "direct"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["as on disk", "converted"])
@pytest.mark.parametrize("nodes", [0, 30, 511])
def test_every_bit_is_that_of_the_loaded_model(model: Path, dtype: torch.dtype, reading: Reading, nodes: int) -> None:
    tree = random_tree(np.random.default_rng(nodes), nodes, 300)
    net = stream(model, dtype, 400_000, reading)
    assert net.streamed is not None and net.streamed.slots >= 1
    got = logits(net, tree)
    assert got.shape == (nodes + 1, 300) and got.std() > 0.1
    assert torch.equal(got, logits(loaded(model, dtype), tree))
    assert torch.equal(got, logits(net, tree)), "and again, from the slots of the round before"


@pytest.mark.parametrize(("model_type", "options"), [
    ("llama", {"tie_word_embeddings": True}), ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("qwen3", {"head_dim": 16}),
    ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "num_key_value_heads": 4}),
])
def test_models_of_other_shapes(tmp_path: Path, model_type: str, options: dict[str, Any]) -> None:
    path = write_llama(tmp_path / "m", model=model_type, vocab_size=2000, **options)
    tree = random_tree(np.random.default_rng(0), 12, 2000)
    try:
        want = loaded(path, torch.float32)
    except ModelError as e:
        pytest.skip(f"not served: {e}")
    for window, cut in ((400_000, True), (10**6, None)):
        if streamed.builder(path, torch.float32, window, Reading(), lambda s: None, lambda m: None) is None:
            continue
        net = stream(path, torch.float32, window)
        assert net.streamed is not None and (cut is None or net.streamed.head is cut)
        assert torch.equal(logits(net, tree), logits(want, tree))


def test_head_and_embedding_stay_where_two_layers_fit_beside_them(model: Path) -> None:
    wide = stream(model, torch.float32, 480_000)
    assert wide.streamed is not None and not wide.streamed.head and wide.streamed.slots >= 2
    tight = stream(model, torch.float32, 300_000)
    assert tight.streamed is not None and tight.streamed.head
    assert isinstance(tight.model.get_output_embeddings(), StreamedHead)
    assert isinstance(tight.model.get_input_embeddings(), StreamedRows)
    assert len(tight.model.get_output_embeddings().bounds) >= 1


def test_weights_the_files_hold_twice_are_two(tmp_path: Path) -> None:
    """The configuration ties them, the files disagree: each is used as it stands, as the loaded model does."""
    path = write_llama(tmp_path / "m")
    config = path / "config.json"
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    assert '"tie_word_embeddings": true' in config.read_text()
    tree = random_tree(np.random.default_rng(0), 8, 128)
    assert torch.equal(logits(stream(path, torch.float32, 250_000), tree), logits(loaded(path, torch.float32), tree))


# ------------------------------------------------------------------------------------------------ the window


def test_the_window_is_kept_and_layers_hold_nothing_between_steps(model: Path) -> None:
    for window in (280_000, 300_000, 400_000, 480_000):
        for dtype in (torch.float32, torch.bfloat16):
            if streamed.builder(model, dtype, window, Reading(), lambda s: None, lambda m: None) is None:
                continue
            net = stream(model, dtype, window)
            s = net.streamed
            assert s is not None
            held = sum(len(m) for m in s.ring.loader.memory) + len(s.ring.loader.staging or b"")
            vectors = sum(p.numel() * p.element_size() for p in net.model.parameters())
            assert held + vectors <= window, str(s)
            assert all(p.ndim == 1 for p in net.model.model.layers.parameters()), "matrices come and go"
            assert f"{s.slots} slots" in str(s) and "streamed" in str(s)


def test_a_model_that_fits_is_loaded(model: Path) -> None:
    said: list[str] = []
    assert streamed.builder(model, torch.float32, 10**9, Reading(), lambda s: None, said.append) is None
    assert said == ["all 1.14 MB of weights fit in the window of 1 GB: they are loaded"]


def test_a_window_smaller_than_a_layer_names_both(model: Path) -> None:
    text = r"the window of 0\.1 MB is too small: the biggest layer needs 0\.\d+ MB, .* give 1 MB or more"
    with pytest.raises(UsageError, match=text):
        stream(model, torch.float32, 100_000)


@pytest.mark.parametrize(("change", "text"), [
    ({"stream_bytes": 0}, "window for streamed weights is 0 bytes; allowed: 1 or more"),
    ({"stream_bytes": 9, "quant": "int8"}, "quant is 'int8' and weights are streamed"),
    ({"stream_bytes": 9, "device": "cuda"}, "device is 'cuda' and weights are streamed, which works on the CPU"),
])
def test_what_does_not_go_together_is_refused(change: dict[str, Any], text: str) -> None:
    from hedgerow.target.lm import load_target

    with pytest.raises(UsageError, match=text):
        load_target("nowhere", **change)


def test_files_that_name_weights_otherwise_are_refused(model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    (tmp_path / "config.json").write_text((model / "config.json").read_text())
    weights = load_file(model / "model.safetensors")
    weights["model.layers.1.mlp.other"] = weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"its files hold no model\.layers\.1\.mlp\.up_proj\.weight as the"):
        stream(tmp_path, torch.float32, 300_000)


# ------------------------------------------------------------------------------------------------ ring and disk


def ring_of(path: Path, units: int = 5, slots: int = 2, reading: Reading = Reading()) -> Ring:  # noqa: B008
    """Unit i holds ten times the number i, and lies on disk right behind the one before."""
    file = path / "numbers"
    file.write_bytes(torch.arange(units, dtype=torch.float32).repeat_interleave(10).numpy().tobytes())
    stored = [Stored(file, 40 * i, 40, torch.float32, (2, 5)) for i in range(units)]
    return Ring([Unit.of(str(i), [s], torch.float32, False) for i, s in enumerate(stored)], slots, torch.float32,
                False, Disk(reading))


@given(asked=st.lists(st.integers(0, 4), max_size=25), slots=st.integers(1, 6))
def test_a_unit_is_what_was_asked_for_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, asked: list[int], slots: int
) -> None:
    ring = ring_of(tmp_path_factory.mktemp("r"), slots=slots)
    for unit in asked:
        (got,) = ring.take(unit)
        assert got.tolist() == [[float(unit)] * 5] * 2
        ring.give(unit)


def test_a_unit_is_not_overwritten_while_it_is_held(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, slots=3)
    (first,) = ring.take(0)
    for unit in (1, 2, 3, 4):
        (got,) = ring.take(unit)
        assert got[0, 0] == unit and first[0, 0] == 0
        ring.give(unit)
    ring.give(0)
    assert ring.take(0)[0][0, 0] == 0


def test_a_forward_pass_that_breaks_off_leaves_the_model_usable(model: Path) -> None:
    net, tree = stream(model, torch.float32, 300_000), TokenTree.of([3, 4], [-1, 0])
    want = logits(net, tree)
    norm = net.model.model.layers[1].input_layernorm
    broken = norm.register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        logits(net, tree)
    broken.remove()
    assert torch.equal(logits(net, tree), want)


def test_a_file_cut_short_while_in_use_is_said(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, slots=1)
    ring.take(0)
    (tmp_path / "numbers").write_bytes(b"1234" * 11)
    ring.give(0)
    with pytest.raises(ModelError, match=r"was cut short while it was in use: 44 bytes of at least 80"):
        ring.take(2)
    with pytest.raises(ModelError, match="cut short"):
        ring.take(0)


def threads() -> Iterator[threading.Thread]:
    return (t for t in threading.enumerate() if t.name == "hedgerow-weights")


def test_the_reading_thread_ends_with_its_model(tmp_path: Path) -> None:
    gc.collect()
    before = set(threads())
    ring = ring_of(tmp_path)
    ring.take(0)
    assert len(set(threads()) - before) == 1
    del ring
    gc.collect()
    assert not set(threads()) - before


def test_a_limit_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(bytes(3 << 20))
    spent: list[float] = []
    for limit in (None, 20e6):
        disk, start = Disk(Reading(limit_bytes_s=limit)), time.perf_counter()
        disk.read(Stretch(file, 0, 3 << 20, 0), memoryview(memory(3 << 20)), 3 << 20)
        spent.append(time.perf_counter() - start)
        assert disk.tally.bytes == 3 << 20
    assert spent[1] >= (3 << 20) / 20e6 * 0.6 and spent[1] > spent[0]


def parts() -> st.SearchStrategy[list[Stored]]:
    def lay(sizes: list[tuple[int, int]]) -> list[Stored]:
        out, at = [], 8
        for gap, size in sizes:
            at += gap
            out.append(Stored(Path("f"), at, size, torch.uint8, (size,)))
            at += size
        return out

    return st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 300_000)), min_size=1, max_size=8).map(lay)


@given(parts=parts(), turn=st.randoms())
def test_stretches_cover_every_part_once_and_are_aligned(parts: list[Stored], turn: Any) -> None:
    turn.shuffle(parts)
    found, at, size = stretches(parts)
    for a, b in pairwise(found):
        assert a.begin + a.size <= b.begin and a.at + a.size == b.at
    assert size == sum(f.size for f in found)
    for s, place in zip(parts, at, strict=True):
        home = [f for f in found if f.begin <= s.begin and s.begin + s.size <= f.begin + f.size]
        assert len(home) == 1 and place == home[0].at + s.begin - home[0].begin
    assert all(f.begin % ALIGN == f.size % ALIGN == f.at % ALIGN == 0 for f in found)


def test_the_catalogue_reads_what_safetensors_reads(model: Path) -> None:
    from safetensors.torch import load_file

    want, found = load_file(model / "model.safetensors"), catalogue(model)
    assert found.keys() == want.keys()
    disk: Disk = Disk(DIRECT)
    for name, s in found.items():
        (read,), (at,), size = stretches([s])
        into = memory(size)
        disk.read(read, memoryview(into), at + s.size)
        got = torch.frombuffer(into, dtype=s.dtype, count=s.size // 4, offset=at).view(s.shape)
        assert torch.equal(got, want[name]), name
    assert disk.how in ("O_DIRECT, page cache bypassed", "page cache dropped after use")


@pytest.mark.parametrize("damage", [lambda b: b[:6], lambda b: b"\xff" * 8 + b[8:], lambda b: b[:8] + b"{]" + b[10:]])
def test_damaged_files_are_named(model: Path, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    (tmp_path / "model.safetensors").write_bytes(damage((model / "model.safetensors").read_bytes()[:2000]))
    with pytest.raises(ModelError, match="cannot be streamed: its files are damaged"):
        catalogue(tmp_path)
