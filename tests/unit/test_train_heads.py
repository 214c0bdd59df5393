"""Training heads and blocks: what is learned is what drafters are asked, at every depth and along every path."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.parts import Ask, Feats, Frontier, Sampling, View
from hedgerow.core.rng import Rng
from hedgerow.draft import headnet
from hedgerow.draft.formats import load, save_own
from hedgerow.draft.formats.head import Head
from hedgerow.draft.formats.kinds import check_head
from hedgerow.draft.opening import drafter_of
from hedgerow.target.tiny import TinyTarget
from hedgerow.train.block import Anchors, anchors_of, decayed, paced
from hedgerow.train.data import Batch, Corpus
from hedgerow.train.features import Shards, read_again
from hedgerow.train.losses import soft_cross_entropy
from hedgerow.train.methods import METHODS, Options
from hedgerow.train.named import taught
from hedgerow.train.start import TargetWeights
from hedgerow.train.trainer import Settings, Trainer

VOCAB, HIDDEN, TAPS, DRAFT = 64, 64, (0, 1, 2), 40
KINDS = ("medusa", "hydra", "dflash", "dspark", "domino")
CONFIG = SimpleNamespace(
    hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=96,
    rms_norm_eps=1e-5, num_hidden_layers=6,
)


@pytest.fixture(scope="module")
def target() -> TinyTarget:
    return TinyTarget(seed=0, slots=8)


@pytest.fixture(scope="module")
def weights(target: TinyTarget) -> TargetWeights:
    """The tiny target's tables, and random layers to begin from."""
    rng = torch.Generator().manual_seed(0)
    shapes = {
        "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
        "self_attn.o_proj": (64, 64), "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96),
        "input_layernorm": (64,), "post_attention_layernorm": (64,),
    }
    tensors = {
        f"model.layers.{i}.{name}.weight":
        torch.randn(shape, generator=rng) / math.sqrt(shape[-1]) if len(shape) > 1 else torch.ones(shape)
        for i in range(6) for name, shape in shapes.items()
    }
    net = target.runner.net
    tensors |= {"model.embed_tokens.weight": net.embedding, "lm_head.weight": net.head}
    tensors["model.norm.weight"] = torch.ones(64)
    return TargetWeights(CONFIG, tensors)


@pytest.fixture(scope="module")
def corpus(target: TinyTarget, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    rng = np.random.default_rng(0)
    out = Shards(tmp_path_factory.mktemp("train") / "features", TAPS)
    texts = [(tuple(rng.integers(0, VOCAB, 14 + i % 7).tolist()), 4) for i in range(24)]
    for seen in read_again(target, texts, TAPS):
        out.add(seen)
    out.flush()
    return Corpus.open(out.files)


def method(weights: TargetWeights, kind: str, draft: int = DRAFT, steps: int = 3, moved: bool = False) -> Any:
    """A method at its beginning, or with every tensor moved a little, so that none is zero."""
    out = METHODS[kind].build(weights, torch.arange(draft), TAPS, torch.device("cpu"), Options(1, steps))
    if moved:
        rng = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in out.module.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=rng)
    return out


