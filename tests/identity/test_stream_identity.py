"""A streamed target writes the text of the loaded one, plain or with trees of hundreds of nodes, at any temperature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.control.controller import Fixed
from hedgerow.core.parts import Sampling, TargetInfo
from hedgerow.draft.oracle import OracleDrafter
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request
from hedgerow.engine.scheduler import Scheduler
from hedgerow.models import hf, streamed
from hedgerow.models.runner import Runner
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.score import Decayed
from hedgerow.systems.disk import Reading
from hedgerow.systems.linear import fuse_norms
from hedgerow.target.lm import LMTarget
from hedgerow.verify.match import Match
from tests.unit.models_kit import write_llama

VOCAB, LONG = 128, 24
MEGA = BestFirst(16, 32, score=Decayed(0.95), rounds=32)   # as recipe specexec


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LMTarget]:
    """The same random model, loaded and streamed."""
    path = write_llama(tmp_path_factory.mktemp("m") / "llama", num_hidden_layers=3)

    def fused(model: Any) -> None:
        fuse_norms(model)

    out = {}
    for name in ("loaded", "streamed"):
        build = None
        if name == "streamed":
            build = streamed.builder(path, torch.float32, 250_000, Reading(), lambda s: None, lambda m: None)
            assert build is not None
        net = hf.load(path, name, torch.float32, "cpu", fused, build)
        out[name] = LMTarget(Runner(net, 4, 256), TargetInfo(name, VOCAB, 256, "cpu", "fp32", "torch"))
    return out


def write(
    target: LMTarget, temperature: float, drafter: OracleDrafter | None, nodes: int, texts: int = 2
) -> list[Any]:
    """Texts of different seeds, in one batch."""
    loop = Loop(target, [drafter] if drafter else [], MEGA, Match(), Fixed(nodes, guard=False))
    asked = [
        Request(tuple(range(3 + i, 20)), max_tokens=LONG, seed=i, sampling=Sampling(temperature), ignore_eos=True)
        for i in range(texts)
    ]
    done = Scheduler(loop, max_batch=2).run(asked)
    assert target.capacity().slots == 4
    return done


def oracle_of(texts: list[Any], quality: float) -> OracleDrafter:
    """Knows the texts, and errs."""
    noise = 1e-3 * np.random.default_rng(0).random(VOCAB)
    known = {(*r.request.prompt, *r.finish.ids): len(r.request.prompt) for r in texts}

    def law(tokens: Any) -> np.ndarray:
        p = noise.copy()
        for whole, prompt in known.items():
            if prompt <= len(tokens) < len(whole) and whole[: len(tokens)] == tuple(tokens):
                p[whole[len(tokens)]] += 1.0
        return p / p.sum()

    return OracleDrafter(law, quality)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trees_of_255_nodes_write_what_plain_decoding_writes(
    targets: dict[str, LMTarget], temperature: float
) -> None:
    plain = write(targets["loaded"], temperature, None, 0)
    want = [r.finish.ids for r in plain]
    assert [r.finish.ids for r in write(targets["streamed"], temperature, None, 0)] == want
    assert len({tuple(ids) for ids in want}) == 2
    oracle: Callable[[], OracleDrafter] = lambda: oracle_of(plain, 0.8)  # noqa: E731
    for name in ("streamed", "loaded"):
        done = write(targets[name], temperature, oracle(), 255)
        assert [r.finish.ids for r in done] == want, name
        assert max(r.drafted / r.steps for r in done) > 150 and all(r.steps < LONG / 2 for r in done)


def test_trees_of_511_nodes_fill_512_rows(targets: dict[str, LMTarget]) -> None:
    plain = write(targets["loaded"], 0.0, None, 0, texts=1)
    done = write(targets["streamed"], 0.0, oracle_of(plain, 0.8), 511, texts=1)
    assert [r.finish.ids for r in done] == [r.finish.ids for r in plain]
    assert max(r.drafted / r.steps for r in done) > 300


@pytest.mark.model
def test_the_demo_streamed_says_the_same(demo: Path) -> None:
    """bf16, through 64 MB, past the page cache; against the loaded model with plain products, bit for bit."""
    from tests.unit.test_systems_stream import loaded, logits, random_tree, stream

    tree = random_tree(np.random.default_rng(0), 60, 40_000)
    net = stream(demo, torch.bfloat16, 64_000_000, Reading(bypass=True))
    assert net.streamed is not None and net.streamed.head and net.streamed.slots == 9
    assert torch.equal(logits(net, tree), logits(loaded(demo, torch.bfloat16), tree))
