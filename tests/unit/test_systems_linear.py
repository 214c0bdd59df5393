"""Packed matrix products: the same numbers, whatever the number of rows; refused in words where they cannot run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hedgerow.systems import linear
from hedgerow.systems.linear import FusedRMSNorm, PackedLinear, PartLinear, fuse_norms, pack

packs = pytest.mark.skipif(
    bool(linear._why_not(torch.zeros(4, 4, dtype=torch.bfloat16))), reason="this CPU has no packed bf16 products"
)


class Layer(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(64, n, bias=bias and n != 32) for n in (64, 32, 48))
        self.o_proj = nn.Linear(144, 64, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o_proj(torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 64)
        self.layers = nn.ModuleList([Layer(), Layer(bias=True)])
        self.head = nn.Linear(64, 256, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


@packs
@torch.inference_mode()
def test_a_packed_model_gives_the_same_numbers() -> None:
    torch.manual_seed(0)
    model = Model().bfloat16()
    ids = torch.arange(12)[None]
    want = model(ids)
    packed = pack(model)
    assert packed.backend == "mkldnn-packed bf16" and packed.why_not_faster == "" and str(packed) == packed.backend
    assert isinstance(model.layers[0].q_proj, PartLinear) and isinstance(model.layers[1].o_proj, PackedLinear)
    assert isinstance(model.head, PackedLinear) and model.embed.weight.shape == (256, 64), "the embedding keeps its own"
    torch.testing.assert_close(model(ids), want, atol=0.02, rtol=0.02)
    assert torch.equal(model(ids), model(ids))


@packs
@torch.inference_mode()
@pytest.mark.parametrize(("out", "inner"), [(960, 576), (576, 1536), (192, 576), (49152, 576), (7, 33)])
def test_a_row_is_the_same_among_any_number_of_rows(out: int, inner: int) -> None:
    source = torch.Generator().manual_seed(0)
    weight = torch.randn(out, inner, generator=source).bfloat16()
    x = torch.randn(1, 128, inner, generator=source).bfloat16()
    product = PackedLinear(weight, None)
    whole = product(x)
    torch.testing.assert_close(whole.float(), F.linear(x.float(), weight.float()), atol=0.4, rtol=0.02)
    different = [n for n in (1, 2, 3, 4, 5, 8, 16, 17, 33, 64, 100) if not torch.equal(product(x[:, :n]), whole[:, :n])]
    assert not different, f"rows differ at {different} rows"


@packs
@torch.inference_mode()
def test_parts_fed_with_different_inputs_are_right_all_the_same() -> None:
    torch.manual_seed(0)
    layer = Layer().bfloat16()
    q, k = layer.q_proj, layer.k_proj
    a, b = torch.randn(2, 1, 4, 64).bfloat16()
    want = [q(a), k(b), q(b), k(a), q(a)]
    pack(nn.ModuleDict({"layer": layer}))
    got = [layer.q_proj(a), layer.k_proj(b), layer.q_proj(b), layer.k_proj(a), layer.q_proj(a)]
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.02, rtol=0.02)


@packs
def test_one_module_at_two_places_stays_one() -> None:
    shared = nn.Linear(32, 32, dtype=torch.bfloat16)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(shared)})
    pack(model)
    assert model["a"][0] is model["b"][0] and isinstance(model["a"][0], PackedLinear)


@packs
def test_subclasses_are_left_alone() -> None:
    class Adapted(nn.Linear):
        pass

    model = nn.Sequential(Adapted(8, 8, dtype=torch.bfloat16), nn.Linear(8, 8, dtype=torch.bfloat16))
    pack(model)
    assert type(model[0]) is Adapted and isinstance(model[1], PackedLinear)


def test_why_packing_is_not_active_is_said() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    packed = pack(model)
    assert type(model[0]) is nn.Linear
    assert str(packed) == "torch fp32 (packed weights need bf16; the model is fp32)"
    assert "CPU" in linear._why_not(torch.zeros(2, 2, device="meta"))
    assert pack(nn.Sequential(nn.Embedding(2, 2))).why_not_faster == "the model has no plain linear layers"


def test_a_wrong_product_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: torch.zeros(1, 5, 64, dtype=torch.bfloat16))
    assert "self-test" in linear._why_not(torch.zeros(2, 2, dtype=torch.bfloat16))


class LlamaRMSNorm(nn.Module):
    def __init__(self, size: int, plus: float = 0.0) -> None:
        super().__init__()
        self.weight, self.variance_epsilon, self.plus = nn.Parameter(torch.rand(size)), 1e-5, plus

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        return ((self.weight + self.plus) * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5))).to(x.dtype)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_are_fused_only_if_they_are_what_they_seem(dtype: torch.dtype) -> None:
    model = nn.Sequential(LlamaRMSNorm(48), LlamaRMSNorm(48, plus=1.0), nn.LayerNorm(48)).to(dtype)
    x = torch.randn(1, 5, 48, generator=torch.Generator().manual_seed(0)).to(dtype)
    want = model[0](x)
    assert fuse_norms(model) == 1
    assert isinstance(model[0], FusedRMSNorm) and isinstance(model[1], LlamaRMSNorm)
    torch.testing.assert_close(model[0](x), want)
    assert torch.equal(model[0](x)[:, :1], model[0](x[:, :1])), "row by row"
