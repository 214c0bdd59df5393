"""A transformer with a tree gives plain decoding's tokens: whatever is drafted, whoever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hedgerow.control.controller import Fixed
from hedgerow.core.parts import Needs, Policy
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import Selection
from hedgerow.engine.loop import Loop
from hedgerow.engine.scheduler import Scheduler
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.fixed import Fixed as FixedShape
from hedgerow.verify.match import Match
from tests.identity.tiny_kit import EOS, LAWS, MAX_LEN, VOCAB, StandIn, assert_same, plain, requests, run, tiny
from tests.unit.engine_kit import Dictated, Levels, Scripted, ask, chain, ids

SHAPE = TreeShape.from_paths([(0,), (1,), (0, 0), (0, 1), (2,), (1, 0), (0, 0, 0), (1, 0, 0), (0, 0, 0, 0)])

POLICIES: dict[str, Policy] = {
    "best first": BestFirst(fanout=3, batch=3),
    "shape, top_k": FixedShape(SHAPE),
    **{f"shape, {s.label}": FixedShape(SHAPE, s) for s in (
        Selection.COUPLED, Selection.IID, Selection.WITHOUT_REPLACEMENT, Selection.GREEDY_PLUS_ONE,
    )},
}


def loop_of(drafters: Sequence[StandIn | Scripted], policy: Policy, nodes: int = 9) -> Loop:
    return Loop(tiny(), drafters, policy, Match(), Fixed(nodes, guard=False))  # type: ignore[arg-type]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("policy", POLICIES)
def test_any_selection_gives_plain_decodings_tokens(policy: str, law: str) -> None:
    done = run(loop_of([StandIn()], POLICIES[policy]), requests(law), batch=3)
    assert_same(done, plain(law))
    assert sum(r.accepted for r in done) > 20


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("batch", [1, 8])
def test_batch_size_and_arrival_do_not_matter(law: str, batch: int) -> None:
    loop = loop_of([StandIn()], POLICIES["best first"])
    order = np.random.default_rng(batch).permutation(8).tolist()
    asked = requests(law)
    done = run(loop, [asked[i] for i in order], batch)
    assert_same([done[order.index(i)] for i in range(8)], plain(law))


@pytest.mark.parametrize("law", ["greedy", "T=1"])
@pytest.mark.parametrize("nodes", [1, 31])
def test_one_node_and_many(law: str, nodes: int) -> None:
    assert_same(run(loop_of([StandIn()], POLICIES["best first"], nodes), requests(law), batch=4), plain(law))


@pytest.mark.parametrize("law", ["greedy", "T=1"])
def test_a_drafter_that_knows_the_text_and_one_that_lies(law: str) -> None:
    """Right drafts are all accepted, wrong ones none, half-wrong ones up to the lie; rejected rows leave no trace."""
    texts = {(*r.prompt, t.ids[0]): [*r.prompt, *t.ids] for r, t in zip(requests(law), plain(law), strict=True)}

    def rest(text: Sequence[int]) -> list[int]:
        whole = next(w for start, w in texts.items() if w[: len(text)] == [*text] and start == (*text[: len(start)],))
        return whole[len(text) :][:5]

    def lie(tokens: Sequence[int], at: int) -> list[int]:
        return [t if i != at else (t + 1) % VOCAB for i, t in enumerate(tokens)]

    def scattered(text: Sequence[int]) -> Dictated:
        right = rest(text)
        wrong = chain(lie(right, 0))
        return {**wrong, **{t: {**chain(lie(right[1:], 0)), **chain(right[1:])} for t in right[:1]}}

    scripts = {
        "right": lambda text: chain(rest(text)), "wrong": lambda text: chain(lie(rest(text), 0)),
        "half": lambda text: chain(lie(rest(text), 2)), "scattered": scattered,
    }
    steps = {}
    for name, script in scripts.items():
        done = run(loop_of([Scripted(script)], Levels(), 20), requests(law), batch=3)
        assert_same(done, plain(law))
        steps[name] = sum(r.steps for r in done)
        drafted, accepted = sum(r.drafted for r in done), sum(r.accepted for r in done)
        assert {"right": accepted == drafted, "wrong": accepted == 0}.get(name, 0 < accepted < drafted)
    assert steps["right"] == steps["scattered"] < steps["half"] < steps["wrong"]


def test_the_keys_after_a_commit_are_those_of_a_fresh_run() -> None:
    """Whatever was refused on the way, the next row is what the whole text gives in one prefill."""
    loop = loop_of([StandIn()], POLICIES["best first"])
    scheduler = Scheduler(loop, max_batch=3)
    for request in requests("T=1", ignore_eos=True)[:3]:
        scheduler.add(request)
    for _ in range(4):
        scheduler.advance()
    fresh = tiny()
    for r in scheduler.running:
        packed = loop.propose([r])
        rows, _ = loop.target.collect(loop.target.submit(packed.groups, Needs()))
        text = np.array([*r.request.prompt, *r.finish.ids])
        slot = fresh.acquire()
        whole = packed.groups[0].__class__("prefill", slot, text, np.arange(len(text)), np.empty((len(text), 0), bool))
        expected, _ = fresh.collect(fresh.submit([whole], Needs()))
        np.testing.assert_allclose(rows.logits(0, 0), expected.logits(0, len(text) - 1), rtol=0, atol=2e-4)
        fresh.release(slot)
    scheduler.abort()


@pytest.mark.parametrize("law", ["greedy", "T=1"])
def test_min_tokens_and_stops(law: str) -> None:
    expected = plain(law, min_tokens=9, ignore_eos=False, stop_ids=frozenset({3, 11}))
    asked = requests(law, min_tokens=9, ignore_eos=False, stop_ids=frozenset({3, 11}))
    done = run(loop_of([StandIn()], POLICIES["best first"]), asked, batch=3)
    assert_same(done, expected)
    assert all(not {3, 11, EOS} & set(t.ids[:9]) for t in expected)
    assert any(t.reason == "stop" for t in expected)


@pytest.mark.parametrize("law", ["greedy", "T=1"])
def test_the_context_limit(law: str) -> None:
    options = {"count": 4, "max_tokens": 500, "ignore_eos": True}
    done = run(loop_of([StandIn()], POLICIES["best first"]), requests(law, **options), batch=3)
    assert_same(done, plain(law, **options))
    assert [len(r.request.prompt) + len(r.finish.ids) for r in done] == [MAX_LEN] * 4


def test_seeds_differ() -> None:
    loop = loop_of([StandIn()], POLICIES["best first"])
    done = run(loop, [ask(1, 2, temperature=1.0, seed=s, max_tokens=12, ignore_eos=True) for s in range(8)], batch=8)
    assert len({tuple(t) for t in ids(done)}) == 8


def test_the_guard_does_not_touch_the_text() -> None:
    loop = Loop(tiny(), [StandIn()], POLICIES["best first"], Match(), Fixed(9, price=lambda: 2.5, rest=2))
    done = run(loop, requests("T=1"), batch=3)
    assert_same(done, plain("T=1"))
    assert sum(r.forms["plain"] for r in done) > 0 and sum(r.drafted for r in done) > 0
