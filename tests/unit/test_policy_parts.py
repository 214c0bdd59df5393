"""Scores, stops, gates and halts one by one."""

from __future__ import annotations

import math

import pytest

from hedgerow.core.errors import RecipeError, UsageError
from hedgerow.core.parts import Children, Received
from hedgerow.core.tree import Growth, Selection
from hedgerow.policy.bestfirst import BestFirst, EqualGrowth
from hedgerow.policy.gate import Beam, Lanes, RelativeGate
from hedgerow.policy.halt import BeamMass, Bins, BreakEven, Confidence, Depth, Gain, beam_mass
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.score import ByRank, Calibrated, Confident, Decayed, PathProbability, PathScorer, platt
from hedgerow.policy.stop import Budget, Price, Threshold, Throughput, best_size, first_refusal
from hedgerow.testing.toy import markov, play, positional, random_law

LAW = markov([0.53, 0.31, 0.16], [[0.71, 0.19, 0.10], [0.23, 0.61, 0.16], [0.41, 0.34, 0.25]])


def arrived(*q: float) -> tuple[Growth, Received]:
    growth = Growth()
    log_q = [math.log(x) if x else -math.inf for x in q]
    ids = growth.add([-1], [len(q)], list(range(10, 10 + len(q))), log_q)
    return growth, Received(Children([len(q)], growth.token, log_q), ids)


def test_scores() -> None:
    growth, received = arrived(0.5, 0.25, 1.0, 0.0)
    logs = [math.log(0.5), math.log(0.25), 0.0, -math.inf]
    assert list(PathProbability().edges(growth, received)) == logs
    assert list(Calibrated(1.0, 0.0).edges(growth, received)) == pytest.approx(logs)
    shrunk = Calibrated().edges(growth, received)
    assert shrunk[0] == pytest.approx(math.log(1 / (1 + math.exp(0.4587)))) and shrunk[2] == 0.0
    assert shrunk[3] == -math.inf and shrunk[1] < shrunk[0]
    assert Decayed(0.9).edges(growth, received)[:2] == pytest.approx([x + math.log(0.9) for x in logs[:2]])
    assert ByRank((0.7, 0.2)).edges(growth, received) == pytest.approx([math.log(x) for x in (0.7, 0.2, 0.2, 0.2)])
    scorer = PathScorer(lambda path: math.log(0.5) if path[-1] == 10 else 0.3)
    assert scorer.edges(growth, received) == [math.log(0.5), 0.0, 0.0, 0.0]      # never above 0
    assert scorer.reads_tokens and not any(s.reads_tokens for s in (PathProbability(), Calibrated(), ByRank((1.0,))))
    for p in ((), (0.5, 0.0), (1.1,)):
        with pytest.raises(UsageError, match="rank acceptances"):
            ByRank(p)


def test_confidence_is_a_rows_not_a_childs() -> None:
    growth, received = arrived(0.5, 0.25)
    assert Confident().edges(growth, received) == [math.log(0.5), math.log(0.25)], "without a head, q itself"
    growth.add([0, 1, 1], [2, 0, 1], [20, 21, 22], [-1.0, -2.0, -3.0])
    said = Children([2, 0, 1], [20, 21, 22], [-1.0, -2.0, -3.0], aux={"confidence": [0.9, 0.4, 0.0]})
    assert Confident().edges(growth, Received(said, range(2, 5))) == [math.log(0.9), math.log(0.9), -math.inf]


@pytest.mark.parametrize("q", [1e-9, 0.01, 0.3, 0.9, 1 - 1e-12])
@pytest.mark.parametrize(("slope", "offset"), [(0.6684, -0.4587), (3.0, 2.0)])
def test_platt_is_the_logistic_of_the_logit(q: float, slope: float, offset: float) -> None:
    plain = 1 / (1 + math.exp(-(slope * math.log(q / (1 - q)) + offset)))
    assert platt(math.log(q), slope, offset) == pytest.approx(math.log(plain), rel=1e-3, abs=1e-15)


