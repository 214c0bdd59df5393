"""Trees over block drafters."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from hedgerow.core.errors import RecipeError
from hedgerow.core.parts import Children, Plan, Received, Sampling, View
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Selection
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.block import Block, Constant, Families, GapFanout, HistogramFanout, best_ranks
from hedgerow.policy.stop import Threshold, Throughput
from hedgerow.testing.toy import marginals, play

ROWS = [[0.62, 0.21, 0.09, 0.05], [0.55, 0.22, 0.12, 0.06], [0.41, 0.27, 0.13, 0.11], [0.33, 0.29, 0.17, 0.08]]
TABLE = [[math.log(p) for p in row] for row in ROWS]


def test_the_heap_is_the_sort_of_all_prefixes() -> None:
    every = sorted(
        (math.prod(ROWS[d][r] for d, r in enumerate(path))
         for depth in range(1, 5) for path in itertools.product(range(4), repeat=depth)), reverse=True)
    for n in (1, 7, 60, 340, 400):
        ranks = best_ranks(TABLE, n)
        assert np.allclose([math.exp(s) for s in ranks.score], every[:n])
        assert len(set(ranks.paths)) == min(n, 340)
    assert best_ranks([], 5).paths == [] and best_ranks([[]], 5).paths == [] and best_ranks(TABLE, 0).paths == []
    assert best_ranks([[-1.0], []], 5).paths == [(0,)]


def test_ties_keep_parents_first() -> None:
    ranks = best_ranks([[0.0, -1.0], [0.0, -1.0], [0.0]], 6)
    assert ranks.paths[:3] == [(0,), (0, 0), (0, 0, 0)]
    assert all(p < i for i, p in enumerate(ranks.parent))


def test_block_policy_is_best_first_on_marginals() -> None:
    law = marginals(ROWS)
    for nodes, depth, width in ((9, 99, 99), (30, 99, 99), (20, 2, 99), (12, 99, 3), (5, 99, 1), (340, 99, 400)):
        block, exact = play(Block(), law, nodes, depth, width), play(BestFirst(fanout=9), law, nodes, depth, width)
        assert set(block.paths) == set(exact.paths)
        assert block.expected == pytest.approx(exact.expected)
        assert block.tree.nodes <= nodes and block.tree.max_depth <= depth and block.tree.width <= width
    assert play(Block(), marginals([]), 9).tree.nodes == 0
    assert play(Block(fanout=2), law, 99).tree.nodes == 2 + 4 + 8 + 16
    assert {f.source for f in play(Block(), [law, law], 9, source=1).frontiers} == {1}


def test_block_policy_reads_the_table_of_the_first_answer() -> None:
    law = marginals(ROWS)
    asked = []
    view = View(0, 0, root=0, position=0, room=99, sampling=Sampling(), rng=Rng(0))
    growing = Block().grow(view, Plan(nodes=20))
    frontier = next(growing)
    while True:
        asked.append(frontier)
        token, log_q, count = [], [], []
        for node, k in zip(frontier.nodes, frontier.counts, strict=True):
            depth = view.growth.depth[node] if node >= 0 else 0
            row = TABLE[depth][:k] if depth < 4 else []
            token += range(len(row))
            log_q += row
            count.append(len(row))
        aux = {"block": [TABLE]} if frontier.nodes == [-1] else {}
        answer = Children(count, token, log_q, aux=aux)  # type: ignore[arg-type]
        try:
            frontier = growing.send(Received(answer, view.growth.add(frontier.nodes, count, token, log_q)))
        except StopIteration as end:
            tree = end.value
            break
    plain = play(Block(), law, 20)
    assert tree.nodes == 20 and np.allclose(tree.survival, plain.tree.survival)
    assert len(asked) == plain.tree.max_depth < plain.calls


def test_stops_cut_the_ordered_list() -> None:
    law = marginals(ROWS)
    whole = play(Block(), law, 60).tree.survival.tolist()
    assert play(Block(stop=Threshold(0.1)), law, 60).tree.nodes == sum(s >= 0.1 for s in whole)
    flat = Throughput(lambda rows: 1.0, 0.1)
    assert play(Block(stop=flat), law, 60).tree.nodes == 60
    knee = Throughput(lambda rows: 1.0 + 0.05 * max(0, rows - 9), 0.1, greedy=True)
    assert play(Block(stop=knee), law, 60).tree.nodes == knee.cut(whole) < 60


def test_families_add_whole_sibling_groups() -> None:
    law = marginals(ROWS)
    jet = play(Block(build=Families(Constant(4))), law, 12)
    assert jet.tree.nodes == 12 and all(len(c) in (0, 4) for c in jet.tree.children)
    assert jet.expected <= play(Block(), law, 12).expected    # weak siblings before better nodes elsewhere
    assert play(Block(build=Families(Constant(4))), law, 10).tree.nodes == 10
    assert play(Block(build=Families(Constant(4))), law, 999).tree.nodes == 340
    assert Families(Constant(2))(TABLE, 0).paths == []


def test_fanouts_and_their_identities() -> None:
    assert [GapFanout(7)(0, g) for g in (-9.0, 1.0, 3.0, 900.0)] == [7, 4, 1, 1]
    profile = HistogramFanout(tuple(map(tuple, ROWS)), floor=0.1)
    assert [profile(d, 0.0) for d in range(6)] == [2, 3, 4, 3, 3, 3]
    base = Families(Constant(4))(TABLE, 50)
    assert Families(HistogramFanout(tuple(map(tuple, ROWS)), floor=0.0))(TABLE, 50) == base    # cap ≥ K
    assert Families(GapFanout(8, beta=0.0))(TABLE, 50) == base
    wavering = [[math.log(0.5), math.log(0.49)], [math.log(0.9), math.log(0.05)], [0.0]]
    gap = Families(GapFanout(2, beta=9.0, middle=0.5))(wavering, 9)
    assert gap.paths == [(0,), (1,), (0, 0), (1, 0), (0, 0, 0), (1, 0, 0)]    # wide only where the draft wavers
    narrowed = Families(HistogramFanout(((0.0,),)))(TABLE, 50)
    assert narrowed.paths == []


def test_builders_keep_to_the_width() -> None:
    for build in (best_ranks, Families(Constant(3))):
        depths = [len(p) for p in build(TABLE, 60, 2).paths]
        assert len(depths) == 8 and all(depths.count(d) == 2 for d in (1, 2, 3, 4))


def test_drawn_children_are_refused() -> None:
    with pytest.raises(RecipeError, match="block"):
        Block(selection=Selection.IID)
    policy = Block(selection=Selection.COUPLED)
    assert policy.selections == {Selection.COUPLED} and not policy.reads_tokens and policy.spec() is None
