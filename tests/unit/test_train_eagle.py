"""Training EAGLE-3: what a row sees while training is what it will see while drafting; the loop learns and resumes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Ask, Feats, Frontier, Sampling, View
from hedgerow.core.rng import Rng
from hedgerow.draft.base import Base
from hedgerow.draft.formats.head import Head, HeadConfig
from hedgerow.draft.nets.rotary import Rotary
from hedgerow.target.tiny import TinyTarget
from hedgerow.train.data import Batch, Corpus
from hedgerow.train.eagle import Eagle3, EagleModule
from hedgerow.train.features import Seen, Shard, Shards, read_again
from hedgerow.train.losses import TreeReward, soft_cross_entropy, top_k_cross_entropy
from hedgerow.train.trainer import Progress, Settings, Trainer, chances, load_best, simulated
from tests.unit.eagle_kit import HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, drafter_of, naive

VOCAB = 64


def method(base: Base, steps: int = 3, layers: int = 1, draft: int = VOCAB, align: float = 0.0) -> Eagle3:
    torch.manual_seed(0)
    config = HeadConfig(
        "eagle3", HIDDEN, HIDDEN, VOCAB, draft, layers=layers, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM,
        inner=INNER, taps=(0, 1, 2),
    )
    ids = torch.arange(draft)
    return Eagle3(EagleModule(config), base.embedding.clone(), base.output()[:draft].clone(), ids, steps, align=align)


@pytest.fixture(scope="module")
def target() -> TinyTarget:
    return TinyTarget(seed=0, slots=8)


@pytest.fixture
def shards(target: TinyTarget, tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    out = Shards(tmp_path / "features", (0, 1, 2))
    texts = [(tuple(rng.integers(0, VOCAB, 12 + i % 7).tolist()), 4) for i in range(24)]
    for i, seen in enumerate(read_again(target, texts, (0, 1, 2))):
        out.add(seen)
        if i == 11:
            out.flush()
    out.flush()
    return out.files


@pytest.mark.parametrize("layers", [1, 2])
def test_a_training_step_sees_what_drafting_sees(target: TinyTarget, layers: int) -> None:
    base = Base.of(target)
    m = method(base, layers=layers).module
    rows, rng = 9, torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCAB, (1, rows + 1), generator=rng)
    taps = torch.randn(1, rows, 3 * HIDDEN, generator=rng)
    head = Eagle3(m, base.embedding, base.output(), torch.arange(VOCAB)).head({})
    head = type(head)(head.config, {k: v.float() for k, v in m.state_dict().items()}, head.ids)
    state: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = [([], []) for _ in m.layers]
    causal, own = torch.ones(rows, rows, dtype=torch.bool).tril(), torch.eye(rows, dtype=torch.bool)
    with torch.no_grad():
        real = g = m.fc(taps)
        for k in range(3):
            said = torch.nn.functional.pad(tokens[:, 1 + k :], (0, k))
            g = m.step(base.embedding[said], g, k, state, torch.cat([causal, *[own] * k], 1))
            logits = m.lm_head(m.norm(g))
            for j in range(rows - k):                      # draft k steps behind row j, by the definition
                features = real[0, : j + 1]
                for _ in range(k):
                    _, fed = naive(head, base, tokens[0, 1 : len(features) + 1].tolist(), features)
                    features = torch.cat([features, fed[-1:]])
                wanted, _ = naive(head, base, tokens[0, 1 : len(features) + 1].tolist(), features)
                torch.testing.assert_close(logits[0, j], wanted[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scaling", [
    {"rope_type": "linear", "factor": 8.0},
    {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 16},
])
def test_scaled_positions_are_trained_as_they_are_drafted(target: TinyTarget, scaling: dict[str, Any]) -> None:
    base = Base.of(target)
    made = method(base).module
    m = EagleModule(replace(made.config, rope_scaling=scaling))
    m.load_state_dict(made.state_dict())
    tokens = [3, 9, 27, 17, 51, 25, 11, 33]
    taps = torch.randn(3, len(tokens) - 1, HIDDEN, generator=torch.Generator().manual_seed(1))
    drafter = drafter_of(target, Head(m.config, m.state_dict()))
    drafter.begin(0, tokens, Feats(taps=taps))
    seen = View(0, 0, tokens[-1], len(tokens) - 1, 9, Sampling(), Rng(0).at(0))
    got = drafter.children([Ask(0, Frontier([-1], [8]), seen)])
    drafter.release(0)
    mask = torch.ones(len(tokens) - 1, len(tokens) - 1, dtype=torch.bool).tril()
    laws = []
    for module in (m, made):
        with torch.no_grad():
            g = module.fc(torch.cat([*taps], -1)[None])
            g = module.step(base.embedding[tokens[1:]][None], g, 0, [([], [])], mask)
            laws.append(module.lm_head(module.norm(g))[0, -1].log_softmax(0)[got.token])
    torch.testing.assert_close(torch.tensor(got.log_q), laws[0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(laws[0], laws[1], atol=1e-3)                    # the scaling does something here


def test_the_rotation_passes_gradients_on() -> None:
    config = HeadConfig("eagle3", HIDDEN, HIDDEN, VOCAB, VOCAB, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    rotary = Rotary(config, torch.float64, torch.device("cpu"))
    angles = rotary.at(torch.arange(3))
    x = torch.randn(2, 1, 3, HEAD_DIM, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: rotary.turn(y, *angles), x)


def test_the_loss_is_the_cross_entropy_and_its_gradient_is_right() -> None:
    z = torch.randn(5, 7, dtype=torch.float32, requires_grad=True)
    p = torch.randn(5, 7).softmax(1)
    (ours,) = torch.autograd.grad(soft_cross_entropy(z, p).sum(), z)
    plain = -(p * z.log_softmax(1)).sum(1)
    torch.testing.assert_close(soft_cross_entropy(z, p), plain)
    (wanted,) = torch.autograd.grad(plain.sum(), z)
    torch.testing.assert_close(ours, wanted, rtol=0.02, atol=4e-3)      # kept in bf16
    torch.testing.assert_close(top_k_cross_entropy(z, p, 7), plain)
    assert (top_k_cross_entropy(z, p, 2) < plain).all()


def test_only_answers_within_the_vocabulary_are_learned(target: TinyTarget, shards: list[Path]) -> None:
    base, corpus = Base.of(target), Corpus.open(shards)
    batch = corpus.batch(corpus.learn, torch.device("cpu"))
    small = method(base, steps=1, draft=20)
    rows = small.learn(batch).alive[0]
    # step 0 of row j learns the law of position j + 1, whose token x_{j+2} must be an answer's and ours
    wanted = batch.loss[:, 1:].clone()
    wanted[:, :-1] &= batch.tokens[:, 2:] < 20
    assert rows == wanted.sum()


def test_it_learns_and_resumes_where_it_was(target: TinyTarget, shards: list[Path], tmp_path: Path) -> None:
    corpus, base = Corpus.open(shards), Base.of(target)
    gentle = {"rate": 1e-3, "matrix_rate": 0.02}           # a tiny module on random text
    settings = Settings(epochs=6, rows=128, check_s=1e9, warmup=2, head_from=0.0, **gentle)

    def trainer(folder: str) -> Trainer:
        return Trainer(method(base), corpus, settings, tmp_path / folder)

    whole = trainer("whole")
    before = whole.measure().loss
    whole.fit()
    assert whole.measure().loss < before
    assert whole.share == 1.0 and whole.progress.update == 24

    part = trainer("part")
    part.told = lambda what, progress, checked: setattr(part, "stopping", progress.update == 5)
    part.fit()
    again = trainer("part")
    assert again.progress.update == 5 and again.progress.batch == part.progress.batch
    again.fit()
    for name, tensor in whole.method.module.state_dict().items():
        torch.testing.assert_close(tensor, again.method.module.state_dict()[name], rtol=1e-3, atol=1e-4)
    best = method(base)
    load_best(best, tmp_path / "part")
    assert best.head({}).tensors["fc.weight"].dtype == torch.bfloat16


def test_a_checkpoint_is_whole_wherever_its_swap_ends(target: TinyTarget, shards: list[Path], tmp_path: Path) -> None:
    corpus, base = Corpus.open(shards), Base.of(target)

    def trainer(**sizes: int) -> Trainer:
        return Trainer(method(base, **sizes), corpus, Settings(epochs=1, rows=128, warmup=2), tmp_path)

    first = trainer()
    first.check()
    first.progress.update = 3
    first.check()
    state, old = tmp_path / "state", tmp_path / "state.old"
    state.rename(old)                                      # a power cut between the two renames
    again = trainer()
    assert again.progress.update == 3 and not state.exists()
    again.progress.update = 4
    again.check()
    assert state.exists() and not old.exists() and trainer().progress.update == 4
    with pytest.raises(UsageError, match="another --run"):
        trainer(layers=2)


def test_a_budget_in_minutes_ends_by_the_clock(target: TinyTarget, shards: list[Path], tmp_path: Path) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    run = Trainer(method(Base.of(target)), Corpus.open(shards), Settings(minutes=0.1, rows=128), tmp_path, clock=clock)
    done = run.fit()
    assert done.seconds >= 6.0 and done.update == 6


def test_a_simulated_tree_is_the_sum_of_its_paths() -> None:
    assert simulated([[0.5, 0.25], [0.5, 0.0]], 3) == pytest.approx(1 + 0.5 + 0.25 + 0.25)
    assert simulated([[0.0, 0.0]], 2) == 1.0
    for alive in range(1, 60):                             # every rank right once in a while, none left over
        counts = torch.tensor([[alive // 7] * 6 + [alive - 6 * (alive // 7)]], dtype=torch.float32)
        assert simulated(chances(counts, torch.tensor([float(alive)])), 7) == pytest.approx(2.0)
    assert math.isfinite(Progress().best)


def test_shards_hold_what_was_seen(tmp_path: Path) -> None:
    shards = Shards(tmp_path, (3,))
    shards.add(Seen((5, 6, 7), 2, torch.ones(1, 2, 4), torch.zeros(2, 4)))
    assert not shards.files
    shards.flush()
    [file] = shards.files
    shard = Shard.open(file)
    assert shard.tokens.tolist() == [5, 6] and shard.next.tolist() == [7] and shard.loss.tolist() == [False, True]
    assert shard.spans() == [(0, 2)] and float(shard.taps.sum()) == 8.0
    with pytest.raises(UsageError, match="taps \\[3\\]"):
        Shards(tmp_path, (4,))
    with pytest.raises(UsageError, match="at least 4"):
        Corpus.open(shards.files)


def test_a_tree_reward_is_what_trees_of_draws_would_reach() -> None:
    """By hand, on two rows: the product of what is covered, depth by depth; a row that is not judged ends."""
    z = [torch.tensor([[0.0, 0.0], [1.0, -1.0]]), torch.tensor([[0.5, 0.0]])]
    p = [torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([[0.2, 0.8]])]
    reward = TreeReward.of(3, torch.device("cpu"), branches=2)
    reward.depth(torch.tensor([0, 2]), z[0], p[0])
    reward.depth(torch.tensor([2]), z[1], p[1])
    reward.depth(torch.tensor([0]), z[1], p[1])            # row 0 was not judged before: it adds nothing
    q = [z[0].softmax(1), z[1].softmax(1)]
    mass = [[sum(min(float(a), 1 - (1 - float(b)) ** 2) for a, b in zip(*rows, strict=True)) for rows in
             zip(p[d], q[d], strict=True)] for d in (0, 1)]
    assert float(reward.mean) == pytest.approx((mass[0][0] + mass[0][1] + mass[0][1] * mass[1][0]) / 2, rel=1e-5)
    assert float(TreeReward.of(3, torch.device("cpu")).mean) == 0.0


@pytest.mark.parametrize("branches", [1, 4])
def test_going_up_the_reward_alone_brings_q_to_p(branches: int) -> None:
    rng = torch.Generator().manual_seed(0)
    p = torch.randn(6, 9, generator=rng).mul(2).softmax(1)
    z = torch.randn(6, 9, generator=rng).requires_grad_()
    at, first = torch.arange(6), 0.0
    for i in range(300):
        reward = TreeReward.of(6, torch.device("cpu"), branches)
        reward.depth(at, z, p)
        reward.depth(at, z, p)
        first = first or reward.mean.item()
        (up,) = torch.autograd.grad(reward.mean, z)
        with torch.no_grad():
            z += 5.0 * up
        assert i or up.abs().max() > 0
    assert reward.mean.item() > (first + 2.0) / 2          # it is 2 for q = p


def test_the_reward_is_taken_off_the_loss(target: TinyTarget, shards: list[Path]) -> None:
    base, batch = Base.of(target), Corpus.open(shards).batch(Corpus.open(shards).learn, torch.device("cpu"))
    plain, other = method(base), method(base)
    other.tree_reward = 2.0
    without, with_it = plain.learn(batch), other.learn(batch)
    gain = (without.loss - with_it.loss).detach() / 2.0
    assert 0.0 < float(gain) < 3.0 and torch.equal(without.hits, with_it.hits)
    with_it.loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in other.module.parameters())


def test_a_batch_of_which_nothing_is_in_the_vocabulary_teaches_nothing(
    target: TinyTarget, shards: list[Path], tmp_path: Path
) -> None:
    """No error, no change of a weight, and no NaN."""
    corpus, made = Corpus.open(shards), method(Base.of(target), draft=16)
    made.tree_reward = 1.0
    run = Trainer(made, corpus, Settings(rows=128), tmp_path)
    batch = corpus.batch(corpus.learn[:4], torch.device("cpu"))
    foreign: Any = SimpleNamespace(batch=lambda places, device: batch._replace(loss=torch.zeros_like(batch.loss)))
    run.corpus = foreign
    before = {name: tensor.clone() for name, tensor in made.module.state_dict().items()}
    run._batches = 4
    run._update(corpus.learn[:4], 4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.module.state_dict().items())


def test_hass_adds_its_term(target: TinyTarget, shards: list[Path]) -> None:
    corpus, base = Corpus.open(shards), Base.of(target)
    batch: Batch = corpus.batch(corpus.learn[:3], torch.device("cpu"))
    assert method(base, align=1.0).learn(batch).loss > method(base).learn(batch).loss
