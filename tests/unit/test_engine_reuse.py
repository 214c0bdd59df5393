"""What earlier requests left is not run again, and nobody can tell from what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.control.controller import Fixed
from hedgerow.core.parts import Feats, Needs, RowGroup, Sampling
from hedgerow.core.shape import TreeShape
from hedgerow.draft.independent import LMDrafter
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request, Running
from hedgerow.engine.scheduler import Scheduler
from hedgerow.models.runner import Runner
from hedgerow.policy.fixed import Fixed as Shape
from hedgerow.target.tiny import TinyTarget
from hedgerow.verify.match import Match
from tests.unit.engine_kit import Levels, Scripted

VOCAB = 40
NEEDS = Needs(taps=(0, 2), last_hidden=True, top_k=4)
PROMPT = tuple(np.random.default_rng(0).integers(0, VOCAB, 150).tolist())


@dataclass
class Counting(TinyTarget):
    """Counts the rows it is asked to prefill."""

    prefilled: list[int] = field(default_factory=list)

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"seed": 3, "vocab": VOCAB, "slots": 4, **options})
        self.prefilled = []

    def submit(self, groups: Any, needs: Needs) -> Any:
        self.prefilled += [len(g.tokens) for g in groups if g.kind == "prefill"]
        return super().submit(groups, needs)


@dataclass
class Seeing(Scripted):
    """Keeps the features of the prompts it was shown."""

    shown: list[Feats] = field(default_factory=list)

    def begin(self, slot: int, tokens: Any, feats: Feats, tenant: str = "") -> None:
        super().begin(slot, tokens, feats, tenant)
        self.shown.append(feats)


def favourites(text: Any) -> dict[int, Any]:
    """A tree of tokens that sometimes come next: what stood behind the last token before."""
    found = [text[i + 1] for i in range(len(text) - 1) if text[i] == text[-1]]
    return {t: {(t + 1) % VOCAB: {}} for t in dict.fromkeys([*found, 1, 2])}


def drafting(needs: Needs = Needs()) -> Seeing:  # noqa: B008 - frozen
    return Seeing(favourites, needs=needs)


def run(target: TinyTarget, drafter: Any, *requests: Request, batch: int = 4) -> list[Running]:
    drafters = [drafter] if drafter else []
    loop = Loop(target, drafters, Levels(), Match(), Fixed(7 if drafter else 0, guard=False))
    done = Scheduler(loop, max_batch=batch).run(requests)
    target.runner.kv.check_integrity()
    return done


def ask(prompt: Any = PROMPT, temperature: float = 0.0, **options: Any) -> Request:
    return Request(tuple(prompt), **{"max_tokens": 30, "logprobs": True, **options}, sampling=Sampling(temperature))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_prompt_again_runs_one_row_and_says_the_same(temperature: float) -> None:
    target = Counting()
    first, = run(target, drafting(), ask(temperature=temperature))
    second, = run(target, drafting(), ask(temperature=temperature))
    fresh, = run(Counting(kv="contiguous"), drafting(), ask(temperature=temperature))
    assert target.prefilled == [150, 1] and (first.cached, second.cached, fresh.cached) == (0, 149, 0)
    assert first.finish.ids == second.finish.ids == fresh.finish.ids
    np.testing.assert_allclose(second.logprobs, fresh.logprobs, atol=1e-5)


def test_a_second_turn_runs_what_is_new() -> None:
    """Of the first turn all but the last token, which was never run, is known: generated text too."""
    target = Counting()
    first, = run(target, drafting(), ask())
    turn = (*PROMPT, *first.finish.ids, 5, 6, 7)
    second, = run(target, drafting(), ask(turn))
    assert second.cached == len(PROMPT) + len(first.finish.ids) - 1 and target.prefilled == [150, 4]
    fresh, = run(Counting(kv="contiguous"), drafting(), ask(turn))
    assert second.finish.ids == fresh.finish.ids


def test_drafters_are_shown_the_features_of_rows_that_did_not_run() -> None:
    """As if they had run: hidden states, ranks, of prompts and of generated tokens, by a tree's rows or not."""
    target, seen = Counting(), drafting(NEEDS)
    first, = run(target, seen, ask())
    turn = (*PROMPT, *first.finish.ids, 5, 6, 7)
    run(target, seen, ask(turn))
    run(Counting(kv="contiguous"), seen, ask(turn))
    ours, fresh = seen.shown[1:]
    assert target.prefilled == [150, 4] and len(ours.top_ids) == len(turn)
    assert np.array_equal(ours.top_ids, fresh.top_ids)
    np.testing.assert_allclose(ours.top_logits, fresh.top_logits, atol=1e-5)
    torch.testing.assert_close(ours.taps, fresh.taps, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.last_hidden, fresh.last_hidden, atol=1e-5, rtol=0)


