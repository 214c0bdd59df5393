"""Two sources one after the other, merged hypotheses, adaptive settings, learned gates, marginal rules."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from hedgerow.core.errors import ModelError, RecipeError, UsageError
from hedgerow.core.parts import Plan, Sampling, View
from hedgerow.core.rng import Rng
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import Selection
from hedgerow.policy.adaptive import CHAIN, WIDE, Adaptive, ByEntropy, Regime, Setting, interpolate
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import Bins, Depth
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.learned import Classified, Ffn, bins_json, cart_edges, fit_ffn, read_bins
from hedgerow.policy.merged import Merged
from hedgerow.policy.price import (
    MarginalBeam,
    MarginalDepth,
    MarginalSize,
    Ratios,
    cast_width,
    convex_fit,
    curve,
    discrete_marginal,
)
from hedgerow.policy.stop import Price, Threshold
from hedgerow.policy.union import PruneGraft, Rescored, kept_nodes
from hedgerow.testing.toy import markov, play, positional, random_law
from hedgerow.topology.sparse import graft_tree

SURE, TORN = positional([0.95, 0.03, 0.02]), positional([0.3, 0.25, 0.2, 0.15, 0.1])
WIDE_TORN = positional([0.3, 0.2, 0.1, *[0.05] * 8])
LATER = [0.0] * 11 + [0.3, 0.2, *[0.05] * 10]
SHIFTED = markov(LATER, [LATER] * len(LATER))                 # knows none of the tokens the others know
NOTHING = positional([0.0])


# ------------------------------------------------------------------------------------------------ prune and graft

def test_kept_shares() -> None:
    assert [kept_nodes(f, 60) for f in (0.13, 0.40, 0.67)] == [8, 24, 40]
    assert [60 - kept_nodes(f, 60) for f in (0.13, 0.40, 0.67)] == [52, 36, 20]


def test_a_doubtful_draft_is_pruned_and_refilled() -> None:
    policy = PruneGraft(graft_tree(60))
    tree = play(policy, [WIDE_TORN, SHIFTED], 60).tree
    assert int((tree.source == 0).sum()) == 8 and int((tree.source == 1).sum()) == 52    # first checkpoint: .3 < .35
    later = play(policy, [positional([0.45, 0.2, *[0.05] * 7]), SHIFTED], 60).tree       # .45 passes, .2025 < .25
    assert int((later.source == 0).sum()) == 24 and int((later.source == 1).sum()) == 36
    sure = play(policy, [SURE, SHIFTED], 60)
    assert set(sure.tree.source.tolist()) == {0} and sure.calls == policy.layers
    assert set(tree.selection.tolist()) == {int(Selection.TOP_K), int(Selection.RETRIEVED)}


def test_a_cold_matrix_leaves_the_pruned_draft() -> None:
    tree = play(PruneGraft(graft_tree(60)), [WIDE_TORN, NOTHING], 60).tree
    assert tree.nodes == 8 and set(tree.source.tolist()) == {0}


def test_retrieved_nodes_that_are_there_already_are_built_upon() -> None:
    policy = PruneGraft(graft_tree(80), thresholds={1: 0.35}, shares={1: 0.13})
    played = play(policy, [WIDE_TORN, WIDE_TORN], 60)
    assert len(set(played.paths)) == played.tree.nodes == 60
    assert int((played.tree.source == 0).sum()) == 8
    below = [i for i, p in enumerate(played.tree.parent) if p >= 0]
    assert any(played.tree.source[i] == 1 and played.tree.source[played.tree.parent[i]] == 0 for i in below)


def test_prune_graft_caps_and_checks() -> None:
    policy = PruneGraft(graft_tree(60))
    for nodes, depth, width in ((10, 99, 99), (60, 2, 99), (60, 99, 3), (30, 1, 2)):
        tree = play(policy, [TORN, SHIFTED], nodes, depth, width).tree
        assert 0 < tree.nodes <= nodes and tree.max_depth <= depth and tree.width <= width
    never = PruneGraft(graft_tree(60), thresholds={}, shares={}, layers=4)
    plain = play(Layerwise(10, Beam(10), Depth(4)), TORN, 40)
    assert set(play(never, [TORN, SHIFTED], 40).paths) == set(plain.paths)               # identity setting
    assert play(PruneGraft(graft_tree(9), layers=3), [NOTHING, NOTHING], 9).tree.nodes == 0
    chain = TreeShape.from_paths([(0,), (0, 0), (0, 0, 0)])
    assert play(PruneGraft(chain), [WIDE_TORN, SHIFTED], 60).tree.nodes == 11            # a template may be too small
    wide = TreeShape.from_paths([(0,), (1,), (2,)])
    assert play(PruneGraft(wide), [WIDE_TORN, positional([1.0])], 60).tree.nodes == 8    # its token is there already
    with pytest.raises(UsageError, match="checkpoints"):
        PruneGraft(chain, thresholds={1: 0.3}, shares={2: 0.5})
    with pytest.raises(RecipeError):
        PruneGraft(chain, selection=Selection.IID)
    assert policy.reads_tokens and policy.selections == {Selection.TOP_K, Selection.RETRIEVED} and policy.spec() is None


# ------------------------------------------------------------------------------------------------ rescoring

def test_a_strong_drafter_rescores_and_adds() -> None:
    weak, strong = random_law(1, vocab=5), random_law(2, vocab=5)
    played = play(Rescored(k=5, layers=3, weak_nodes=20), [weak, strong], 20)
    for path, s in zip(played.paths, played.tree.survival, strict=True):
        want = math.prod(float(strong(path[:i])[path[i]]) for i in range(len(path)))
        assert s == pytest.approx(want)                       # k = vocabulary: the strong drafter has a word on all
    assert len(set(played.paths)) == played.tree.nodes and {0, 1} >= set(played.tree.source.tolist())
    assert [f.source for f in played.frontiers] == [0, 0, 0, 1]
    alone = play(BestFirst(5), strong, 20).expected
    assert played.expected <= alone + 1e-12


def test_unlisted_weak_children_keep_at_most_what_is_left() -> None:
    weak, strong = positional([0.6, 0.3, 0.1]), markov([0.0, 0.9, 0.0], [[0.0, 0.9, 0.0]] * 3)
    played = play(Rescored(k=1, layers=1), [weak, strong], 9)
    value = dict(zip(played.paths, played.tree.survival, strict=True))
    assert value[(1,)] == pytest.approx(0.9) and value[(0,)] == pytest.approx(0.1)       # 1 − .9 < .6
    sure = markov([0.0, 1.0, 0.0], [[0.0, 1.0, 0.0]] * 3)
    assert (0,) not in play(Rescored(k=1, layers=1), [weak, sure], 9).paths              # nothing is left for it
    cut = play(Rescored(k=3, layers=2, stop=Threshold(0.2)), [weak, strong], 9).tree
    assert min(cut.survival) >= 0.2


def test_rescored_caps_and_refusals() -> None:
    laws = [random_law(1, vocab=5), random_law(2, vocab=5)]
    for nodes, depth, width in ((6, 99, 99), (30, 2, 99), (30, 99, 2), (30, 1, 1)):
        tree = play(Rescored(), laws, nodes, depth, width).tree
        assert 0 < tree.nodes <= nodes and tree.max_depth <= depth and tree.width <= width
    with pytest.raises(RecipeError):
        Rescored(selection=Selection.IID)
    assert Rescored().spec() is None and Rescored().selections == {Selection.TOP_K} and Rescored().reads_tokens


# ------------------------------------------------------------------------------------------------ merged hypotheses

def test_merging_saves_drafting_and_builds_the_same_tree() -> None:
    law = markov([0.5, 0.3, 0.2], [[0.2, 0.5, 0.3], [0.4, 0.3, 0.3], [0.3, 0.3, 0.4]])   # only the last token matters
    whole = play(Layerwise(3, Beam(99), Depth(4)), law, 60)
    merged = play(Merged(k=99, layers=4, match=0), law, 60)
    assert len(set(merged.paths)) == merged.tree.nodes == 60
    assert [len(f.nodes) for f in merged.frontiers] == [1, 3, 3, 3]
    assert [len(f.nodes) for f in whole.frontiers] == [1, 3, 9, 27]
    assert merged.expected >= whole.expected - 1e-12          # copies may even reach deeper than the layers
    for path, s in zip(merged.paths, merged.tree.survival, strict=True):
        assert s == pytest.approx(math.prod(float(law(path[:i])[path[i]]) for i in range(len(path))))
    small = play(BestFirst(3), law, 20)
    assert play(Merged(k=99, layers=9, match=0), law, 20).expected == pytest.approx(small.expected)   # nothing is lost


def test_no_match_is_layerwise_growth() -> None:
    law = random_law(3, vocab=4)
    plain, merged = play(Layerwise(3, Beam(3), Depth(4)), law, 25), play(Merged(3, 4, match=99), law, 25)
    assert set(plain.paths) == set(merged.paths) and plain.calls == merged.calls
    assert set(merged.tree.selection.tolist()) == {int(Selection.TOP_K)}
    longer = play(Merged(3, 6, match=1), markov([0.5, 0.5], [[0.5, 0.5]] * 2), 40)
    assert int(Selection.RETRIEVED) in longer.tree.selection.tolist()                    # copies are marked


def test_merged_floor_and_caps() -> None:
    law = random_law(3, vocab=4)
    assert play(Merged(floor=0.3), law, 40).calls < play(Merged(), law, 40).calls
    for nodes, depth, width in ((5, 99, 99), (30, 2, 99), (30, 99, 2)):
        tree = play(Merged(match=0), law, nodes, depth, width).tree
        assert 0 < tree.nodes <= nodes and tree.max_depth <= depth and tree.width <= width
    assert play(Merged(), NOTHING, 9).tree.nodes == 0
    assert {f.source for f in play(Merged(), [law, law], 9, source=1).frontiers} == {1}
    with pytest.raises(RecipeError):
        Merged(selection=Selection.IID)
    policy = Merged()
    assert policy.selections == {Selection.TOP_K, Selection.RETRIEVED} and policy.reads_tokens and policy.spec() is None


# ------------------------------------------------------------------------------------------------ settings

def view(entropy: float | None, request: int = 0) -> View:
    return View(request, 0, root=0, position=0, room=99, sampling=Sampling(), rng=Rng(0), entropy=entropy)


def test_entropy_picks_the_policy() -> None:
    deep, middle, wide = (Layerwise(k, Beam(k), Depth(d)) for k, d in ((1, 12), (3, 4), (12, 1)))
    policy = ByEntropy((0.5, 1.5), (deep, middle, wide))
    calls = [play(policy, TORN, 12, view=view(h)).calls for h in (0.1, 0.5, 1.0, 2.0, None)]
    assert calls == [12, 4, 4, 1, 4]
    assert policy.selections == {Selection.TOP_K} and not policy.reads_tokens and policy.spec() is None
    single = play(ByEntropy((), (middle,)), TORN, 12, view=view(9.0))
    assert single.paths == play(middle, TORN, 12).paths       # a single bin is the static setting
    for edges, count in (((0.5,), 1), ((1.0, 0.5), 3)):
        with pytest.raises(UsageError, match="entropy edges"):
            ByEntropy(edges, (middle,) * count)


def test_settings_between_wide_and_chain() -> None:
    assert interpolate(WIDE, CHAIN, 0.0) == WIDE and interpolate(WIDE, CHAIN, 1.0) == CHAIN
    assert interpolate(WIDE, CHAIN, 0.5) == Setting(5, 3, 5)
    assert interpolate(WIDE, CHAIN, -3.0) == WIDE and interpolate(WIDE, CHAIN, 7.0) == CHAIN


def test_regime_is_a_moving_average_with_a_breaker() -> None:
    regime = Regime()
    assert regime.rate(1) == 1.0
    regime.observe(1, 0, 0)
    assert regime.rate(1) == 1.0
    regime.observe(1, 3, 6)
    assert regime.rate(1) == 0.5
    regime.observe(1, 6, 6)
    assert regime.rate(1) == pytest.approx(0.7 * 0.5 + 0.3)
    for _ in range(4):
        regime.observe(1, 0, 6)
    assert regime.rate(1) > 0.0
    regime.observe(1, 0, 6)
    assert regime.rate(1) == 0.0                              # five empty steps
    regime.observe(1, 1, 6)
    assert regime.rate(1) > 0.0 and regime.rate(2) == 1.0
    regime.forget(1)
    regime.forget(7)
    assert regime.rate(1) == 1.0


def test_adaptive_moves_from_wide_to_chain() -> None:
    regime = Regime()
    policy = Adaptive(regime)
    chain = play(policy, SURE, 20, view=view(None, request=1))
    assert chain.tree.form == "chain" and chain.tree.nodes == 7 and chain.calls == 7
    for _ in range(5):
        regime.observe(1, 0, 7)
    wide = play(policy, SURE, 20, view=view(None, request=1))
    assert wide.tree.nodes == 3 and wide.calls == 3
    fixed = Adaptive(low=Setting(4, 3, 9), high=Setting(4, 3, 9))
    assert play(fixed, TORN, 20).paths == play(Layerwise(3, Beam(3), Depth(4)), TORN, 9).paths    # identity setting
    assert play(policy, TORN, 20, width=1).tree.form == "chain"
    assert play(policy, NOTHING, 20).tree.nodes == 0
    assert {f.source for f in play(policy, [TORN, SURE], 20, source=1).frontiers} == {1}
    with pytest.raises(RecipeError):
        Adaptive(selection=Selection.IID)
    assert policy.selections == {Selection.TOP_K} and policy.spec() is None and not policy.reads_tokens


# ------------------------------------------------------------------------------------------------ learned gates

COPY = Ffn(((1.0, 0.0, 0.0),), (0.0,), (100.0,), -10.0)       # σ(100 P − 10): trusts P > 0.1


def test_network_forward_by_hand_and_as_json() -> None:
    net = Ffn(((1.0, -1.0, 0.5), (0.0, 2.0, -1.0)), (0.1, -0.2), (2.0, -3.0), 0.3)
    hidden = [max(0.0, 0.5 - 0.4 + 1.0 + 0.1), max(0.0, 0.8 - 2.0 - 0.2)]
    assert net(0.5, 0.4, 2.0) == pytest.approx(1 / (1 + math.exp(-(2.0 * hidden[0] - 3.0 * hidden[1] + 0.3))))
    assert Ffn.from_json(net.to_json()) == net and '"w1"' in net.to_json()
    assert Ffn(((0.0,) * 3,), (0.0,), (0.0,), -1e4)(0.0, 0.0, 0.0) == 0.0
    for text in ("{", "[]", '{"kind": "bins"}', '{"kind": "ffn", "w1": []}'):
        with pytest.raises(ModelError, match="ffn"):
            Ffn.from_json(text)
    with pytest.raises(ModelError, match="fit together"):
        Ffn.from_json('{"kind": "ffn", "w1": [[1, 2]], "b1": [0], "w2": [1], "b2": 0}')


def test_a_network_that_copies_the_path_probability_is_a_threshold() -> None:
    for seed in range(5):
        law = random_law(seed, vocab=5)
        gated = play(Classified(COPY, layers=5), law, 99)
        wide = play(Layerwise(10, Beam(10), Depth(5)), law, 99)
        assert set(gated.paths) == {p for p, s in zip(wide.paths, wide.tree.survival, strict=True) if s > 0.1}


def test_gate_reads_the_entropy_of_a_nodes_own_row() -> None:
    calm = Ffn(((0.0, 1.0, 0.0),), (0.0,), (-100.0,), 50.0)   # trusts entropy < 0.5
    law = markov([0.5, 0.5], [[0.98, 0.02], [0.5, 0.5]])
    played = play(Classified(calm, k=4, layers=3), law, 99)
    assert set(played.paths) == {(0,), (0, 0), (0, 0, 0), (0, 0, 1)}
    everything = Classified(Ffn(((0.0,) * 3,), (0.0,), (0.0,), 5.0), k=4, layers=2)
    for nodes, depth, width in ((3, 99, 99), (99, 1, 99), (99, 99, 1)):
        tree = play(everything, law, nodes, depth, width).tree
        assert 0 < tree.nodes <= nodes and tree.max_depth <= depth and tree.width <= width
    assert play(everything, NOTHING, 9).tree.nodes == 0
    assert {f.source for f in play(everything, [law, law], 9, source=1).frontiers} == {1}
    with pytest.raises(RecipeError):
        Classified(COPY, selection=Selection.IID)
    assert everything.selections == {Selection.TOP_K} and everything.spec() is None and not everything.reads_tokens


def test_a_fitted_network_learns_to_trust_probable_nodes() -> None:
    rng = np.random.default_rng(1)
    path, entropy, depth = rng.random(1500), rng.random(1500) * 2, rng.integers(1, 6, 1500).astype(float)
    accepted = (rng.random(1500) < path).astype(float)
    net = fit_ffn(np.stack([path, entropy, depth], 1), accepted)
    confidences = [net(p, 1.0, 3.0) for p in np.linspace(0.02, 0.98, 15)]
    assert all(b > a - 0.02 for a, b in pairwise(confidences))
    assert max(abs(c - p) for c, p in zip(confidences, np.linspace(0.02, 0.98, 15), strict=True)) < 0.15


def test_cart_finds_two_regimes() -> None:
    x = np.concatenate([np.linspace(0.0, 1.0, 50), np.linspace(1.5, 3.0, 50)])
    y = np.where(x < 1.2, 6.0, 2.0)
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(100)
    assert cart_edges(x[shuffled], y[shuffled], depth=1) == (1.25,)
    assert cart_edges(x, y, depth=3) == (1.25,)               # no split without gain
    three = np.where(x < 0.5, 8.0, y)
    assert cart_edges(x, three, depth=2) == pytest.approx((0.5, 1.25), abs=0.02)
    assert cart_edges(np.ones(20), rng.random(20)) == () and cart_edges(x[:3], y[:3], min_leaf=0.9) == ()
    few = np.array([0.0, 1.0, 2.0, 3.0])
    assert cart_edges(few, np.array([9.0, 1.0, 1.0, 1.0]), depth=1, min_leaf=0.5) == (1.5,)   # leaves of two at least


def test_bins_as_json() -> None:
    bins = Bins(5, (0.5, 1.0), (3, 1, 0), (20, 40, 60))
    assert read_bins(bins_json(bins)) == bins
    with pytest.raises(ModelError, match="do not fit"):
        read_bins('{"kind": "bins", "after": 5, "edges": [1], "extra": [1], "nodes": [2]}')
    one = play(Layerwise(3, Beam(3), Bins(2, (), (2,), (20,))), TORN, 60)
    assert one.paths == play(Layerwise(3, Beam(3), Depth(4)), TORN, 20).paths             # a single bin is static


# ------------------------------------------------------------------------------------------------ marginal rules

def test_discrete_marginal_looks_past_single_bad_steps() -> None:
    assert discrete_marginal([], [], 1.0) == 0 and discrete_marginal([5.0], [1.0], 99.0) == 1
    assert discrete_marginal([1.0, 1.1, 3.0], [1.0, 2.0, 3.0], 0.5) == 3
    assert discrete_marginal([1.0, 1.1, 1.2], [1.0, 2.0, 3.0], 0.5) == 1
    assert discrete_marginal([1.0, 1.5, 1.6], [3.0, 4.0, 2.0], 0.2) == 3                  # an inversion: 3 is cheapest


def test_marginal_gate_is_the_beam_on_an_affine_cost() -> None:
    law = random_law(8, vocab=6)
    first = sorted(law(()).tolist(), reverse=True)
    gate = MarginalBeam(lambda k: 0.5 + k, plain_s=1.0, threshold=first[2])
    assert len(play(Layerwise(6, gate, Depth(2)), law, 99).frontiers[1].nodes) == 3
    dear, capped = MarginalBeam(lambda k: float(k), 1.0, 99.0), MarginalBeam(lambda k: 1.0, 1.0, 0.0, most=2)
    assert len(play(Layerwise(6, dear, Depth(2)), law, 99).frontiers[1].nodes) == 1
    assert len(play(Layerwise(6, capped, Depth(2)), law, 99).frontiers[1].nodes) == 2
    assert not gate.only and not gate.reads_tokens


def test_marginal_depth_follows_the_mass() -> None:
    def layers(cost: float, law: object = None, ratios: Ratios | None = None, most: int = 9) -> int:
        halt = MarginalDepth(lambda k: cost, 1.0, 3.0, most, ratios or Ratios())
        return play(Layerwise(3, Beam(3), halt), law or TORN, 60, depth=30).calls  # type: ignore[arg-type]

    assert layers(1e-9) == 9 and layers(10.0) == 1 and layers(1e-9, positional([0.9], max_depth=2)) == 3
    assert 1 < layers(0.1) < 9
    ratios = Ratios(size=4)
    for _ in range(4):
        ratios.add(1, 0.25)
    assert ratios.mean(1) == 0.25 and ratios.mean(2) == 1.0
    assert layers(0.1, ratios=ratios) == 1                     # it learned that the second layer brings little


def test_marginal_size_stops_at_a_cliff() -> None:
    stop = MarginalSize(lambda rows: 1.0 if rows <= 4 else 3.0, threshold=0.5)
    assert stop.cut([0.9, 0.5, 0.4, 0.1, 0.1]) == 3 and stop.cut([]) == 0 and stop.admits(0.0, 9, 9.0)
    assert play(BestFirst(4, stop=stop), TORN, 9).tree.nodes == 3


def test_convex_fits() -> None:
    x = [1, 2, 4, 8]
    convex = [10.0, 10.5, 12.0, 20.0]
    assert convex_fit(x, convex) == pytest.approx(convex)      # nothing to repair
    steps = convex_fit([1, 2, 3, 4, 5], [10.0, 10.0, 12.0, 12.0, 14.0])
    slopes = np.diff(steps)
    assert np.all(np.diff(slopes) >= -1e-12) and np.all(slopes >= 0)
    assert np.all(np.diff(convex_fit([1, 2, 3], [5.0, 4.0, 3.0])) == 0.0)                 # never falls
    assert convex_fit([3], [7.0]).tolist() == [7.0]
    for bad in (([], []), ([1, 2], [1.0]), ([2, 1], [1.0, 2.0])):
        with pytest.raises(UsageError, match="cost curve"):
            convex_fit(*bad)
    at = curve([1, 3, 5], [10.0, 12.0, 18.0])
    assert [at(r) for r in (1, 2, 3, 4, 5, 7)] == pytest.approx([10, 11, 12, 15, 18, 24])
    assert curve([4], [3.0])(99) == 3.0


def test_cast_width_buys_while_it_pays() -> None:
    flat = cast_width([0.9, 0.5, 0.1], [16, 32], [10.0, 10.0], sizes=(1, 2, 3))
    assert flat.stop == 3 and flat.nodes == 3 and flat.slope == pytest.approx(0.0, abs=1e-12)
    steep = cast_width([0.9, 0.5, 0.1], [1, 2, 3], [10.0, 14.0, 18.0], sizes=(1, 2))
    assert (steep.stop, steep.nodes) == (1, 1)                # .9 ≥ 1 · 4 / 10, but .5 < 1.9 · 4 / 14
    assert cast_width([0.9] * 40, [1, 2], [10.0, 10.1], sizes=(4, 8)).nodes == 8            # none is large enough


def test_pruned_candidates_are_a_cut_at_a_fixed_price() -> None:
    whole = play(BestFirst(5), TORN, 40).tree.survival.tolist()
    for node_s in (0.0, 0.001, 0.004):
        cut = play(BestFirst(5, stop=Price(saved_s=0.02, node_s=node_s)), TORN, 40).tree
        assert cut.nodes == sum(s * 0.02 >= node_s for s in whole)


def test_the_plan_may_be_given_whole() -> None:
    assert play(BestFirst(), TORN, 0, plan=Plan(nodes=2)).tree.nodes == 2
