"""The match rule with every policy: the law of the step is the target's, and its tokens are plain decoding's."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.core.parts import Policy
from hedgerow.core.recipe import check
from hedgerow.core.rng import Rng
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import Selection
from hedgerow.policy.bestfirst import BestFirst, EqualGrowth
from hedgerow.policy.block import Block
from hedgerow.policy.fixed import Fixed
from hedgerow.policy.gate import Beam, Lanes, RelativeGate
from hedgerow.policy.graft import Graft
from hedgerow.policy.halt import Depth, Gain
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.merged import Merged
from hedgerow.policy.sampled import Rollouts, StochasticBeam
from hedgerow.policy.slots import Slots
from hedgerow.testing.law import Request, pathwise, step_law
from hedgerow.testing.toy import Law
from hedgerow.verify.match import Match
from tests.law.cases import OTHER, P, Q, penalised, scanning

TOP_K, COUPLED = Selection.TOP_K, Selection.COUPLED
def ending(law: Law) -> Law:
    """The law for three positions: block drafters have an end."""
    return lambda path: law(path) if len(path) < 3 else np.zeros(3)


DRAFTS = [ending(Q), ending(OTHER)]
SHAPE = TreeShape.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (2,)])


def deterministic(how: Selection) -> dict[str, Policy]:
    """Policies whose tree is a function of the context (or of the target's noise, if coupled)."""
    return {
        "fixed": Fixed(SHAPE, how), "best first": BestFirst(3, 2, selection=how),
        "equal growth": EqualGrowth(2, 3, selection=how),
        "layers, a beam": Layerwise(3, Beam(2), Depth(3), selection=how),
        "layers, a gate": Layerwise(3, RelativeGate(0.3), Depth(3), selection=how),
        "layers, lanes": Layerwise(2, Lanes(2), Depth(3), selection=how),
        "layers, while they gain": Layerwise(3, Beam(3), Gain(0.2), selection=how),
        "slots": Slots(fanout=3, selection=how), "block": Block(selection=how, fanout=3),
        "merged": Merged(2, 3, selection=how), "graft": Graft((0, 1), 2, selection=how),
    }


@pytest.mark.parametrize("name", deterministic(TOP_K))
def test_trees_that_are_functions_of_the_context(name: str) -> None:
    policy = deterministic(TOP_K)[name]
    check("test", policy, Match(), scanning(Q, 0.3))
    for nodes in (12, 5):
        for p in (P, penalised):
            report = step_law(Match(), Request(policy, p, DRAFTS, nodes=nodes)).assert_lossless()
            assert report.accepted[0] > 0.5
    step_law(Match(), *[Request(policy, P, DRAFTS, nodes=7)] * 2, controller=scanning(Q, 0.3)).assert_lossless()


@pytest.mark.parametrize("name", deterministic(COUPLED))
def test_trees_that_race_on_the_targets_noise(name: str) -> None:
    policy = deterministic(COUPLED)[name]
    request = Request(policy, P, DRAFTS, nodes=6, position=3)
    assert pathwise(Match(), request, (Rng(seed) for seed in range(100))).assert_lossless().accepted[0] > 0.5


@pytest.mark.parametrize(
    "policy", [Rollouts(1, 2, 2), StochasticBeam(2, 2), Slots(fanout=2), Fixed(SHAPE, Selection.IID)],
    ids=lambda p: type(p).__name__,
)
def test_drawn_trees(policy: Policy) -> None:
    request = Request(policy, P, Q, nodes=5)
    step_law(Match(), request).assert_lossless()
    pathwise(Match(), request, (Rng(seed) for seed in range(100))).assert_lossless()
