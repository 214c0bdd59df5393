"""Best-first growth, alone and over several sources."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hedgerow.core.errors import RecipeError, UsageError
from hedgerow.core.tree import Selection
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.graft import Graft, Mixture, noisy_or
from hedgerow.policy.score import Calibrated, Decayed, PathProbability
from hedgerow.policy.stop import Threshold, Throughput
from hedgerow.testing.toy import markov, play, positional, random_law

LEFT = markov([0.6, 0.3, 0.1, 0.0], [[0.7, 0.2, 0.1, 0.0]] * 4)
RIGHT = markov([0.0, 0.5, 0.2, 0.3], [[0.1, 0.1, 0.1, 0.7]] * 4)


def test_batches_waste_drafting_and_change_nothing_else() -> None:
    law = random_law(4, vocab=5)
    trees = [play(BestFirst(fanout=5, batch=b), law, 24) for b in (1, 2, 5, 24)]
    for played in trees[1:]:
        assert set(played.paths) == set(trees[0].paths)
        assert played.calls <= trees[0].calls
    expanded = sum(len(f.nodes) for f in trees[0].frontiers)
    assert expanded <= 25 and len(trees[0].growth) <= 125


def test_rounds_and_decay() -> None:
    law = random_law(4, vocab=5)
    assert play(BestFirst(fanout=5, batch=2, rounds=3), law, 40).calls == 3
    assert play(BestFirst(rounds=0), law, 9).tree.nodes == 0
    decayed = play(BestFirst(fanout=5, score=Decayed(0.5)), law, 20).tree
    assert decayed.max_depth <= play(BestFirst(fanout=5), law, 20).tree.max_depth
    assert np.allclose(play(BestFirst(fanout=5, score=Decayed(1.0)), law, 20).tree.survival,
                       play(BestFirst(fanout=5), law, 20).tree.survival)


def test_stops_end_growth_early() -> None:
    law = positional([0.6, 0.3, 0.1])
    loose, tight = play(BestFirst(stop=Threshold(0.05)), law, 99), play(BestFirst(stop=Threshold(0.3)), law, 99)
    assert min(tight.tree.survival) >= 0.3 > min(loose.tree.survival) >= 0.05
    assert tight.calls < loose.calls and len(tight.growth) < len(loose.growth)
    assert play(BestFirst(stop=Threshold(0.99)), law, 99).tree.nodes == 0
    scan = play(BestFirst(stop=Throughput(lambda rows: 1.0 if rows <= 4 else 9.0)), law, 20)
    assert scan.tree.nodes == 3
    calibrated = play(BestFirst(stop=Threshold(0.05), score=Calibrated()), law, 99).tree
    assert calibrated.nodes < loose.tree.nodes


@pytest.mark.parametrize("policy", [BestFirst(fanout=4), Graft((0, 1))])
@pytest.mark.parametrize(
    ("nodes", "depth", "width"), [(1, 9, 9), (15, 9, 9), (15, 2, 9), (15, 9, 1), (15, 9, 3), (6, 1, 2)]
)
def test_caps(policy: BestFirst | Graft, nodes: int, depth: int, width: int) -> None:
    tree = play(policy, [LEFT, RIGHT], nodes, depth, width).tree
    assert 0 < tree.nodes <= nodes and tree.max_depth <= depth and tree.width <= width
    tokens = 3 if isinstance(policy, BestFirst) else 4        # both sources together know four
    assert tree.nodes == min(nodes, sum(min(width, tokens**d) for d in range(1, depth + 1)))


def test_graft_has_no_duplicates_and_conserves_the_budget() -> None:
    for nodes in (1, 4, 15, 40):
        played = play(Graft((0, 1)), [LEFT, RIGHT], nodes)
        assert len(set(played.paths)) == played.tree.nodes == nodes
        alone = [play(BestFirst(4), law, nodes).expected for law in (LEFT, RIGHT)]
        assert played.expected >= max(alone) - 1e-12
    assert set(played.tree.source.tolist()) == {0, 1}


def test_merged_survival() -> None:
    def root(combine: object) -> dict[int, float]:
        tree = play(Graft((0, 1), combine=combine), [LEFT, RIGHT], 4, depth=1).tree  # type: ignore[arg-type]
        return {int(t): float(s) for t, s in zip(tree.tokens, tree.survival, strict=True)}

    assert root(max) == pytest.approx({0: 0.6, 1: 0.5, 3: 0.3, 2: 0.2})
    assert root(noisy_or) == pytest.approx({0: 0.6, 1: 1 - 0.7 * 0.5, 3: 0.3, 2: 1 - 0.9 * 0.8})
    assert root(Mixture((0.5, 0.5))) == pytest.approx({0: 0.3, 1: 0.4, 3: 0.15, 2: 0.15})
    tree = play(Graft((0, 1)), [LEFT, RIGHT], 4, depth=1).tree
    strongest = dict(zip(tree.tokens.tolist(), tree.source.tolist(), strict=True))
    assert strongest == {0: 0, 1: 1, 2: 1, 3: 1}              # who gave it most keeps it


def test_graft_of_one_source_is_best_first() -> None:
    for seed in range(5):
        law = random_law(seed, vocab=4)
        alone, graft = play(BestFirst(4), law, 12), play(Graft((0,)), law, 12)
        assert graft.paths == alone.paths and np.allclose(graft.tree.survival, alone.tree.survival)
        chosen = play(Graft((0, 1)), [random_law(99), law], 12, source=1)
        assert chosen.paths == alone.paths and {f.source for f in chosen.frontiers} == {1}


def test_each_source_may_have_its_own_score_and_selection() -> None:
    policy = Graft((0, 1), scores=(PathProbability(), Decayed(0.1)), selection=(Selection.RETRIEVED, Selection.TOP_K))
    assert policy.selections == {Selection.RETRIEVED, Selection.TOP_K} and policy.reads_tokens
    played = play(policy, [LEFT, RIGHT], 6)
    assert {(f.source, f.selection) for f in played.frontiers} == {(0, Selection.RETRIEVED), (1, Selection.TOP_K)}
    assert set(play(policy, [RIGHT, LEFT], 1).paths) == {(1,)}
    assert policy.spec() is None


def test_a_source_that_repeats_itself_is_merged_too() -> None:
    from hedgerow.core.parts import Children, Received
    from hedgerow.core.tree import Growth
    from hedgerow.policy.graft import merge

    growth = Growth()
    logs = [math.log(0.2), math.log(0.5), -math.inf]
    ids = growth.add([-1], [3], [7, 7, 8], logs)
    received = Received(Children([3], [7, 7, 8], logs), ids)
    got = merge(growth.parent, growth.token, [(0, received, logs)], 1, max)
    assert got == [(1, pytest.approx(logs[1])), (2, -math.inf)]


@pytest.mark.parametrize(("kwargs", "words"), [
    ({"sources": ()}, "0 sources"), ({"sources": (0, 1, 2), "scores": (PathProbability(),) * 2}, "2 scores for 3"),
    ({"sources": (0, 1), "selection": (Selection.TOP_K,)}, "1 selections for 2"),
])
def test_graft_wants_one_of_each_or_one(kwargs: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Graft(**kwargs)


def test_graft_refuses_draws_and_bad_mixtures() -> None:
    with pytest.raises(RecipeError, match="iid"):
        Graft((0, 1), selection=Selection.IID)
    for weights in ((0.7, 0.5), (-0.1, 0.2)):
        with pytest.raises(UsageError, match="mixture"):
            Mixture(weights)