def exact(made: Any) -> Head:
    """The head without the rounding to bf16."""
    rounded = made.head({})
    return Head(rounded.config, {k: v.detach().clone() for k, v in made.module.state_dict().items()}, rounded.ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_is_asked_what_it_learned(
    target: TinyTarget, weights: TargetWeights, corpus: Corpus, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row that is learned, drafted by hand: the same logits, and the target's law of the very same place."""
    made = method(weights, kind, moved=True)
    batch = corpus.batch(corpus.learn[:2], torch.device("cpu"))
    said = taught(batch, made.teacher, made.ids, VOCAB)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def spy(z: torch.Tensor, law: torch.Tensor) -> torch.Tensor:
        seen.append((z.detach(), law))
        return soft_cross_entropy(z, law)

    module = "heads" if kind in ("medusa", "hydra") else "block"
    monkeypatch.setattr(f"hedgerow.train.{module}.soft_cross_entropy", spy)
    texts, length = batch.tokens.shape
    places = Anchors(torch.arange(1, length).expand(texts, -1), torch.ones(texts, length - 1, dtype=torch.bool))
    if module == "block":
        monkeypatch.setattr("hedgerow.train.block.anchors_of", lambda *args: places)
    made.learn(batch)
    assert len(seen) == 3
    checked = 0
    for depth, (logits, laws) in enumerate(seen):
        row = 0
        roots = range(1, length) if module == "block" else range(1, length + 1)
        for text in range(texts):
            for root in roots:                            # x_root is the root, f_{root−1} the last feature
                place = root + depth
                if place >= length or int(said.of[text, place]) < 0:
                    continue
                assert torch.equal(laws[row], said.law[said.of[text, place]])
                if (text + root) % 5 == 0:
                    path = batch.tokens[text, root + 1 : place + 1].tolist()
                    drafted = asked(target, exact(made), batch, text, root, path)
                    want = logits[row].log_softmax(0)[[*drafted]]
                    np.testing.assert_allclose(list(drafted.values()), want.numpy(), atol=3e-3)
                    checked += 1
                row += 1
        assert row == len(logits)
    assert checked > 8


def asked(target: TinyTarget, head: Head, batch: Batch, text: int, root: int, path: list[int]) -> dict[int, float]:
    """log q of all children at the end of a path, by the drafter itself."""
    drafter = drafter_of(head, target)
    if hasattr(drafter, "candidates"):
        drafter.candidates = 0
    tokens = batch.tokens[text, : root + 1].tolist()
    taps = batch.taps[text, :root].float().view(root, len(TAPS), HIDDEN).transpose(0, 1)
    drafter.begin(0, tokens, Feats(taps=taps, last_hidden=batch.last[text, :root].float(), tapped=TAPS))
    view = View(0, 0, tokens[-1], root, 9, Sampling(), Rng(0).at(root))
    node = -1
    for token in path:
        node = view.growth.add([node], [1], [token], [0.0])[0]
    got = drafter.children([Ask(0, Frontier([node], [VOCAB]), view)])
    assert len(got.token) == DRAFT
    return dict(zip(got.token, got.log_q, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_it_begins_valid_learns_and_is_saved(
    target: TinyTarget, weights: TargetWeights, corpus: Corpus, kind: str, tmp_path: Path
) -> None:
    made = method(weights, kind)
    check_head(made.head({}))
    gentle = Settings(epochs=3, rows=256, check_s=1e9, warmup=1, head_from=0.0, matrix_rate=0.005)
    run, batch = Trainer(made, corpus, gentle, tmp_path / "run"), corpus.batch(corpus.learn, torch.device("cpu"))

    def loss() -> float:
        made.module.eval()
        with torch.no_grad():
            return float(made.learn(batch).loss)

    first = run.measure()
    before = loss()
    assert loss() == before and len(first.by_depth) == 3, "validation draws the same anchors each time"
    run.fit()
    assert loss() < before
    save_own(made.head({"seed": 0}), tmp_path / "out")
    back = load(tmp_path / "out")
    assert back.config == made.module.config and set(back.tensors) == set(made.head({}).tensors)
    assert drafter_of(back, target) is not None


def test_heads_begin_as_the_targets_own(weights: TargetWeights, corpus: Corpus) -> None:
    """Untrained, every head says what the target's own says at f_t."""
    batch = corpus.batch(corpus.learn[:1], torch.device("cpu"))
    for kind in ("medusa", "hydra"):
        made = method(weights, kind, draft=VOCAB)
        tensors, f = made.module.tensors, batch.last[0].float()
        x = f if kind == "medusa" else torch.cat([f, torch.randn(len(f), HIDDEN)], 1)
        z = headnet.state(tensors, 0, x) @ tensors["lm_head.weight"].T
        torch.testing.assert_close(z, f @ weights.output.float().T, rtol=1e-4, atol=1e-3)


def test_blocks_stand_in_answers_and_never_at_the_first_position() -> None:
    loss = torch.tensor([[True, True, True, False, True, True, True, False], [False] * 8])
    batch = Batch(torch.zeros(2, 8, dtype=torch.int64), loss, torch.zeros(2, 8, 3), torch.zeros(2, 8, 3))
    for seed in range(5):
        found = anchors_of(batch, 6, torch.Generator().manual_seed(seed))
        assert sorted(found.at[0][found.real[0]].tolist()) == [1, 2, 5, 6] and not found.real[1].any()
    some = anchors_of(batch, 2, torch.Generator().manual_seed(0))
    assert some.at.shape == (2, 2) and set(some.at[0].tolist()) < {1, 2, 5, 6}


def test_weights_of_depths() -> None:
    assert decayed(4, 4.0) == pytest.approx([math.exp(-d / 4) for d in range(4)])
    sure, there = torch.tensor([[0.9, 0.4, 0.8]]), torch.tensor([[True, False, True]])
    q = [0.95, 1.0, 0.9]
    reach = [q[0], 0.0, q[0] * q[1] * q[2]]               # a slot that is not there weighs nothing and stops nobody
    assert paced(sure, there)[0].tolist() == pytest.approx([sum(reach), 0.0, reach[2]])


@pytest.mark.parametrize("change", ["pace", "causal"])
def test_options_of_blocks_learn_too(weights: TargetWeights, corpus: Corpus, change: str) -> None:
    batch = corpus.batch(corpus.learn, torch.device("cpu"))
    made = method(weights, "dflash", moved=True)
    plain = float(made.learn(batch).loss.detach())
    made.source.manual_seed(made.seed)
    if change == "pace":
        made.pace = True
    else:
        made.module.config = replace(made.module.config, causal=True)
    other = made.learn(batch)
    assert float(other.loss.detach()) != pytest.approx(plain, abs=1e-4)
    other.loss.backward()
    assert all(p.grad is not None for p in made.module.parameters())


