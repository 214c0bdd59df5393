"""Slots, rollouts and stochastic beams: trees of drawn children."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest

from hedgerow.core.errors import RecipeError
from hedgerow.core.rng import Rng, Tape, enumerate_branches
from hedgerow.core.tree import Selection
from hedgerow.policy.price import MarginalSize
from hedgerow.policy.sampled import Rollouts, StochasticBeam
from hedgerow.policy.score import Calibrated
from hedgerow.policy.slots import LargestLeft, Remainder, Slots
from hedgerow.policy.stop import Budget, Threshold, Throughput
from hedgerow.testing.toy import Law, Played, markov, play, positional, random_law

LAW = markov([0.5, 0.3, 0.2], [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.25, 0.25, 0.5]])


def siblings(played: Played) -> tuple:
    """The tree as parent path -> tokens in draw order."""
    kids: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for path in played.paths:
        kids[path[:-1]].append(path[-1])
    return tuple(sorted((path, tuple(tokens)) for path, tokens in kids.items()))


def test_slot_values_of_one_parent_split_its_survival() -> None:
    for seed in range(20):
        played = play(Slots(fanout=3), random_law(seed), 12, rng=Rng(seed))
        growth, tree = played.growth, played.tree
        for node in range(-1, tree.nodes):
            kids = tree.children[node + 1]
            reach = math.prod(float(LAWS(seed, tree, v)) for v in tree.path(node))
            left = 1.0
            for c in kids:                                    # v_k = reach × (1 − Σ earlier q)
                assert tree.survival[c] == pytest.approx(reach * left, abs=1e-12)
                left -= float(LAWS(seed, tree, c))
        assert growth.selection[0] == Selection.WITHOUT_REPLACEMENT


def LAWS(seed: int, tree: object, v: int) -> float:
    path = tuple(int(tree.tokens[i]) for i in tree.path(v))  # type: ignore[attr-defined]
    return float(random_law(seed)(path[:-1])[path[-1]])


def test_a_sure_drafter_gives_a_chain() -> None:
    sure = markov([0.0, 1.0, 0.0], [[0.0, 1.0, 0.0]] * 3)
    for selection in (Selection.TOP_K, Selection.WITHOUT_REPLACEMENT):
        assert play(Slots(selection=selection), sure, 6).paths == [(1,) * d for d in range(1, 7)]


def test_the_law_of_the_tree_does_not_depend_on_the_batch() -> None:
    def law(batch: int) -> dict[tuple, float]:
        out: dict[tuple, float] = defaultdict(float)

        def run(tape: Tape) -> tuple:
            return siblings(play(Slots(fanout=2, batch=batch), LAW, 3, rng=tape.request(0)))

        for weight, shape in enumerate_branches(run):
            out[shape] += weight
        return out

    one, many = law(1), law(4)
    assert one.keys() == many.keys() and len(one) > 10
    assert all(one[k] == pytest.approx(many[k], abs=1e-12) for k in one)


def test_stops_and_caps() -> None:
    law = random_law(3, vocab=5)
    assert play(Slots(), law, 10, rng=Rng(1)).tree.nodes == 10
    tree = play(Slots(stop=Threshold(0.2)), law, 99, rng=Rng(1)).tree
    assert min(tree.survival) >= 0.2 and tree.nodes < 99
    assert play(Slots(stop=Threshold(1.5)), law, 9, rng=Rng(1)).calls == 0
    assert play(Slots(stop=Budget(4)), law, 9, rng=Rng(1)).tree.nodes == 4
    for depth, width in ((2, 9), (9, 1), (9, 2)):
        tree = play(Slots(), law, 12, depth, width, rng=Rng(1)).tree
        assert tree.max_depth <= depth and tree.width <= width and tree.nodes == min(12, depth * width, 12)
    greedy = play(Slots(stop=Throughput(lambda rows: 1.0 + 0.3 * rows, greedy=True)), law, 99, rng=Rng(1)).tree
    assert 0 < greedy.nodes < 99
    assert play(Slots(), markov([0.0], [[0.0]]), 9).tree.nodes == 0
    layer = play(Slots(batch=999, stop=Threshold(0.2)), law, 99, rng=Rng(1))
    assert layer.calls <= layer.tree.max_depth + 1            # a threshold and a large batch: one call a layer
    assert {f.source for f in play(Slots(), [law, law], 3, source=1).frontiers} == {1}


def test_price_of_the_largest_undrawn_token() -> None:
    value = LargestLeft(1.0, 0.0)
    top = {"top": [math.log(x) for x in (0.5, 0.3, 0.15)], "confidence": 0.5}
    assert value.value([], top) == pytest.approx(0.5)
    assert value.value([math.log(0.3)], top) == pytest.approx(0.5)
    assert value.value([math.log(0.5)], top) == pytest.approx(0.3)
    assert value.value([math.log(0.05)], top) == pytest.approx(0.5)             # drawn from the tail
    assert value.value([math.log(0.5), math.log(0.3)], {"confidence": 0.5}) == pytest.approx(0.2)
    assert value.value([], {}) == pytest.approx(1.0) and value.value([0.0], top) == 0.0
    assert LargestLeft().value([], top) == pytest.approx(1 / (1 + math.exp(0.4587)))
    assert Remainder().value([math.log(0.75), math.log(0.5)], {}) == 0.0


def test_treespark_trees_of_draws() -> None:
    policy = Slots(fanout=8, value=LargestLeft(), score=Calibrated(), stop=Threshold(0.05, 64))
    for seed in range(10):
        tree = play(policy, random_law(seed, vocab=6), 64, rng=Rng(seed)).tree
        assert np.all(tree.survival >= 0.05) and np.all(np.diff(tree.survival) <= 1e-12)
    chain = play(Slots(value=LargestLeft(1.0, 0.0), stop=Threshold(0.9)), positional([0.99, 0.01]), 9, rng=Rng(2)).tree
    assert chain.form in ("plain", "chain")


def test_what_slots_refuse() -> None:
    for selection in (Selection.IID, Selection.HUB, Selection.GREEDY_PLUS_ONE):
        with pytest.raises(RecipeError, match="without replacement"):
            Slots(selection=selection)
    for stop in (Throughput(lambda rows: 1.0), MarginalSize(lambda rows: 1.0)):
        with pytest.raises(RecipeError, match="beyond the cut"):
            Slots(stop=stop)
    policy = Slots()
    assert policy.selections == {Selection.WITHOUT_REPLACEMENT} and not policy.reads_tokens and policy.spec() is None


# ------------------------------------------------------------------------------------------------ rollouts

def test_rollouts_share_what_they_agree_on() -> None:
    played = play(Rollouts(trunk=1, branches=3, length=2), LAW, 99, rng=Rng(0))
    tree = played.tree
    assert int((tree.depth == 1).sum()) == 1
    for depth in (2, 3):
        assert int(tree.mult[tree.depth == depth].sum()) == 3 if depth == 2 else True
    for node in np.flatnonzero(tree.depth == 2):
        assert sum(int(tree.mult[c]) for c in tree.children[node + 1]) == int(tree.mult[node])
    sure = play(Rollouts(0, 4, 3), positional([1.0]), 99).tree
    assert sure.form == "chain" and sure.mult.tolist() == [4, 4, 4]


def test_rollouts_follow_the_product_law() -> None:
    """Two rollouts of two tokens: the multiset of paths has the law of two independent paths."""
    got: dict[tuple, float] = defaultdict(float)

    def run(tape: Tape) -> tuple:
        played = play(Rollouts(0, 2, 2), LAW, 99, rng=tape.request(0))
        leaves = [
            (path, int(played.tree.mult[v])) for v, path in enumerate(played.paths) if len(path) == 2
        ]
        return tuple(sorted(leaves))

    for weight, leaves in enumerate_branches(run):
        got[leaves] += weight
    want: dict[tuple, float] = defaultdict(float)
    paths = {(a, b): LAW(())[a] * LAW((a,))[b] for a in range(3) for b in range(3)}
    for one, two in itertools.product(paths, repeat=2):
        pair = ((one, 2),) if one == two else tuple(sorted([(one, 1), (two, 1)]))
        want[pair] += paths[one] * paths[two]
    assert got.keys() == want.keys() and all(got[k] == pytest.approx(want[k], abs=1e-12) for k in want)


@pytest.mark.parametrize(("nodes", "depth", "width", "levels"), [
    (99, 99, 99, (1, 1, 3, 3)), (2, 99, 99, (1, 1)), (5, 99, 99, (1, 1, 1, 1)), (7, 99, 99, (1, 1, 2, 2)),
    (99, 3, 99, (1, 1, 3)), (99, 1, 99, (1,)), (99, 99, 2, (1, 1, 2, 2)),
])
def test_rollouts_are_capped_before_they_are_drawn(nodes: int, depth: int, width: int, levels: tuple[int, ...]) -> None:
    spread = positional([1e-3] * 1000)                        # hardly ever two alike
    tree = play(Rollouts(2, 3, 2), spread, nodes, depth, width, rng=Rng(1)).tree
    assert tuple(int((tree.depth == d).sum()) for d in range(1, tree.max_depth + 1)) == levels
    assert play(Rollouts(2, 3, 2), positional([1.0], max_depth=1), 99).tree.nodes == 1
    assert Rollouts(1, 1, 1).spec() is None and Rollouts(1, 1, 1).selections == {Selection.IID}
    assert {f.source for f in play(Rollouts(1, 1, 1), [spread, spread], 3, source=1).frontiers} == {1}


# ------------------------------------------------------------------------------------------------ stochastic beam

def race(law: Law, vocab: int, width: int, depth: int) -> dict[tuple, float]:
    """The law of the beams by drawing whole paths one after the other without replacement (an independent way)."""
    paths = {
        path: math.prod(float(law(path[:i])[path[i]]) for i in range(depth))
        for path in itertools.product(range(vocab), repeat=depth)
    }
    out: dict[tuple, float] = defaultdict(float)

    def beams(order: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]] | None:
        levels, above = [], {()}
        for d in range(1, depth + 1):
            seen = list(dict.fromkeys(path[:d] for path in order if path[: d - 1] in above))[:width]
            if len(seen) < width:
                return None
            levels.append(seen)
            above = set(seen)
        return levels

    def walk(order: list[tuple[int, ...]], left: float, weight: float) -> None:
        levels = beams(order)
        if levels is None:
            for path, q in paths.items():
                if path not in order:
                    walk([*order, path], left - q, weight * q / left)
            return
        kids: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for node in itertools.chain.from_iterable(levels):
            kids[node[:-1]].append(node[-1])
        out[tuple(sorted((path, tuple(tokens)) for path, tokens in kids.items()))] += weight

    walk([], 1.0, 1.0)
    return out


@pytest.mark.parametrize(("vocab", "width", "depth"), [(3, 1, 2), (3, 2, 2), (2, 2, 3)])
def test_the_beam_has_the_law_of_a_race_of_paths(vocab: int, width: int, depth: int) -> None:
    law = random_law(7, vocab, concentration=2.0)
    got: dict[tuple, float] = defaultdict(float)

    def run(tape: Tape) -> tuple:
        return siblings(play(StochasticBeam(width, depth), law, width * depth, rng=tape.request(0)))

    for weight, shape in enumerate_branches(run):
        got[shape] += weight
    want = race(law, vocab, width, depth)
    assert got.keys() == want.keys()
    assert max(abs(got[k] - want[k]) for k in want) < 1e-12


def test_beams_keep_to_their_caps_and_end_with_the_drafter() -> None:
    law = random_law(1, vocab=6)
    tree = play(StochasticBeam(4, 3), law, 99, rng=Rng(0)).tree
    assert [int((tree.depth == d).sum()) for d in (1, 2, 3)] == [4, 4, 4]
    assert play(StochasticBeam(4, 3), law, 6, rng=Rng(0)).tree.nodes == 6
    assert play(StochasticBeam(4, 3), law, 4, rng=Rng(0)).tree.max_depth == 1
    assert play(StochasticBeam(4, 3), law, 99, width=2, rng=Rng(0)).tree.width == 2
    assert play(StochasticBeam(4, 3), law, 99, depth=2, rng=Rng(0)).tree.max_depth == 2
    assert play(StochasticBeam(4, 3), random_law(1, vocab=6, max_depth=2), 99, rng=Rng(0)).tree.max_depth == 2
    narrow = play(StochasticBeam(4, 2), positional([0.5, 0.5]), 99, rng=Rng(0)).tree
    assert [int((narrow.depth == d).sum()) for d in (1, 2)] == [2, 4]           # no more tokens than there are
    policy = StochasticBeam(2, 2)
    assert policy.selections == {Selection.WITHOUT_REPLACEMENT} and policy.spec() is None and not policy.reads_tokens
    assert {f.source for f in play(policy, [law, law], 4, source=1).frontiers} == {1}
