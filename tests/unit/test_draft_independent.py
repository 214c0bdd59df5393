"""A model as the drafter: its cache follows the text, whatever was accepted or skipped; q is what it drew from."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.control.controller import Fixed
from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Ask, Feats, Frontier, Plan, Sampling, View
from hedgerow.core.rng import Rng
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import Selection
from hedgerow.draft.independent import LMDrafter, perturbed
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request
from hedgerow.engine.scheduler import Scheduler
from hedgerow.models.runner import Runner
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.fixed import Fixed as Shape
from hedgerow.target.tiny import TinyTarget
from hedgerow.verify.joint import Traversal
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection

TREE = TreeShape.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])


class Skipping(Fixed):
    """Drafts in one step out of six only, so that the drafter lags in between."""

    def plan(self, batch):
        plans = super().plan(batch)
        return [p if v.position % 6 == 0 else Plan(0, reason="skipped") for p, v in zip(plans, batch, strict=True)]


def run(target, drafter, policy, rule, controller, temperature, requests=5):
    scheduler = Scheduler(Loop(target, [drafter] if drafter else [], policy, rule, controller), max_batch=3)
    done = scheduler.run([
        Request((1, 2, 3 + i % 3), max_tokens=40, sampling=Sampling(temperature), seed=i) for i in range(requests)
    ])
    return done, sum(len(r.finish.ids) - 1 for r in done) / sum(r.steps for r in done)


@pytest.fixture
def target():
    return TinyTarget(seed=0, slots=16)


def drafter_of(target, strength=0.0, max_lag=32):
    return LMDrafter(Runner(target.runner.net, 16, 1024), perturbed(strength, 1) if strength else None, max_lag)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("strength", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("policy", [Shape(TREE), BestFirst(fanout=3), Shape(TREE, Selection.COUPLED)])
def test_same_tokens_and_no_slot_lost(target, policy, strength, temperature):
    plain, _ = run(target, None, BestFirst(), Match(), Fixed(0), temperature)
    drafter = drafter_of(target, strength)
    tree, tau = run(target, drafter, policy, Match(), Fixed(6, guard=False), temperature)
    assert [r.finish.ids for r in tree] == [r.finish.ids for r in plain]
    assert tau > 1.1
    assert drafter.runner.kv.free_slots == 16
    drafter.runner.kv.check_integrity()


def test_the_target_as_its_own_drafter_is_right_every_time(target):
    chain = TreeShape.from_paths([(0,) * n for n in range(1, 6)])
    done, _ = run(target, drafter_of(target), Shape(chain), Match(), Fixed(5, guard=False), 0.0)
    for r in done:  # every step but the last, which the token limit cuts short, accepts the whole chain
        assert r.histogram[5] >= r.steps - 1


@pytest.mark.parametrize("max_lag", [2, 32])
def test_a_drafter_that_lagged_drafts_as_if_it_had_not(target, max_lag):
    chain = TreeShape.from_paths([(0,) * n for n in range(1, 6)])
    done, _ = run(target, drafter_of(target, max_lag=max_lag), Shape(chain), Match(), Skipping(5, guard=False), 0.0)
    for r in done:
        drafted = [k for k, n in enumerate(r.histogram) if k and n]
        assert set(drafted) <= {5, *range(1, 5)} and r.histogram[5] >= sum(r.histogram[1:]) - 1


@pytest.mark.parametrize("rule", [Rejection(), Traversal()])
def test_better_drafters_are_accepted_more_under_q_aware_rules(target, rule):
    taus = []
    for strength in (0.0, 1.0, 4.0):
        policy = Shape(TREE, Selection.WITHOUT_REPLACEMENT)
        taus.append(run(target, drafter_of(target, strength), policy, rule, Fixed(6, guard=False), 1.0, 12)[1])
    assert taus[0] > taus[1] > taus[2] > 1.0


def test_q_rows_are_the_laws_the_children_were_drawn_from(target):
    drafter = drafter_of(target)
    drafter.begin(0, [1, 2, 3], Feats())
    view = View(request=0, slot=0, root=3, position=2, room=9, sampling=Sampling(1.0), rng=Rng(0).at(2),
                draw=lambda row, depth, ids=None: np.exp(row - row.max()) / np.exp(row - row.max()).sum())
    asked = Frontier([-1], [3], selection=Selection.WITHOUT_REPLACEMENT)
    got = drafter.children([Ask(0, asked, view)])
    q = drafter.row(0, got.origin[0])
    assert q.sum() == pytest.approx(1.0)
    assert np.log(q[list(got.token)]) == pytest.approx(got.log_q)


def test_the_first_frontier_begins_at_the_root(target):
    drafter = drafter_of(target)
    drafter.begin(0, [1, 2, 3], Feats())
    view = View(request=0, slot=0, root=3, position=2, room=9, sampling=Sampling(), rng=Rng(0).at(2))
    view.growth.add([-1], [1], [5], [0.0])
    with pytest.raises(InvariantError, match="begins at the root"):
        drafter.children([Ask(0, Frontier([0], [1]), view)])


def test_fork_drafts_like_its_parent(target):
    drafter = drafter_of(target)
    drafter.begin(0, [1, 2, 3], Feats())

    def ask(slot):
        view = View(request=slot, slot=slot, root=3, position=2, room=9, sampling=Sampling(), rng=Rng(0).at(2))
        return drafter.children([Ask(slot, Frontier([-1], [4]), view)]).token

    drafter.fork(0, 1, 3)
    assert ask(0) == ask(1)
    drafter.release(0)
    drafter.release(1)
    assert drafter.runner.kv.free_slots == 16
