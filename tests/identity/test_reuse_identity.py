"""Pages of earlier requests hold, bit for bit, what a fresh prefill of the demo model in bf16 would write.

Generated tokens too, written by rows of trees and moved in place: that is what row invariance buys. Measured: no place
and no logit differs, so prompts re-use whatever they find.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hedgerow.core.parts import Needs
from hedgerow.target.lm import LMTarget, load_target
from tests.unit.models_kit import call, held, prompt_group, scattered, tree_group

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def target(demo: Path) -> LMTarget:
    return load_target(str(demo), dtype="bf16", device="cpu", max_slots=4, max_len=2048)[0]


def words(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(100, 49000, length).tolist()


def run(target: LMTarget, tokens: list[int], reuse: bool) -> tuple[int, int, np.ndarray]:
    """Slot, tokens it did not have to run, logits of the last row."""
    slot = target.acquire()
    known = target.reuse(slot, tokens, Needs()) if reuse else 0
    new = tokens[known:]
    rows, _ = call(target, [prompt_group(slot, new, known)])
    target.commit(slot, range(len(new)))
    return slot, known, rows.logits(0, len(new) - 1)


@pytest.mark.parametrize("length", [5, 64, 65, 300])
def test_reused_pages_are_what_a_fresh_prefill_writes(target: LMTarget, length: int) -> None:
    if target.info.backend.startswith("torch"):
        pytest.skip(f"{target.info.backend} is not row-invariant to the bit")
    rng = np.random.default_rng(length)
    text = words(length, length)
    slot, _, _ = run(target, text, reuse=True)
    for step in range(24):                # "generated" along scattered paths of trees of 16 rows
        root, rest = words(1, step)[0], words(4, 1000 + step)
        tree, at = scattered(rest, 16, rng, target.info.vocab)
        call(target, [tree_group(slot, root, len(text), tree)])
        target.commit(slot, [0, *at])
        text += [root, *rest]
    target.release(slot)
    turn = [*text, *words(20, 7)]
    again, known, logits = run(target, turn, reuse=True)
    fresh, none, want = run(target, turn, reuse=False)
    assert (known, none) == (len(text), 0)
    kv = target.runner.kv
    assert torch.equal(held(kv, again, len(turn)), held(kv, fresh, len(turn))) and np.array_equal(logits, want)
    target.release(again)
    target.release(fresh)
    kv.check_integrity()


@pytest.mark.slow
def test_a_prompt_of_the_whole_context_is_prefilled_in_chunks(demo: Path) -> None:
    """8,000 tokens; the same again, with 10 more, runs those 10."""
    resource = pytest.importorskip("resource")
    target = load_target(str(demo), dtype="bf16", device="cpu", max_slots=1)[0]
    prompt = words(8000, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slot, _, _ = run(target, prompt, reuse=True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 700_000, "kB: its keys and values are 184 MB"
    target.release(slot)
    assert run(target, [*prompt, *words(10, 1)], reuse=True)[1] == 8000
