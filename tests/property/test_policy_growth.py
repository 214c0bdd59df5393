"""Properties of every policy, whatever the drafter: valid trees within their caps; identities between policies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.control.allocate import batch_prefix_allocation
from hedgerow.core.parts import Children, Frontier, Plan, Policy, Received, Sampling, View
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.policy.adaptive import Adaptive, ByEntropy, Setting
from hedgerow.policy.bestfirst import BestFirst, EqualGrowth
from hedgerow.policy.block import Block, Constant, Families
from hedgerow.policy.fixed import Fixed
from hedgerow.policy.gate import Beam, Lanes, RelativeGate
from hedgerow.policy.graft import Graft, noisy_or
from hedgerow.policy.halt import BeamMass, Bins, BreakEven, Depth, Gain
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.learned import Classified, Ffn
from hedgerow.policy.merged import Merged
from hedgerow.policy.price import MarginalBeam, MarginalDepth, MarginalSize, Ratios
from hedgerow.policy.sampled import Rollouts, StochasticBeam
from hedgerow.policy.score import ByRank, Calibrated, Decayed
from hedgerow.policy.slots import LargestLeft, Slots
from hedgerow.policy.stop import Price, Threshold, Throughput, best_size
from hedgerow.policy.union import PruneGraft, Rescored
from hedgerow.testing.toy import Law, children_of, play, random_law
from hedgerow.topology.basic import expansion
from hedgerow.topology.sparse import graft_tree, medusa_accuracy, medusa_tree, recycling_tree

TRUST = Ffn(((1.0, 0.0, 0.0),), (0.0,), (40.0,), -2.0)

POLICIES: dict[str, Callable[[], Policy]] = {
    "medusa": lambda: Fixed(medusa_tree(medusa_accuracy())),
    "recycling": lambda: Fixed(recycling_tree(), Selection.RETRIEVED),
    "specinfer": lambda: Fixed(expansion([1, 1, 3, 1, 1]), Selection.IID),
    "rsd-c": lambda: Fixed(expansion([3, 2, 1]), Selection.WITHOUT_REPLACEMENT, order="path"),
    "eagle2": lambda: Layerwise(3, Beam(3), Depth(4)),
    "opt-tree": lambda: Layerwise(8, Beam(8), Gain(0.05)),
    "break-even": lambda: Layerwise(8, Beam(8), BreakEven(0.05, lambda rows: 1.0)),
    "ddd": lambda: Layerwise(3, Beam(3), BeamMass(-1.0, (2, 4), 6)),
    "talon": lambda: Layerwise(3, RelativeGate(0.1), Depth(9)),
    "heterospec": lambda: Layerwise(3, Beam(3), Bins(2, (0.5, 1.0), (3, 1, 0), (6, 9, 12))),
    "dartree": lambda: Layerwise(4, Lanes(4), Depth(4)),
    "cast-hong": lambda: Layerwise(
        3, MarginalBeam(lambda k: 0.1 * k, 1.0, 1.0), MarginalDepth(lambda k: 0.05 * k, 1.0, 3.0, 6, Ratios()),
        MarginalSize(lambda rows: 1.0 + 0.05 * rows, 1.0),
    ),
    "best-first": BestFirst,
    "specexec": lambda: BestFirst(3, 4, score=Decayed(0.95), rounds=5),
    "treespark": lambda: BestFirst(3, score=Calibrated(), stop=Threshold(0.05, 64)),
    "equal-growth": lambda: EqualGrowth(3, 4),
    "ddtree": Block,
    "caddtree": lambda: Block(stop=Throughput(lambda rows: 1.0 + 0.04 * rows, greedy=True)),
    "jetspec": lambda: Block(build=Families(Constant(2))),
    "graft": lambda: Graft((0, 1), combine=noisy_or),
    "prune-graft": lambda: PruneGraft(graft_tree(20)),
    "treegraft": lambda: Rescored(3, 3, 10),
    "gsd": lambda: Merged(3, 5, match=0),
    "c2t": lambda: Classified(TRUST, k=4, layers=4),
    "sage": lambda: ByEntropy((0.5,), (Layerwise(1, Beam(1), Depth(6)), Layerwise(4, Beam(4), Depth(2)))),
    "adaptive": Adaptive,
    "coupled": lambda: BestFirst(3, score=ByRank((0.7, 0.1, 0.05)), selection=Selection.COUPLED),
    "dyspec": Slots,
    "treespark-drawn": lambda: Slots(value=LargestLeft(), score=Calibrated(), stop=Threshold(0.05, 64)),
    "delayed": lambda: Rollouts(2, 3, 2),
    "rsd-s": lambda: StochasticBeam(3, 4),
}

seeds = st.integers(0, 10_000)


def law_of(seed: int) -> Law:
    return random_law(seed, vocab=2 + seed % 3, max_depth=1 + seed % 5, concentration=(0.2, 0.7, 3.0)[seed % 3])


def paths_below(law: Law, depth: int) -> dict[tuple[int, ...], float]:
    """Every prefix of positive probability and its product of q."""
    out: dict[tuple[int, ...], float] = {}
    layer = {(): 1.0}
    for _ in range(depth):
        layer = {(*p, t): s * float(q) for p, s in layer.items() for t, q in enumerate(law(p)) if q > 0}
        out.update(layer)
    return out


@pytest.mark.parametrize("name", POLICIES)
@given(seed=seeds, nodes=st.integers(1, 30), depth=st.integers(1, 6), width=st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_every_policy_returns_a_valid_tree_within_its_caps(
    name: str, seed: int, nodes: int, depth: int, width: int
) -> None:
    policy = POLICIES[name]()
    played = play(policy, [law_of(seed), law_of(seed + 1)], nodes, depth, width, rng=Rng(seed))
    tree = played.tree
    assert tree.nodes <= nodes and tree.max_depth <= depth and tree.width <= width
    assert len(set(played.paths)) == tree.nodes                                # no duplicate children
    assert np.all(np.diff(tree.survival) <= 1e-12) and np.all((tree.survival >= 0) & (tree.survival <= 1 + 1e-12))
    assert {Selection(s) for s in tree.selection} <= policy.selections
    assert {f.selection for f in played.frontiers} <= policy.selections
    asked = [(f.source, v) for f in played.frontiers for v in f.nodes]
    assert len(asked) == len(set(asked))                                       # no node is asked for twice
    for n in range(tree.nodes + 1):
        assert np.all(tree.prefix(n).parent < np.arange(n))                    # every prefix is a tree
    drawn = any(s.drawn for s in policy.selections)
    if not drawn and name not in ("graft", "prune-graft", "treegraft", "coupled", "gsd"):
        again = play(POLICIES[name](), [law_of(seed), law_of(seed + 1)], nodes, depth, width, rng=Rng(seed + 7))
        assert again.tree.same(tree)                                           # deterministic: no randomness was used


@given(seeds, st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_best_first_is_brute_force(seed: int, nodes: int) -> None:
    law = random_law(seed, vocab=2, max_depth=3)
    every = paths_below(law, 3)
    best = max(
        sum(every[p] for p in chosen)
        for chosen in itertools.combinations(every, min(nodes, len(every)))
        if all(len(p) == 1 or p[:-1] in chosen for p in chosen)
    )
    for policy in (BestFirst(2, 1), BestFirst(2, 5), Layerwise(nodes, Beam(nodes), Gain(-math.inf))):
        assert play(policy, law, nodes).expected == pytest.approx(best, abs=1e-12)


@given(seeds, st.integers(1, 25))
@settings(max_examples=40, deadline=None)
def test_heap_sort_and_layers_agree(seed: int, nodes: int) -> None:
    law = law_of(seed)
    every = sorted(paths_below(law, 1 + seed % 5).values(), reverse=True)[:nodes]
    for policy in (
        BestFirst(5, 1), BestFirst(5, 7), Layerwise(nodes, Beam(nodes), Depth(9)), Layerwise(5, Lanes(5**5), Depth(9)),
        Graft((0,), 5), Merged(5**5, 9, match=99), Slots(5, selection=Selection.TOP_K, value=Best()),
    ):
        assert np.allclose(play(policy, law, nodes).tree.survival, every, atol=1e-12), policy


class Best:
    """The slot value that makes slots plain best-first: q of the next token, for a deterministic selection."""

    def value(self, drawn: list[float], row: dict) -> float:
        return math.exp(row["top"][len(drawn)]) if len(drawn) < len(row["top"]) else 0.0


@given(seeds, st.integers(2, 25))
@settings(max_examples=40, deadline=None)
def test_expected_accepted_rises_bends_down_and_nests(seed: int, nodes: int) -> None:
    law = law_of(seed)
    sizes = [play(BestFirst(5), law, n) for n in range(1, nodes + 1)]
    gains = np.diff([0.0, *(p.expected for p in sizes)])
    assert np.all(gains >= -1e-12) and np.all(np.diff(gains) <= 1e-12)
    for small, large in itertools.pairwise(sizes):
        assert set(small.paths) <= set(large.paths)
        assert small.tree.same(large.tree.prefix(small.tree.nodes)) or set(small.paths) == set(
            large.paths[: small.tree.nodes]
        )


@given(seeds, st.floats(0.02, 0.9))
@settings(max_examples=40, deadline=None)
def test_a_threshold_is_a_cut_of_the_ordered_list(seed: int, theta: float) -> None:
    law = random_law(seed, vocab=3, max_depth=4)
    want = {path for path, s in paths_below(law, 4).items() if s >= theta}
    for batch in (1, 6):
        assert set(play(BestFirst(3, batch, stop=Threshold(theta)), law, 200).paths) == want
    assert set(play(Layerwise(3, Beam(81), Depth(4), stop=Threshold(theta)), law, 200).paths) == want


@given(seeds, st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_identity_settings(seed: int, nodes: int) -> None:
    """A method with its idea switched off is the method it came from, node for node."""
    law = law_of(seed)
    eagle2 = play(Layerwise(3, Beam(3), Depth(4)), law, nodes)
    wide = play(Layerwise(nodes, Beam(nodes), Depth(5)), law, nodes)
    best = play(BestFirst(4), law, nodes)
    same = [
        (eagle2, Layerwise(3, Beam(3), BeamMass(-math.inf, (1, 2, 3), 4))),                   # DDD
        (eagle2, Layerwise(3, Beam(3), Bins(3, (), (1,), (nodes,)))),                         # HeteroSpec, one bin
        (eagle2, Layerwise(3, MarginalBeam(lambda k: 1.0, 1.0, 0.0, most=3), Depth(4))),      # CAST, free drafting
        (eagle2, Layerwise(3, Beam(3), Depth(4), stop=Throughput(lambda rows: 1.0))),         # a free target
        (eagle2, Layerwise(3, Beam(3), Depth(4), stop=Price(1.0, 0.0))),                      # PCT, price 0
        (eagle2, Layerwise(3, Beam(3), Depth(4), score=Calibrated(1.0, 0.0))),
        (eagle2, PruneGraft(graft_tree(9), 3, 4, {1: 0.0}, {1: 0.1})),                        # Graft, never in doubt
        (eagle2, Merged(3, 4, match=99)),                                                     # GSD, no match
        (eagle2, Adaptive(low=Setting(4, 3, nodes), high=Setting(4, 3, nodes))),              # AdaptiveSpec
        (eagle2, ByEntropy((), (Layerwise(3, Beam(3), Depth(4)),))),                          # SAGE, one bin
        (wide, Layerwise(nodes, Beam(nodes), Gain(-math.inf))),                               # OPT-Tree, δ = −∞
        (wide, Layerwise(nodes, Beam(nodes), BreakEven(0.0, lambda rows: 1.0))),
        (best, BestFirst(4, 1, score=Decayed(1.0))),                                          # SpecExec, decay 1
        (best, BestFirst(4, stop=Threshold(0.0))),                                            # TreeSpark, θ = 0
        (best, BestFirst(4, stop=Price(1.0, 0.0))),
    ]
    for base, policy in same:
        other = play(policy, [law, law_of(seed + 1)], nodes)
        assert other.paths == base.paths, policy
        assert np.allclose(other.tree.survival, base.tree.survival, atol=1e-12)


def test_talon_between_full_breadth_and_a_chain() -> None:
    for seed in range(10):
        law = random_law(seed, vocab=3, max_depth=4)
        broad = play(Layerwise(3, RelativeGate(0.0), Depth(3)), law, 99).tree
        assert [int((broad.depth == d).sum()) for d in (1, 2, 3)] == [3, 9, 27]
        thin = play(Layerwise(3, RelativeGate(1.0), Depth(4)), law, 99).tree
        assert [int((thin.depth == d).sum()) for d in (1, 2, 3, 4)] == [3, 1, 1, 1]


# ------------------------------------------------------------------------------------------------ drawn children

def replay(policy: Policy, law: Law, nodes: int, seed: int, swap: Callable[[int], bool]) -> tuple[TokenTree, list[int]]:
    """Play with draws at positions `swap` names (arrival index) replaced by another token and probability."""
    view = View(0, 0, root=0, position=0, room=99, sampling=Sampling(), rng=Rng(seed))
    growing = policy.grow(view, Plan(nodes))
    frontier: Frontier = next(growing)
    while True:
        answer = children_of(law, frontier, view)
        first = len(view.growth)
        token, log_q = list(answer.token), list(answer.log_q)
        for i in range(len(token)):
            if swap(first + i):
                token[i], log_q[i] = 1000 + i, -0.01 - 3.0 * ((first + i) % 2)
        answer = Children(answer.count, token, log_q, answer.origin, answer.mult, answer.aux)
        ids = view.growth.add(
            frontier.nodes, answer.count, token, log_q, answer.origin, answer.mult, selection=frontier.selection
        )
        try:
            frontier = growing.send(Received(answer, ids))
        except StopIteration as end:
            tree: TokenTree = end.value
            where = {(view.growth.tokens_to(v)): v for v in range(len(view.growth))}
            return tree, [where[tuple(int(tree.tokens[i]) for i in tree.path(v))] for v in range(tree.nodes)]


@pytest.mark.parametrize("name", ["dyspec", "treespark-drawn", "rsd-s", "rsd-c"])
@given(seed=seeds, nodes=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_no_policy_peeks_under_a_slot(name: str, seed: int, nodes: int) -> None:
    """Covered draws may be anything: the admitted slots and their survivals stay; so may the last one's own token."""
    policy = POLICIES[name]()
    law = random_law(seed, vocab=4, max_depth=4, concentration=1.0)
    tree, admitted = replay(policy, law, nodes, seed, lambda v: False)
    again, same = replay(policy, law, nodes, seed, lambda v: v not in admitted)
    assert same == admitted and np.array_equal(again.survival, tree.survival)
    if not admitted or name == "rsd-s":                         # a beam admits in order of arrival, which a tree's
        return                                                  # order of survival does not tell; see tests/law
    last = admitted[-1]                                         # nothing was admitted after its token was seen
    changed, order = replay(policy, law, nodes, seed, lambda v: v not in admitted or v == last)
    assert sorted(order) == sorted(admitted)
    assert np.allclose(np.sort(changed.survival), np.sort(tree.survival))


