"""Medusa's and Hydra's drafters against the formulas of their papers, written out plainly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from hedgerow.core.parts import Ask, Feats, Frontier, Sampling, Step, Verdict, View
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.draft.base import Base
from hedgerow.draft.heads import HydraDrafter, MedusaDrafter
from hedgerow.draft.prefix import CHUNK
from hedgerow.target.tiny import TinyTarget
from tests.unit.heads_kit import synthetic

VOCAB, HIDDEN = 64, 64


@pytest.fixture(scope="module")
def target() -> TinyTarget:
    return TinyTarget(seed=0, vocab=VOCAB, slots=3)


def view(slot: int, root: int, position: int) -> View:
    return View(slot, slot, root, position, 9, Sampling(), Rng(0).at(position))


def features(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(seed))


def below(drafter, asked: View, path=(), k: int = VOCAB):
    """Log-probabilities of all children at the end of a path, by token; the path is given to the view's growth."""
    node = -1
    for token in path:
        node = asked.growth.add([node], [1], [token], [0.0])[0]
    got = drafter.children([Ask(asked.slot, Frontier([node], [k], selection=Selection.TOP_K), asked)])
    return dict(zip(got.token, got.log_q, strict=True))


def assert_law(found: dict[int, float], logits: torch.Tensor, ids: torch.Tensor | None = None) -> None:
    want = logits.double().log_softmax(-1)
    names = range(len(want)) if ids is None else ids.tolist()
    assert set(found) == set(names)
    np.testing.assert_allclose([found[t] for t in names], want.numpy(), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("draft_vocab", [None, 24])
def test_medusas_marginals_are_those_of_the_formula(target: TinyTarget, draft_vocab: int | None) -> None:
    head = synthetic(target, "medusa", draft_vocab, depth=2)
    drafter, f = MedusaDrafter(head, Base.of(target)), features(5)
    drafter.begin(0, [1, 2, 3, 4, 5, 6], Feats(last_hidden=f))
    asked = view(0, 6, 5)
    for depth in range(4):
        z = f[-1]
        for layer in range(2):
            z = z + nn.functional.silu(head.tensors[f"heads.{depth}.blocks.{layer}.weight"] @ z)
        want = head.tensors[f"heads.{depth}.lm_head.weight"] @ z
        assert_law(below(drafter, asked, range(depth)), want, head.ids)
    assert below(drafter, asked, range(4)) == {}, "there is no fifth head"


def test_medusas_siblings_share_their_children_and_hydras_do_not(target: TinyTarget) -> None:
    for kind, cls, alike in (("medusa", MedusaDrafter, True), ("hydra", HydraDrafter, False)):
        drafter = cls(synthetic(target, kind), Base.of(target))
        drafter.begin(0, [1, 2], Feats(last_hidden=features(1)))
        asked = view(0, 2, 1)
        one, other = below(drafter, asked, (3, 4)), below(drafter, asked, (5, 4))
        assert (max(abs(one[t] - other[t]) for t in one) < 1e-6) is alike


def test_hydras_heads_read_the_path_as_the_formula_says(target: TinyTarget) -> None:
    head = synthetic(target, "hydra", 24, depth=2)
    base, w, f = Base.of(target), head.tensors, features(3)
    drafter = HydraDrafter(head, base)
    drafter.begin(0, [1, 2, 3, 7], Feats(last_hidden=f))
    asked, path = view(0, 7, 3), (11, 30, 5)
    for depth in range(4):
        x = torch.cat([f[-1], *(base.embedding[t] for t in (7, *path[:depth]))])
        z = w[f"heads.{depth}.residual.weight"] @ x + w[f"heads.{depth}.residual.bias"] + nn.functional.silu(
            w[f"heads.{depth}.blocks.0.weight"] @ x + w[f"heads.{depth}.blocks.0.bias"]
        )
        z = z + nn.functional.silu(w[f"heads.{depth}.blocks.1.weight"] @ z + w[f"heads.{depth}.blocks.1.bias"])
        want = w[f"heads.{depth}.lm_head.weight"] @ z + w[f"heads.{depth}.lm_head.bias"]
        assert_law(below(drafter, asked, path[:depth]), want, head.ids)


def prefix_of(w: dict[str, torch.Tensor], f: torch.Tensor) -> torch.Tensor:
    """The prefix layer over a whole text at once, written out."""
    def rms(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w[f"prefix.{name}.weight"]

    def turned(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        angle = torch.arange(len(f))[:, None] * 10000.0 ** (-torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    y, at = rms(f, "layers.0.input_layernorm"), "prefix.layers.0."
    q, k, v = (
        (y @ w[f"{at}self_attn.{s}_proj.weight"].T).view(len(f), -1, 16).transpose(0, 1) for s in "qkv"
    )
    k, v = (t.repeat_interleave(2, 0) for t in (turned(k), v))
    score = turned(q) @ k.transpose(1, 2) / math.sqrt(16) + torch.full((len(f), len(f)), -math.inf).triu(1)
    x = f + (score.softmax(-1) @ v).transpose(0, 1).flatten(1) @ w[f"{at}self_attn.o_proj.weight"].T
    y = rms(x, "layers.0.post_attention_layernorm")
    gate, up = (y @ w[f"{at}mlp.{s}_proj.weight"].T for s in ("gate", "up"))
    return rms(x + (nn.functional.silu(gate) * up) @ w[f"{at}mlp.down_proj.weight"].T, "norm")


@pytest.mark.parametrize("prompt", [3, CHUNK + 5])
def test_hydra_plus_plus_reads_the_whole_text_through_its_prefix_layer(target: TinyTarget, prompt: int) -> None:
    """Whatever was accepted, skipped or forked: f′ is the one of the whole text run at once."""
    head = synthetic(target, "hydra", arch="prefix-mlp")
    base = Base.of(target)
    drafter, plain = HydraDrafter(head, base), HydraDrafter(synthetic(target, "hydra"), base)
    f = features(prompt + 9)
    drafter.begin(0, [0] * (prompt + 1), Feats(last_hidden=f[:prompt]))
    length = prompt
    for accepted, ask_now in ((1, True), (0, False), (2, False), (1, True)):
        rows = torch.cat([f[length : length + 1], features(3, seed=length), f[length + 1 : length + 1 + accepted]])
        tree = TokenTree.of([9] * (3 + accepted), [-1, -1, -1, *([-1, 3, 4][:accepted])])
        path = tuple(range(3, 3 + accepted))          # three refused siblings stand before the accepted path
        drafter.commit(0, Step(tree, Verdict(path, 5, "bonus"), Feats(last_hidden=rows), 0, length, 0.0))
        length += 1 + accepted
        if ask_now:
            want = prefix_of(head.tensors, f[:length])[-1]
            plain.begin(1, [0], Feats(last_hidden=want[None]))
            found, same = below(drafter, view(0, 5, length)), below(plain, view(1, 5, length))
            assert set(found) == set(same) and max(abs(found[t] - same[t]) for t in same) < 1e-4
    drafter.fork(0, 2, length + 1)
    assert below(drafter, view(2, 5, length)) == pytest.approx(found, abs=1e-6)
    drafter.fork(0, 1, length)
    assert below(drafter, view(1, 5, length - 1)) == {}, "of a shorter text the last feature is not known"
    for slot in (0, 1, 2):
        drafter.release(slot)
    assert drafter.prefix is not None and drafter.prefix.context.kv.free_slots == 3


def test_a_step_begins_from_the_last_accepted_rows_feature(target: TinyTarget) -> None:
    head = synthetic(target, "medusa")
    drafter = MedusaDrafter(head, Base.of(target))
    rows = features(4)
    for path, row in (((), 0), ((0,), 1), ((0, 2), 3)):
        drafter.begin(0, [1, 2], Feats(last_hidden=features(1, seed=9)))
        tree = TokenTree.of([5, 6, 7], [-1, -1, 0])
        drafter.commit(0, Step(tree, Verdict(path, 8, "bonus"), Feats(last_hidden=rows), 2, 1, 0.0))
        fresh = MedusaDrafter(head, Base.of(target))
        fresh.begin(0, [1], Feats(last_hidden=rows[row : row + 1]))
        assert below(drafter, view(0, 8, 2)) == pytest.approx(below(fresh, view(0, 8, 2)))
    drafter.fork(0, 1, 5)
    assert len(below(drafter, view(1, 8, 2))) == VOCAB
    drafter.fork(0, 1, 3)
    assert below(drafter, view(1, 8, 2)) == {}
