"""The compiled EAGLE-3 head against the reference in float32, and every row against itself in other company."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hedgerow.core.errors import ModelError
from hedgerow.core.parts import Feats
from hedgerow.core.tree import TokenTree
from hedgerow.draft.base import Base
from hedgerow.draft.formats.head import Head, HeadConfig
from hedgerow.draft.nets.base import HeadNet, HeadOut
from hedgerow.draft.nets.compiled import compiled_head
from hedgerow.draft.nets.reference import TorchHead
from hedgerow.systems import mask
from hedgerow.systems.attention import Span
from hedgerow.systems.kv import KVStore, open_store
from hedgerow.systems.rank import top_k

HIDDEN, TARGET_HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, DRAFT = 96, 64, 4, 2, 64, 80, 300, 205
TAPS = (0, 2, 3)


def head(seed: int = 0, layers: int = 1, biases: bool = False, qk_norms: bool = False, **flags: Any) -> Head:
    """Random weights that bf16 holds exactly; the drafter is wider than its target and has its own embedding."""
    source = torch.Generator().manual_seed(seed)
    c = HeadConfig(
        "eagle3", HIDDEN, TARGET_HIDDEN, VOCAB, DRAFT, layers=layers, heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM,
        inner=INNER, taps=TAPS, **flags,
    )
    t: dict[str, torch.Tensor] = {}

    def linear(name: str, rows: int, columns: int) -> None:
        t[f"{name}.weight"] = (torch.randn(rows, columns, generator=source) / columns**0.5).bfloat16().float()
        if biases and name != "lm_head":
            t[f"{name}.bias"] = torch.randn(rows, generator=source).bfloat16().float() / 4

    def norm(name: str, size: int = HIDDEN) -> None:
        t[f"{name}.weight"] = 1 + torch.randn(size, generator=source) / 4

    linear("fc", HIDDEN, len(TAPS) * TARGET_HIDDEN)
    for i in range(layers):
        at, wide = f"layers.{i}.", HIDDEN * (2 if i == 0 else 1)
        for name, rows, columns in (
            ("self_attn.q_proj", HEADS * DIM, wide), ("self_attn.k_proj", KV_HEADS * DIM, wide),
            ("self_attn.v_proj", KV_HEADS * DIM, wide), ("self_attn.o_proj", HIDDEN, HEADS * DIM),
            ("mlp.gate_proj", INNER, HIDDEN), ("mlp.up_proj", INNER, HIDDEN), ("mlp.down_proj", HIDDEN, INNER),
        ):
            linear(at + name, rows, columns)
        norm(f"{at}input_layernorm")
        norm(f"{at}post_attention_layernorm")
        if qk_norms:
            norm(f"{at}self_attn.q_norm", DIM)
            norm(f"{at}self_attn.k_norm", DIM)
    norm("layers.0.hidden_norm")
    norm("norm")
    linear("lm_head", DRAFT, HIDDEN)
    linear("embed_tokens", VOCAB, HIDDEN)
    t.pop("embed_tokens.bias", None)
    if c.norm_before_fc:
        norm("input_norm", len(TAPS) * TARGET_HIDDEN)
    for i in range(len(TAPS) * c.fc_norm):
        norm(f"fc_norm.{i}", TARGET_HIDDEN)
    return Head(c, t, torch.randperm(VOCAB, generator=source)[:DRAFT].sort().values)


def base(dtype: torch.dtype) -> Base:
    table = torch.zeros(VOCAB, TARGET_HIDDEN, dtype=dtype)
    return Base(table, lambda: table, VOCAB, 4, 512, dtype, torch.device("cpu"))


def both(made: Head, library: ctypes.CDLL, kind: str) -> list[HeadNet]:
    """The reference in float32, and the compiled one."""
    return [TorchHead(made, base(torch.float32)), compiled_head(made, base(torch.bfloat16), library, kind)]


def store(net: HeadNet) -> KVStore:
    return open_store("paged", net.layers, net.kv_heads, net.head_dim, 4, 512, 128, net.dtype, net.device)


class Part(NamedTuple):
    """Rows of one slot: tokens, features, positions, whom they see."""

    slot: int
    tokens: np.ndarray
    features: torch.Tensor
    positions: np.ndarray
    sees: np.ndarray


def run(net: HeadNet, kv: KVStore, parts: list[Part], top: int = 0, keep: list[int] | None = None) -> HeadOut:
    """One pass behind what the slots hold; all rows are kept if `keep` names none."""
    spans, start = [], 0
    for p in parts:
        kv.stage(p.slot, len(p.tokens))
        spans.append(Span(p.slot, start, len(p.tokens), kv.length(p.slot), p.sees))
        start += len(p.tokens)
    return net.run(
        kv, np.concatenate([p.tokens for p in parts]), torch.cat([p.features for p in parts]),
        np.concatenate([p.positions for p in parts]), spans, list(range(start)) if keep is None else keep, top,
    )


def chain(kv: KVStore, slot: int, tokens: np.ndarray, features: torch.Tensor) -> Part:
    n = len(tokens)
    return Part(slot, tokens, features, np.arange(n) + kv.length(slot), mask.causal(n))


def off(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs.float()).pow(2).mean().sqrt() / theirs.float().std())


def compare(library: ctypes.CDLL, made: Head, kind: str, limit: float) -> None:
    """A prompt with real features, then two rounds of drafted rows that feed on the first's states."""
    rng = np.random.default_rng(1)
    nets = both(made, library, kind)
    taps = torch.randn(len(TAPS), 37, TARGET_HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16()
    tokens = rng.integers(0, VOCAB, 37)
    tree = TokenTree.of(rng.integers(0, VOCAB, 9), [-1, -1, -1, 0, 0, 1, 3, 3, 6])
    outs: list[list[HeadOut]] = []
    for net in nets:
        kv = store(net)
        slot = kv.acquire()
        features = net.fuse(Feats(taps=taps.to(net.dtype)))
        mine = [run(net, kv, [chain(kv, slot, tokens, features)])]
        kv.commit(slot, range(37))
        fed = mine[0].hidden[-1:].repeat(9, 1) * torch.linspace(0.5, 1.5, 9)[:, None]
        part = Part(slot, tree.tokens, fed.to(net.dtype), tree.positions(36)[1:], tree.mask[1:, 1:])
        mine.append(run(net, kv, [part]))
        outs.append(mine)
    for ours, theirs in zip(outs[1], outs[0], strict=True):
        assert off(ours.logits, theirs.logits) < limit
        assert off(ours.hidden, theirs.hidden) < limit
        assert ours.logits.dtype == ours.hidden.dtype == torch.float32
    assert off(outs[1][0].logits, outs[0][1].logits[:1].expand_as(outs[1][0].logits)) > 0.5, "the bound says something"


@pytest.mark.parametrize("kind", ["bf16", "int8"])
@pytest.mark.parametrize(
    "facts",
    [
        {}, {"norm_before_residual": True}, {"norm_output": True}, {"fc_norm": True}, {"norm_before_fc": True},
        {"layers": 2}, {"biases": True}, {"qk_norms": True},
        {"layers": 2, "norm_before_residual": True, "norm_before_fc": True, "norm_output": True,
         "embedding_scale": 3.5, "rope_theta": 500.0, "eps": 1e-3},
    ],
    ids=lambda f: " ".join(f) or "plain",
)
def test_close_to_the_reference(library: ctypes.CDLL, kind: str, facts: dict[str, Any]) -> None:
    compare(library, head(**facts), kind, 0.02 if kind == "bf16" else 0.05)


@pytest.mark.parametrize("kind", ["bf16", "int8"])
@pytest.mark.parametrize("prefix", [3, 64, 131])
def test_a_row_has_the_same_bits_in_any_company(library: ctypes.CDLL, kind: str, prefix: int) -> None:
    """Token by token, all at once, in a tree, beside other slots: cached equals uncached, one span equals several."""
    rng, net = np.random.default_rng(prefix), compiled_head(head(layers=2), base(torch.bfloat16), library, kind)
    kv = store(net)
    together, alone, other = (kv.acquire() for _ in range(3))
    tokens = rng.integers(0, VOCAB, prefix)
    taps = torch.randn(len(TAPS), prefix, TARGET_HIDDEN).bfloat16()
    features = net.fuse(Feats(taps=taps))
    assert torch.equal(net.fuse(Feats(taps=taps[:, 1:3])), features[1:3])
    half = prefix // 2 + 1
    all_at_once = run(
        net, kv, [chain(kv, other, tokens[:half], features[:half]), chain(kv, together, tokens, features)]
    )
    kv.commit(together, range(prefix))
    kv.commit(other, range(half))
    for i in range(prefix):
        one = run(net, kv, [chain(kv, alone, tokens[i : i + 1], features[i : i + 1])])
        kv.commit(alone, [0])
        for field in range(2):
            assert torch.equal(one[field][0], all_at_once[field][half + i])
    tree = TokenTree.of(rng.integers(0, VOCAB, 12), [int(rng.integers(-1, i)) for i in range(12)])
    fed = torch.randn(13, HIDDEN)
    out = run(net, kv, [
        Part(other, tree.tokens[:2], fed[:2], np.array([half, half]), np.eye(2, dtype=np.bool_)),
        Part(together, np.concatenate([[7], tree.tokens]), fed, tree.positions(prefix), tree.mask),
    ])
    path = [-1, *tree.path(max(range(12), key=lambda v: len(tree.path(v))))]
    for v in path:
        token = np.array([7 if v < 0 else tree.tokens[v]])
        one = run(net, kv, [chain(kv, alone, token, fed[v + 1 : v + 2])])
        kv.commit(alone, [0])
        for field in range(2):
            assert torch.equal(one[field][0], out[field][2 + v + 1]), v


def test_ranks_and_laws_are_those_of_the_logits(library: ctypes.CDLL) -> None:
    net = compiled_head(head(), base(torch.bfloat16), library, "bf16")
    kv = store(net)
    slot = kv.acquire()
    tokens, features = np.arange(20), torch.randn(20, HIDDEN) * torch.linspace(0.1, 4, 20)[:, None]
    keep = [3, 19, 4]
    out = run(net, kv, [chain(kv, slot, tokens, features)], top=7, keep=keep)
    kv.drop(slot)
    every = run(net, kv, [chain(kv, slot, tokens, features)])
    assert torch.equal(out.logits, every.logits[keep]) and torch.equal(out.hidden, every.hidden)
    ids, values = top_k(out.logits, 7)
    assert torch.equal(out.ranks[:, 1:8].long(), ids) and torch.equal(out.ranks[:, 8:], values)
    assert torch.equal(out.ranks[:, 0].long(), ids[:, 0])
    law = out.logits.double().log_softmax(1)
    assert out.law is not None
    torch.testing.assert_close(out.law[:, 0].double(), out.logits.double().logsumexp(1), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(out.law[:, 1].double(), -(law.exp() * law).sum(1), atol=1e-4, rtol=1e-5)


def test_taps_are_taken_by_name_and_a_head_of_full_vocabulary_borrows_the_targets_matrix(library: ctypes.CDLL) -> None:
    made = head()
    net = compiled_head(made, base(torch.bfloat16), library, "bf16")
    taps = torch.randn(5, 4, TARGET_HIDDEN).bfloat16()
    picked = net.fuse(Feats(taps=taps, tapped=(0, 1, 2, 3, 7)))
    assert torch.equal(picked, net.fuse(Feats(taps=taps[[0, 2, 3]])))
    own = made.tensors.pop("lm_head.weight")
    table = torch.randn(VOCAB, HIDDEN).bfloat16()
    table[made.ids] = own.bfloat16()
    borrowed = compiled_head(made, Base(
        torch.zeros(VOCAB, TARGET_HIDDEN).bfloat16(), lambda: table, VOCAB, 4, 512, torch.bfloat16, torch.device("cpu")
    ), library, "bf16")
    assert torch.equal(borrowed.compiled.weights.body.head.panels, net.compiled.weights.body.head.panels)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "eagle1"}, "kind 'eagle1'"), ({"head_dim": 32}, "a head's 32"), ({"hidden": 100}, "size is 100"),
        ({"layers": 2}, "lacks the tensor 'layers.1.mlp.gate_proj.weight'"), ({"heads": 2}, "its first q/k/v product"),
    ],
    ids=lambda x: str(x)[:20],
)
def test_others_are_refused_in_words(library: ctypes.CDLL, change: dict[str, Any], reason: str) -> None:
    made = head()
    changed = Head(HeadConfig(**{**vars(made.config), **change}), made.tensors, made.ids)
    with pytest.raises(ModelError, match=reason):
        compiled_head(changed, base(torch.bfloat16), library, "bf16")
    with pytest.raises(ModelError, match="float32 on cpu"):
        compiled_head(made, base(torch.float32), library, "bf16")


def test_a_context_longer_than_the_tables_makes_them_grow(library: ctypes.CDLL) -> None:
    made = head()
    nets = both(made, library, "bf16")
    found = []
    for net in nets:
        kv = store(net)
        part = Part(kv.acquire(), np.array([5, 6]), torch.ones(2, HIDDEN, dtype=net.dtype), np.array([3000, 9000]),
                    mask.causal(2))
        found.append(run(net, kv, [part]))
    assert off(found[1].logits, found[0].logits) < 0.02
