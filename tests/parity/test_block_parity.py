"""Block drafters: cached decoding against the whole pass at once, corrections against their teacher-forced forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hedgerow.core.errors import InvariantError, ModelError
from hedgerow.core.parts import Ask, Feats, Frontier, Sampling, Step, Verdict, View
from hedgerow.core.probs import law
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.draft import block as block_module
from hedgerow.draft.base import Base
from hedgerow.draft.block import BlockDrafter
from hedgerow.draft.formats.head import Head
from hedgerow.draft.path import PathDrafter
from hedgerow.target.tiny import TinyTarget
from tests.unit.heads_kit import changed, synthetic

VOCAB, HIDDEN = 40, 64
KINDS: dict[str, dict[str, Any]] = {
    "in place": {}, "from the anchor": {"from_anchor": True}, "causal": {"causal": True},
    "windows": {"windows": (3, None)}, "causal windows": {"windows": (3, None), "window_causal": True},
    "reduced": {"draft_vocab": 17},
}


@pytest.fixture(scope="module")
def target() -> TinyTarget:
    return TinyTarget(seed=0, vocab=VOCAB, slots=3, max_len=256)


def view(slot: int, root: int, position: int, temperature: float = 0.0) -> View:
    sampling = Sampling(temperature)
    return View(
        slot, slot, root, position, 9, sampling, Rng(0).at(position),
        draw=lambda row, depth, ids=None: law(row, sampling),
    )


def taps(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, rows, HIDDEN, generator=torch.Generator().manual_seed(seed))


def whole_pass(head: Head, embedding: torch.Tensor, seen: torch.Tensor, root: int) -> torch.Tensor:
    """z of every slot, with all keys computed anew and every mask written out: DFlash as its paper states it."""
    w, c, known = head.tensors, head.config, seen.shape[1]

    def rms(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + c.eps) * w[f"{name}.weight"]

    def turned(x: torch.Tensor, start: int) -> torch.Tensor:      # [rows, heads, dim]
        half = c.head_dim // 2
        angle = (start + torch.arange(len(x)))[:, None, None] * c.rope_theta ** (-torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    text = rms(torch.cat(list(seen), -1) @ w["fc.weight"].T, "hidden_norm")
    x = embedding[[root, *[c.mask_token] * (c.block - 1)]]
    at_key, at_query = torch.arange(known + c.block), known + torch.arange(c.block)
    for i in range(c.layers):
        at = f"layers.{i}."
        y = rms(x, f"{at}input_layernorm")
        q = turned(rms((y @ w[f"{at}self_attn.q_proj.weight"].T).view(c.block, -1, 16), f"{at}self_attn.q_norm"), known)
        both = torch.cat([text, y])
        k = turned(rms((both @ w[f"{at}self_attn.k_proj.weight"].T).view(-1, 2, 16), f"{at}self_attn.k_norm"), 0)
        v = (both @ w[f"{at}self_attn.v_proj.weight"].T).view(-1, 2, 16)
        sees = torch.ones(c.block, known + c.block, dtype=torch.bool)
        window = c.windows[i] if c.windows else None
        if c.causal or (window is not None and c.window_causal):
            sees &= at_key[None] <= at_query[:, None]
        if window is not None:
            sees &= at_query[:, None] - at_key[None] < window
        mixed = torch.zeros(c.block, c.heads, 16)
        for h in range(c.heads):
            score = (q[:, h] @ k[:, h // 2].T / math.sqrt(16)).masked_fill(~sees, -math.inf)
            mixed[:, h] = score.softmax(-1) @ v[:, h // 2]
        x = x + mixed.flatten(1) @ w[f"{at}self_attn.o_proj.weight"].T
        y = rms(x, f"{at}post_attention_layernorm")
        gate, up = (y @ w[f"{at}mlp.{s}_proj.weight"].T for s in ("gate", "up"))
        x = x + (nn.functional.silu(gate) * up) @ w[f"{at}mlp.down_proj.weight"].T
    return rms(x, "norm")


def predicting(head: Head, z: torch.Tensor) -> torch.Tensor:
    """The slots that predict, in order of depth."""
    return z if head.config.from_anchor else z[1:]


def base_logits(head: Head, target: TinyTarget, z: torch.Tensor) -> torch.Tensor:
    return z @ head.tensors.get("lm_head.weight", target.runner.net.head).T


def below(drafter: Any, asked: View, path: tuple[int, ...] = (), selection: Selection = Selection.TOP_K) -> Any:
    node = -1
    for token in path:
        node = asked.growth.add([node], [1], [token], [0.0])[0]
    return drafter.children([Ask(asked.slot, Frontier([node], [VOCAB], selection=selection), asked)])


def assert_law(got: Any, logits: torch.Tensor, ids: torch.Tensor | None = None) -> None:
    want = logits.double().log_softmax(-1)
    names = range(len(want)) if ids is None else ids.tolist()
    found = dict(zip(got.token, got.log_q, strict=True))
    assert set(found) == set(names)
    np.testing.assert_allclose([found[t] for t in names], want.numpy(), atol=1e-4)


def commit(drafter: Any, slot: int, seen: torch.Tensor, length: int, accepted: int) -> int:
    """A step whose accepted path stands behind two refused siblings; returns how many positions are known then."""
    refused = taps(2, seed=99)
    rows = torch.cat([seen[:, length : length + 1], refused, seen[:, length + 1 : length + 1 + accepted]], 1)
    tree = TokenTree.of([9] * (2 + accepted), [-1, -1, *([-1, 2, 3][:accepted])])
    path = tuple(range(2, 2 + accepted))
    drafter.commit(slot, Step(tree, Verdict(path, 5, "bonus"), Feats(taps=rows), 0, length, 0.0))
    return length + 1 + accepted


@pytest.mark.parametrize("max_lag", [512, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_decoding_is_the_whole_pass(
    target: TinyTarget, kind: str, max_lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over accepted paths, skipped steps, two requests at once, and a text longer than the drafter was trained for."""
    monkeypatch.setattr(block_module, "MAX_LAG", max_lag)
    options = dict(KINDS[kind])
    head = synthetic(target, "dflash", options.pop("draft_vocab", None), **options)
    base, drafter = Base.of(target), BlockDrafter(head, Base.of(target))
    seen = [taps(48, seed) for seed in (0, 1)]
    known = [4, 30]
    for slot in (0, 1):
        drafter.begin(slot, [0] * (known[slot] + 1), Feats(taps=seen[slot][:, : known[slot]]))
    for accepted, ask_now in ((1, True), (0, False), (3, False), (2, True), (0, True)):
        known = [commit(drafter, s, seen[s], known[s], accepted) for s in (0, 1)]
        if not ask_now:
            continue
        views = [view(s, 5 + s, known[s]) for s in (0, 1)]
        asks = [Ask(s, Frontier([-1], [VOCAB]), views[s]) for s in (0, 1)]
        parts = drafter.children(asks).split([1, 1])
        for s in (0, 1):
            z = predicting(head, whole_pass(head, base.embedding, seen[s][:, : known[s]], 5 + s))
            logits = base_logits(head, target, z)
            assert_law(parts[s], logits[0], head.ids)
            for depth in range(1, len(z)):
                assert_law(below(drafter, view(s, 5 + s, known[s]), (7,) * depth), logits[depth], head.ids)
            assert below(drafter, view(s, 5, known[s]), (7,) * len(z)).count == [0]
            table = parts[s].aux["block"][0]
            assert len(table) == len(z) and table[-1] == pytest.approx(
                logits[-1].log_softmax(-1).sort(descending=True).values.tolist(), abs=1e-4
            )
    drafter.fork(0, 2, known[0] + 1)
    assert below(drafter, view(2, 5, known[0])).token == below(drafter, view(0, 5, known[0])).token
    drafter.fork(1, 2, 10)
    z = predicting(head, whole_pass(head, base.embedding, seen[1][:, :9], 3))
    assert_law(below(drafter, view(2, 3, 9)), base_logits(head, target, z)[0], head.ids)
    for slot in range(3):
        drafter.release(slot)
    assert drafter.net.context.kv.free_slots == 3


