"""Drafting with the target's own noise: it names what will be drawn, raises acceptance, and is left alone when greedy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hedgerow.control.controller import Fixed
from hedgerow.core.parts import Ask, Frontier, Sampling, View
from hedgerow.core.probs import law
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Selection
from hedgerow.draft.advised import LISTED, Advised, luckiest, voice
from hedgerow.draft.blend import BlendDrafter
from hedgerow.draft.luck import Luck
from hedgerow.engine.loop import Loop
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.verify.match import Match
from tests.identity.tiny_kit import assert_same, pairs, requests, run, texts, tiny
from tests.unit.draft_kit import feats, step
from tests.unit.engine_kit import Levels
from tests.unit.test_draft_advised import Says


def view(temperature: float = 1.0, position: int = 4) -> View:
    return View(0, 0, 1, position, 9, Sampling(temperature), Rng(5).at(position))


def test_the_best_of_log_p_plus_luck_is_the_targets_draw() -> None:
    noise = np.random.default_rng(0)
    for position in range(40):
        logits = noise.normal(0, 2, 30)
        luck = Luck(Rng(5).noise, position)
        value = np.log(law(logits, Sampling(1.0))) + np.array(luck.of(3, range(30)))
        assert int(value.argmax()) == Rng(5).categorical(law(logits, Sampling(1.0)), position + 3)
        assert luck.of(3, [7, 2]) == [luck.of(3, [7])[0], luck.of(3, [2])[0]], "whatever it is asked with"


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(1.0, top_p=0.6), Sampling(1.0, top_k=3)])
def test_a_row_votes_for_its_luckiest_tokens_and_for_none_that_may_not_be_drawn(sampling: Sampling) -> None:
    logits = np.sort(np.random.default_rng(1).normal(0, 2, 40))[::-1].copy()
    log_q = np.log(law(logits, Sampling(1.0)))
    for position in range(30):
        luck = Luck(Rng(5).noise, position)
        lines = [((), list(range(40)), log_q.tolist()), ((3,), [8, 9], [-0.5, -1.0])]
        (_, tokens, said), (path, short, _) = luckiest(lines, luck, sampling)
        assert tokens[0] == Rng(5).categorical(law(logits, sampling), position + 1)
        assert said == log_q[tokens].tolist() and len(tokens) <= LISTED
        assert path == (3,) and set(short) <= {8, 9}
        if sampling.top_k:
            assert set(tokens) <= {0, 1, 2}


def asked(drafter: BlendDrafter, seen: View, selection: Selection) -> list[tuple[int, float]]:
    got = drafter.children([Ask(0, Frontier([-1], [4], selection=selection), seen)])
    return list(zip(got.token, got.log_q, strict=True))


def test_coupled_children_depend_on_the_noise_and_retrieved_or_greedy_ones_do_not() -> None:
    prompt = [1, 2, 1, 3, 1, 4, 1]
    drafter = BlendDrafter()
    drafter.begin(0, prompt, feats([{2: 0.4, 3: 0.3, 4: 0.3}] * 6))
    at = [view(position=p) for p in range(40)]

    def firsts(selection: Selection, temperature: float) -> set[int]:
        out = set()
        for seen in at:
            out.add(asked(drafter, replace(seen, sampling=Sampling(temperature)), selection)[0][0])
            drafter._slots[0].luck = None                # as after a commit
        return out

    assert len(firsts(Selection.COUPLED, 1.0)) > 1
    assert len(firsts(Selection.RETRIEVED, 1.0)) == len(firsts(Selection.COUPLED, 0.0)) == 1


def test_lucky_steps_teach_weights_of_their_own() -> None:
    drafter = BlendDrafter()
    drafter.begin(0, [1, 2, 3, 1], feats([{2: 0.9, 3: 0.1}] * 3))
    tenant = drafter._slots[0].tenant
    before = list(tenant.mixer.bias)
    asked(drafter, view(position=3), Selection.COUPLED)
    drafter.commit(0, step(1, [2, 4], [(2,)], [{2: 0.9, 3: 0.1}] * 2))
    assert tenant.mixer.bias == before and tenant.lucky.bias[: len(before)] != before
    assert drafter._slots[0].luck is None


def test_more_is_accepted_and_no_token_changes() -> None:
    """A drafter that knows the table of pairs, heard beside memories, at two nodes a step."""
    asked_ = [replace(r, seed=100 + i, max_tokens=24) for i, r in enumerate(requests("T=1", count=16))]
    expected = texts(run(Loop(tiny(), [], Levels(), Match(), Fixed(0)), asked_, 1))
    accepted = {}
    for selection in (Selection.RETRIEVED, Selection.COUPLED):
        drafter = Advised(BlendDrafter(more=[voice(3)]), Says(habits))
        policy = BestFirst(fanout=2, batch=2, selection=selection)
        done = run(Loop(tiny(), [drafter], policy, Match(), Fixed(2, guard=False)), asked_, 3)
        assert_same(done, expected)
        accepted[selection] = sum(r.accepted for r in done)
    assert accepted[Selection.COUPLED] > 1.1 * accepted[Selection.RETRIEVED] > 0, accepted


def habits(token: int) -> list[tuple[int, float]]:
    """The likeliest successors of a token, with log q."""
    row = pairs()((token,))
    best = np.argsort(-row, kind="stable")[:12]
    return [(int(t), float(np.log(row[t]))) for t in best]