def test_rows_without_the_features_asked_for_run_again_and_then_have_them() -> None:
    target, seen = Counting(), drafting(Needs(top_k=3))
    for drafter in (drafting(), seen, seen, drafting()):
        run(target, drafter, ask())
    assert target.prefilled == [150, 150, 1, 1]
    run(target, drafting(Needs(top_k=2)), ask())
    run(target, drafting(Needs(top_k=4)), ask())
    assert target.prefilled[4:] == [1, 150]


def test_requests_that_run_at_once_share_their_beginning() -> None:
    target = Counting()
    tails = [(*PROMPT, i, i + 1) for i in range(4)]
    done = run(target, drafting(), *[ask(p) for p in tails])
    assert [r.cached for r in done] == [0, 128, 128, 128], "whole pages; the last one may still change"
    for r, p in zip(done, tails, strict=True):
        alone, = run(Counting(), None, ask(p))
        assert r.finish.ids == alone.finish.ids


def test_tenants_do_not_share() -> None:
    target = Counting()
    done = [run(target, None, ask(tenant=t))[0].cached for t in ("a", "b", "a")]
    assert done == [0, 0, 149]


def test_a_model_as_drafter_keeps_its_prompt_too() -> None:
    target = Counting()
    drafter = LMDrafter(Runner(target.runner.net, 4, 1024))
    rows: list[int] = []
    whole = drafter.runner.run

    def counted(groups: list[RowGroup], needs: Needs) -> Any:
        rows.append(sum(len(g.tokens) for g in groups))
        return whole(groups, needs)

    drafter.runner.run = counted  # type: ignore[method-assign, assignment]
    loop = Loop(
        target, [drafter], Shape(TreeShape.from_paths([(0,), (0, 0)])), Match(), Fixed(2, guard=False)
    )
    done = []
    for _ in range(2):
        rows.clear()
        done += Scheduler(loop).run([ask()])
        drafter.runner.kv.check_integrity()
        assert done[0].finish.ids == done[-1].finish.ids
        prefilled = sum(n for n in rows if n > 32)
        assert prefilled == (150 if len(done) == 1 else 0)


@pytest.mark.parametrize(
    ("kind", "left"), [("paged", 120), ("contiguous", 60), pytest.param("paged", 1000, marks=pytest.mark.slow)]
)
def test_requests_with_aborts_lose_nothing(kind: str, left: int) -> None:
    """Requests share beginnings, end early or late, are aborted at any moment; a drafter with a cache of its own."""
    rng = np.random.default_rng(1)
    target = Counting(layers=1, heads=1, kv_heads=1, head_dim=8, max_len=200, kv=kind)
    drafter = LMDrafter(Runner(target.runner.net, 4, 200, kv=kind))
    loop = Loop(
        target, [drafter], Shape(TreeShape.from_paths([(0,), (1,), (0, 0)])), Match(), Fixed(3, guard=False)
    )
    while left:
        scheduler = Scheduler(loop, max_batch=4)
        for _ in range(min(left, int(rng.integers(1, 60)))):
            left -= 1
            begin = int(rng.integers(0, 3))
            prompt = (*PROMPT[begin : begin + int(rng.integers(1, 130))], int(rng.integers(VOCAB)))
            scheduler.add(ask(prompt, max_tokens=int(rng.integers(1, 6)), tenant="ab"[int(rng.integers(2))]))
        for _ in range(int(rng.integers(0, 60))):
            if not (scheduler.waiting or scheduler.running):
                break
            scheduler.advance()
        scheduler.abort()
        for kv in (target.runner.kv, drafter.runner.kv):
            kv.check_integrity()
            assert kv.free_slots == 4
    for kv in (target.runner.kv, drafter.runner.kv):
        if kind == "paged":
            while kv._forget():
                pass
            assert kv.free_pages == kv._pages.count