def test_a_stored_mask_embedding_serves_as_the_mask(target: TinyTarget) -> None:
    head = synthetic(target, "dflash")
    own = {**head.tensors, "mask_embedding": Base.of(target).embedding[1].clone()}
    both = [head, Head(changed(head, mask_token=None).config, own)]
    laws = []
    for h in both:
        drafter = BlockDrafter(h, Base.of(target))
        drafter.begin(0, [1, 2], Feats(taps=taps(1)))
        laws.append(below(drafter, view(0, 2, 1)).log_q)
    assert laws[0] == laws[1]
    with pytest.raises(ModelError, match="mask token is None"):
        BlockDrafter(changed(head, mask_token=None), Base.of(target))
    with pytest.raises(ModelError, match="mask token is 40"):
        BlockDrafter(changed(head, mask_token=VOCAB), Base.of(target))


def test_a_text_with_holes_and_a_drafter_of_another_target_are_refused(target: TinyTarget) -> None:
    head = synthetic(target, "dflash")
    drafter = BlockDrafter(head, Base.of(target))
    drafter.begin(0, [1, 2], Feats(taps=taps(1)))
    with pytest.raises(InvariantError, match="stands at 5, features of 1 positions are known"):
        below(drafter, view(0, 2, 5))
    with pytest.raises(InvariantError, match="no features"):
        drafter.begin(1, [1, 2], Feats())
    with pytest.raises(ModelError, match="vocabulary of 41; this target's is 40"):
        BlockDrafter(changed(head, vocab=41), Base.of(target))
    with pytest.raises(ModelError, match="hidden states of 32; this target's is 64"):
        BlockDrafter(changed(head, target_hidden=32), Base.of(target))
    with pytest.raises(ModelError, match="1 slots, which leaves none"):
        BlockDrafter(changed(head, block=1), Base.of(target))


