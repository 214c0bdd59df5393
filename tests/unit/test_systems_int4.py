"""Weights of four bits: the numbers they stand for, the same row among any number of rows, where they do not run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hedgerow.core.errors import UsageError
from hedgerow.models.opened import open_net
from hedgerow.models.runner import Runner
from hedgerow.systems import int4
from hedgerow.systems.int4 import GROUP, Int4Linear, dequantised, quantised, slower_from
from hedgerow.systems.linear import PackedLinear, PartLinear, pack
from hedgerow.target.lm import LMTarget, TargetInfo
from tests.unit.models_kit import call, prefill, random_tree, scattered, tree_group, write_llama
from tests.unit.test_systems_linear import Layer, packs

BF16 = torch.bfloat16
runs = pytest.mark.skipif(bool(int4.why_not(torch.zeros(1, dtype=BF16))), reason="no int4 products in this torch")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.floats(0.01, 100), shift=st.floats(-50, 50))
def test_an_element_is_off_by_half_a_step_at_most(seed: int, spread: float, shift: float) -> None:
    w = (random(8, 2 * GROUP, seed=seed).float() * spread + shift).to(BF16)
    q, grid = quantised(w)
    assert q.min() >= 0 and q.max() <= 15 and grid.shape == (2, 8, 2) and grid.dtype == BF16
    groups = w.float().view(8, 2, GROUP)
    low, high = groups.aminmax(dim=2, keepdim=True)
    # Half a step, and what rounding scale and zero to bf16 moves the ends of the grid.
    allowed = (high - low) / 30 + 2**-8 * (low.abs() + (high - low))
    assert ((dequantised(q, grid).view(8, 2, GROUP) - groups).abs() <= allowed + 1e-6).all()


def test_a_weight_made_of_sixteen_values_a_group_comes_back() -> None:
    """Such as a file of four-bit weights was dequantised to."""
    some = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 16, (32, 4, GROUP), generator=some)
    levels[:, :, 0], levels[:, :, 1] = 0, 15
    w = ((levels - 8) * 0.125 * (1 + torch.arange(4))[:, None] + 1.0).view(32, 4 * GROUP)
    q, grid = quantised(w.to(BF16))
    assert torch.equal(q.view(32, 4, GROUP), levels) and torch.equal(dequantised(q, grid), w)


@runs
@torch.inference_mode()
@pytest.mark.parametrize(("out", "inner"), [(960, 576), (576, 1536), (3072, 576), (16, 32)])
def test_the_product_is_that_of_the_numbers_and_a_row_is_the_same_among_any(out: int, inner: int) -> None:
    weight, x = random(out, inner), random(1, 128, inner, seed=1)
    product = Int4Linear(weight, random(out, seed=2))
    whole = product(x)
    want = x.float() @ dequantised(*quantised(weight)).T + random(out, seed=2).float()
    torch.testing.assert_close(whole.float(), want, atol=0.02 * float(want.std()), rtol=0.02)
    different = [n for n in (1, 2, 3, 4, 5, 8, 16, 17, 33, 64, 100) if not torch.equal(product(x[:, :n]), whole[:, :n])]
    assert not different, f"rows differ at {different} rows"


@runs
@packs
@torch.inference_mode()
def test_a_model_in_four_bits_keeps_its_head_and_what_does_not_fit() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer(bias=True)])
            self.odd, self.head = nn.Linear(64, 33), nn.Linear(64, 96, bias=False)

        def get_output_embeddings(self) -> nn.Module:
            return self.head

    torch.manual_seed(0)
    model = Model().to(BF16)
    layer = model.layers[1]
    x = random(1, 5, 64)
    want = torch.cat([
        x.float() @ dequantised(*quantised(m.weight)).T + (0 if m.bias is None else m.bias.float())
        for m in (layer.q_proj, layer.k_proj, layer.v_proj)
    ], -1)
    packed = pack(model, "int4")
    assert packed.why_not_faster == ""
    assert packed.backend.startswith("int4 weights in groups of 32, bf16 head, torch's operator: ")
    assert "slower than bf16 " in packed.backend or "faster than bf16 up to 32 rows" in packed.backend
    got = torch.cat([layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)], -1)
    torch.testing.assert_close(got.float(), want, atol=0.02, rtol=0.02)
    assert isinstance(layer.q_proj, PartLinear) and isinstance(layer.q_proj._shared.product, Int4Linear)
    assert isinstance(model.head, PackedLinear) and isinstance(model.odd, PackedLinear)
    assert isinstance(layer.o_proj, PackedLinear), "144 inputs are no groups of 32"


def test_where_four_bits_do_not_run_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "need bf16" in int4.why_not(torch.zeros(1))
    assert "CPU and CUDA" in int4.why_not(torch.zeros(1, device="meta", dtype=BF16))
    model = nn.Sequential(nn.Linear(8, 8, dtype=BF16))
    assert "no weight of the model has a shape for int4" in str(pack(model, "int4")) and type(model[0]) is nn.Linear
    path = write_llama(tmp_path / "m")
    with pytest.raises(UsageError, match=r"quant is 'int4', which cannot run here: int4 weights need bf16.*leave"):
        open_net(path, "m", torch.float32, "cpu", "int4")
    monkeypatch.setattr(Int4Linear, "forward", lambda self, x: torch.zeros(1, 5, 64, dtype=BF16))
    assert "wrong product in a self-test" in int4.why_not(torch.zeros(1, dtype=BF16))


def test_from_how_many_rows_it_is_slower_is_measured() -> None:
    now = [0.0]

    def taking(seconds: dict[int, float]) -> object:
        def product(x: torch.Tensor) -> torch.Tensor:
            now[0] += seconds[x.shape[1]]
            return x

        return product

    flat = taking(dict.fromkeys((1, 2, 4), 1.0))

    def found(*seconds: float) -> int | None:
        ours = taking(dict(zip((1, 2, 4), seconds, strict=True)))
        return slower_from(ours, flat, 8, torch.device("cpu"), rows=(1, 2, 4), repetitions=3, clock=lambda: now[0])

    assert [found(0.5, 0.9, 2.0), found(2.0, 2.0, 2.0), found(0.5, 0.5, 0.5), found(2.0, 0.5, 2.0)] == [4, 1, None, 4]


@runs
@packs
def test_plain_and_tree_steps_of_a_model_in_four_bits_are_the_same_rows(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m", hidden_size=64, intermediate_size=96, head_dim=16)
    net = open_net(path, "m", BF16, "cpu", "int4").net
    assert isinstance(net.model.model.layers[0].mlp.down_proj, Int4Linear)
    target = LMTarget(Runner(net, 4, 200), TargetInfo("m", net.vocab, 200, "cpu", "bf16", "int4"))
    rng = np.random.default_rng(0)
    text, path_ids = rng.integers(3, 128, 30).tolist(), rng.integers(3, 128, 5).tolist()
    slot = prefill(target, text)
    single = []
    for depth, token in enumerate(path_ids):
        rows, _ = call(target, [tree_group(slot, token, 30 + depth, random_tree(rng, 0, 128))])
        target.commit(slot, [0])
        single.append(rows.logits(0, 0))
    for count in (8, 16, 33):
        other = prefill(target, text)
        tree, at = scattered(path_ids[1:], count, rng, 128)
        rows, _ = call(target, [tree_group(other, path_ids[0], 30, tree)])
        assert all(np.array_equal(rows.logits(0, row), single[d]) for d, row in enumerate([0, *at]))
        target.release(other)