# ------------------------------------------------------------------------------------------------ sizes

survival_lists = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30).map(lambda xs: sorted(xs, reverse=True))


row_steps = st.lists(st.floats(0.0, 1.0), min_size=31, max_size=31)


@given(survival_lists, st.floats(0.1, 5.0), row_steps, st.floats(0.0, 2.0))
@settings(max_examples=100, deadline=None)
def test_the_marginal_rule_is_the_throughput_rule(
    survival: list[float], base: float, steps: list[float], draft: float
) -> None:
    """θ(n + 1) ≥ θ(n) iff the node's survival is at least θ(n) × what its row costs, on any cost curve."""
    cost = base + np.concatenate([[0.0], np.cumsum(steps)])
    for n in range(len(survival)):
        theta = (1 + sum(survival[:n])) / (draft + cost[n])
        after = (1 + sum(survival[: n + 1])) / (draft + cost[n + 1])
        gain = survival[n] - theta * (cost[n + 1] - cost[n])
        if abs(gain) > 1e-9:
            assert (after >= theta) == (gain >= 0)


@given(survival_lists, st.floats(0.1, 5.0), row_steps)
@settings(max_examples=60, deadline=None)
def test_throughput_has_one_peak_on_a_convex_cost(survival: list[float], base: float, steps: list[float]) -> None:
    cost = base + np.concatenate([[0.0], np.cumsum(sorted(steps))])
    theta = (1 + np.concatenate([[0.0], np.cumsum(survival)])) / cost[: len(survival) + 1]
    peak = int(np.argmax(theta))
    assert np.all(np.diff(theta[: peak + 1]) >= -1e-12) and np.all(np.diff(theta[peak:]) <= 1e-12)
    greedy = Throughput(lambda rows: float(cost[rows - 1]), greedy=True).cut(survival)
    assert theta[greedy] == pytest.approx(best_size(survival, lambda rows: float(cost[rows - 1]))[1], rel=1e-9)


@given(
    st.lists(st.lists(st.floats(0.01, 1.0), min_size=0, max_size=3).map(lambda xs: sorted(xs, reverse=True)),
             min_size=3, max_size=3),
    st.lists(st.floats(0.5, 3.0), min_size=13, max_size=13), st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_allocation_is_brute_force_on_any_cost(
    survival: list[list[float]], cost: list[float], weights: list[float]
) -> None:
    def throughput(lengths: tuple[int, ...]) -> float:
        gained = sum(w * (1 + sum(s[:n])) for w, s, n in zip(weights, survival, lengths, strict=True))
        return gained / (0.1 + cost[3 + sum(lengths)])

    got = batch_prefix_allocation(survival, lambda rows: cost[rows], 0.1, weights=weights)
    best = max(throughput(n) for n in itertools.product(*(range(len(s) + 1) for s in survival)))
    assert got.throughput == pytest.approx(best, rel=1e-12)
    assert throughput(got.lengths) == pytest.approx(best, rel=1e-12) and sum(got.lengths) == got.nodes