# ------------------------------------------------------------------------------------------------- corrections


def begun(head: Head, target: TinyTarget, candidates: int = 0) -> tuple[PathDrafter, torch.Tensor, torch.Tensor]:
    """A drafter with a prompt, z of its predicting slots, and their base logits."""
    drafter = PathDrafter(head, Base.of(target), candidates)
    drafter.begin(0, [1, 2, 3, 6], Feats(taps=taps(3)))
    z = predicting(head, whole_pass(head, Base.of(target).embedding, taps(3), 6))
    return drafter, z, base_logits(head, target, z)


def markov_biases(head: Head, tokens: list[int], z: torch.Tensor) -> torch.Tensor:
    """What DSpark's training forward adds to the base logits when these are the tokens before the slots."""
    w, r = head.tensors, head.config.rank
    own, out = w["markov_head.markov_w1.weight"][tokens], w["markov_head.markov_w2.weight"]
    if head.config.markov == "vanilla":
        return own @ out.T
    if head.config.markov == "gated":
        x = torch.cat([z, own], -1) @ w["markov_head.gate_proj.weight"].T + w["markov_head.gate_proj.bias"]
        return (torch.sigmoid(x) * own) @ out.T
    state, biases = torch.zeros(r), []
    for e, h in zip(own, z, strict=True):
        joint = w["markov_head.joint_proj.weight"] @ torch.cat([state, e, h]) + w["markov_head.joint_proj.bias"]
        gate = torch.sigmoid(joint[:r])
        state = gate * state + (1 - gate) * torch.tanh(joint[r : 2 * r])
        biases.append(torch.tanh(joint[2 * r :]) @ out.T)
    return torch.stack(biases)