def test_stops() -> None:
    survival = [0.9, 0.6, 0.3, 0.1]
    assert Budget().cut(survival) == 4 and Budget(2).cut(survival) == first_refusal(Budget(2), survival) == 2
    assert [Threshold(t).cut(survival) for t in (0.0, 0.3, 2.0)] == [4, 3, 0] and Threshold(0.0, 1).cut(survival) == 1
    assert Price(saved_s=0.01, node_s=0.005).cut(survival) == 2 and Price(0.01, 0.0).cut(survival) == 4
    stepped = Throughput(lambda rows: 1.0 if rows <= 2 else 2.0 if rows <= 3 else 2.05)
    assert stepped.cut(survival) == 1 and stepped.looks_ahead and stepped.admits(0.0, 0, 0.0)
    greedy = Throughput(lambda rows: 1.0 + 0.2 * rows, greedy=True)
    assert greedy.cut(survival) == best_size(survival, greedy.step_s)[0] and not greedy.looks_ahead
    assert not any(s.looks_ahead for s in (Budget(), Threshold(0.1), Price(1.0, 1.0)))
    assert Throughput(lambda rows: 1.0).cut([]) == 0


def test_a_scan_of_bucket_edges_sees_edges_and_the_end() -> None:
    survival = [0.9, 0.8, 0.7, 0.2, 0.1]

    def cost(rows: int) -> float:
        return 1.0 + 0.1 * math.ceil(rows / 4)

    assert Throughput(cost, edges=(4, 8)).cut(survival) == 3 == Throughput(cost).cut(survival)
    assert best_size(survival, lambda rows: 1.0, edges=(4,)) == (5, pytest.approx(3.7))
    with pytest.raises(UsageError, match="costs 0"):
        best_size(survival, lambda rows: 0.0)


def test_gates() -> None:
    def sizes(gate: object, layers: int = 3, nodes: int = 40) -> list[int]:
        tree = play(Layerwise(3, gate, Depth(layers)), LAW, nodes).tree  # type: ignore[arg-type]
        return [int((tree.depth == d).sum()) for d in range(1, layers + 1)]

    assert sizes(Beam(2)) == [3, 6, 6]                        # what is not expanded stays in the pool
    assert sizes(Lanes(2)) == [2, 2, 2]
    assert sizes(RelativeGate(0.0)) == [3, 9, 27] and sizes(RelativeGate(1.0)) == [3, 1, 1]
    assert sizes(RelativeGate(0.0), nodes=5) == [3, 2, 0]
    assert Lanes(2).only and RelativeGate(0.1).only and not Beam(2).only


def test_halts_by_depth_and_gain() -> None:
    def depth(halt: object, nodes: int = 8) -> int:
        return play(Layerwise(8, Beam(8), halt), LAW, nodes, depth=6).tree.max_depth  # type: ignore[arg-type]

    assert depth(Depth(2)) == 2 and depth(Gain(-math.inf), nodes=60) == 6
    assert depth(Gain(0.3)) == 2 and depth(Gain(2.0)) == 1    # the layer that gained too little is left out
    free, cheap, dear = (
        play(Layerwise(8, Beam(8), BreakEven(d, lambda rows: 1.0)), LAW, 8, depth=6).calls for d in (0.0, 0.05, 0.4)
    )
    assert 6 >= free > cheap > dear >= 2


def test_beam_mass() -> None:
    assert beam_mass([]) == -math.inf and beam_mass([-1.0]) == -1.0
    assert beam_mass([math.log(0.2)] * 3) == pytest.approx(math.log(0.6))
    masses = [
        beam_mass(sorted(play(Layerwise(3, Beam(3), Depth(d)), LAW, 100).growth.score[-9:], reverse=True)[:3])
        for d in range(2, 6)
    ]
    assert masses == sorted(masses, reverse=True)             # a beam only loses mass

    def calls(halt: BeamMass) -> int:
        return play(Layerwise(3, Beam(3), halt), LAW, 100, depth=20).calls

    assert calls(BeamMass(-math.inf, (2, 4), 7)) == 7
    assert calls(BeamMass(0.0, (2, 4), 7)) == 2
    assert calls(BeamMass((masses[0] + masses[2]) / 2, (2, 4), 7)) == 4


def test_confidence_stops_at_its_checkpoints() -> None:
    def calls(halt: Confidence) -> int:
        return play(Layerwise(3, Beam(3), halt), LAW, 100, depth=20).calls

    best = [0.53, 0.53 * 0.71, 0.53 * 0.71**2]
    assert calls(Confidence({}, 5)) == 5
    assert calls(Confidence({1: 0.5, 3: best[2] - 1e-9}, 5)) == 5
    assert calls(Confidence({1: 0.5, 3: best[2] + 1e-9}, 5)) == 3
    assert play(Layerwise(3, Beam(3), Confidence({2: 0.1}, 9)), positional([0.6], max_depth=1), 9).calls == 2


def test_bins_pick_depth_and_size_by_entropy() -> None:
    sure, torn = positional([0.97, 0.02, 0.01]), positional([0.4, 0.35, 0.25])
    policy = Layerwise(3, Beam(3), Bins(after=2, edges=(0.8,), extra=(4, 0), nodes=(5, 12)))
    easy, hard = play(policy, sure, 30, depth=20), play(policy, torn, 30, depth=20)
    assert (easy.calls, easy.tree.nodes) == (6, 5) and (hard.calls, hard.tree.nodes) == (2, 12)
    with pytest.raises(UsageError, match="one more"):
        Bins(2, (0.5,), (1,), (9, 9))


def test_what_growths_refuse_and_declare() -> None:
    for make in (
        lambda s: Layerwise(2, Beam(2), Depth(2), selection=s), lambda s: BestFirst(selection=s),
        lambda s: EqualGrowth(selection=s),
    ):
        assert make(Selection.COUPLED).selections == {Selection.COUPLED} and make(Selection.TOP_K).spec is not None
        assert not make(Selection.TOP_K).reads_tokens
        with pytest.raises(RecipeError, match="without_replacement"):
            make(Selection.WITHOUT_REPLACEMENT)
    scorer = PathScorer(lambda path: -1.0)
    assert BestFirst(score=scorer).reads_tokens and Layerwise(2, Beam(2), Depth(1), score=scorer).reads_tokens
    assert EqualGrowth(score=scorer).reads_tokens
    assert BestFirst().spec() is None and Layerwise(2, Beam(2), Depth(1)).spec() is None
    spec = EqualGrowth(4, 3).spec()
    assert spec is not None and spec.values == {"width": 4, "steps": 3}


def test_layerwise_takes_the_root_from_first_and_its_source_from_the_plan() -> None:
    policy = Layerwise(2, Beam(2), Depth(2), first=3)
    played = play(policy, [LAW, positional([0.9, 0.1])], 20)
    assert [list(f.counts) for f in played.frontiers] == [[3], [2, 2]]
    other = play(policy, [LAW, positional([0.9, 0.1])], 20, source=1)
    assert {f.source for f in other.frontiers} == {1} and other.tree.survival[0] == pytest.approx(0.9)
    assert play(BestFirst(), [LAW, positional([1.0])], 3, source=1).paths == [(0,), (0, 0), (0, 0, 0)]


def test_equal_growth_policy_has_equal_steps() -> None:
    law = random_law(5, vocab=6)
    played = play(EqualGrowth(4, 5), law, 100)
    assert [len(f.nodes) for f in played.frontiers] == [1, 4, 4, 4, 4]
    assert played.tree.nodes == 20 and played.tree.max_depth == 5
    chain = play(EqualGrowth(1, 5), law, 100)
    assert chain.tree.form == "chain" and chain.tree.nodes == 5
    assert play(EqualGrowth(4, 5), law, 7).tree.nodes == 7
    assert play(EqualGrowth(4, 5), law, 100, width=2).tree.width <= 2
    assert play(EqualGrowth(3, 9), random_law(5, max_depth=2), 100).tree.max_depth == 2
    beam = play(Layerwise(4, Lanes(4), Depth(5)), law, 12)
    assert play(EqualGrowth(4, 5), law, 12).expected >= beam.expected - 1e-12