@pytest.mark.parametrize("draft_vocab", [None, 17])
@pytest.mark.parametrize("from_anchor", [True, False])
@pytest.mark.parametrize("markov", ["vanilla", "gated", "rnn"])
def test_a_markov_path_is_the_teacher_forced_block(
    target: TinyTarget, markov: str, from_anchor: bool, draft_vocab: int | None
) -> None:
    confidence = ("confidence_head.proj.weight", "confidence_head.proj.bias")
    head = synthetic(
        target, "dspark", draft_vocab, markov=markov, from_anchor=from_anchor, extra=confidence
    )
    drafter, z, base = begun(head, target)
    path = (11, 30, 5, 11, 2)[: len(z) - 1]
    tokens = [6, *path]
    want = base + markov_biases(head, tokens, z)
    w = head.tensors
    x = torch.cat([z, w["markov_head.markov_w1.weight"][tokens]], -1)
    sure = torch.sigmoid(x @ w["confidence_head.proj.weight"][0] + w["confidence_head.proj.bias"])
    asked, other = view(0, 6, 3), view(0, 6, 3)
    node = -1
    for depth, token in enumerate((*path, 1)):
        got = drafter.children([Ask(0, Frontier([node], [VOCAB]), asked)])
        assert_law(got, want[depth], head.ids)
        assert got.aux["confidence"][0] == pytest.approx(float(sure[depth]), abs=1e-5)
        node = asked.growth.add([node], [1], [token], [0.0])[0]
    drafter.commit(0, Step(TokenTree.empty(), Verdict((), 6, "bonus"), Feats(taps=taps(1)), 6, 3, 0.0))
    drafter.begin(0, [1, 2, 3, 6], Feats(taps=taps(3)))
    deep = below(drafter, other, path)                    # nobody asked for the nodes above: they run first
    assert_law(deep, want[len(path)], head.ids)


@pytest.mark.parametrize("from_anchor", [True, False])
@pytest.mark.parametrize("pure", [0, 2])
def test_dominos_steps_are_the_whole_recurrence(target: TinyTarget, pure: int, from_anchor: bool) -> None:
    head = synthetic(target, "domino", pure=pure, from_anchor=from_anchor)
    drafter, z, base = begun(head, target)
    w, c = head.tensors, head.config
    gru = nn.GRU(HIDDEN, c.gru, bias=False, batch_first=True)
    gru.load_state_dict({k.removeprefix("prefix_gru."): v for k, v in w.items() if k.startswith("prefix_gru.")})
    path = (11, 30, 5, 11, 2)[: len(z) - 1]
    with torch.no_grad():
        states = gru(Base.of(target).embedding[[6, *path]][None])[0][0]
    hidden = nn.functional.silu(torch.cat([z, states], -1) @ w["embed_proj.0.weight"].T)
    want = base + hidden @ w["embed_proj.2.weight"].T
    want[:pure] = base[:pure]
    asked, node = view(0, 6, 3), -1
    for depth, token in enumerate((*path, 1)):
        assert_law(drafter.children([Ask(0, Frontier([node], [VOCAB]), asked)]), want[depth])
        node = asked.growth.add([node], [1], [token], [0.0])[0]


def test_only_the_best_base_candidates_can_be_children_and_q_says_so(target: TinyTarget) -> None:
    head = synthetic(target, "dspark", 17)
    drafter, z, base = begun(head, target, candidates=5)
    near = base[0].topk(5).indices
    want = (base + markov_biases(head, [6] * len(z), z))[0, near]
    assert head.ids is not None
    assert_law(below(drafter, view(0, 6, 3)), want, head.ids[near])
    drafter.commit(0, Step(TokenTree.empty(), Verdict((), 6, "bonus"), Feats(taps=taps(1)), 6, 3, 0.0))
    drafter.begin(0, [1, 2, 3, 6], Feats(taps=taps(3)))
    got = below(drafter, view(0, 6, 3, temperature=1.0), selection=Selection.WITHOUT_REPLACEMENT)
    q = drafter.row(0, got.origin[0])
    assert set(np.flatnonzero(q)) == set(head.ids[near].tolist()) == set(got.token) and q.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(q[head.ids[near]], want.softmax(-1).numpy(), atol=1e-5)


def test_a_block_drafter_without_a_correction_is_no_path_drafter(target: TinyTarget) -> None:
    with pytest.raises(ModelError, match="no correction"):
        PathDrafter(synthetic(target, "dflash"), Base.of(target))
