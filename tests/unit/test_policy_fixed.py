"""Fixed shapes filled with tokens, under every selection and cap."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.core.parts import Plan
from hedgerow.core.rng import Rng
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import Growth, Selection
from hedgerow.policy.fixed import Fixed, capped, path_survival
from hedgerow.testing.toy import marginals, markov, play, positional, random_law
from hedgerow.topology.basic import chain, expansion
from hedgerow.topology.optimal import positional_tree, sequoia_dp

GEOM = [0.6, 0.24, 0.096, 0.0384]


def test_a_full_drafter_fills_the_shape_in_its_order() -> None:
    shape = positional_tree(GEOM, 15)
    played = play(Fixed(shape), positional(GEOM), 15)
    assert played.paths == list(shape.paths)
    assert np.allclose(played.tree.survival, shape.survival)
    assert played.calls == shape.max_depth                    # one call a level


def test_missing_children_take_their_subtrees_along() -> None:
    law = markov([0.6, 0.4, 0.0], [[0.0, 0.0, 1.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    played = play(Fixed(expansion([3, 2, 1])), law, 99)
    assert set(played.paths) == {(0,), (1,), (0, 2), (1, 0), (1, 1), (1, 0, 2), (1, 1, 0)}
    assert play(Fixed(expansion([2, 2])), markov([0.0], [[0.0]]), 9).tree.nodes == 0


@pytest.mark.parametrize("selection", [s for s in Selection if s is not Selection.HUB])
@pytest.mark.parametrize("order", ["shape", "path"])
def test_every_selection_gives_a_valid_tree(selection: Selection, order: str) -> None:
    policy = Fixed(expansion([2, 2, 1]), selection, order=order)  # type: ignore[arg-type]
    assert policy.selections == {selection} and not policy.reads_tokens
    for seed in range(10):
        tree = play(policy, random_law(seed, vocab=4), 99, rng=Rng(seed)).tree
        assert 3 <= tree.nodes <= 10 and set(tree.selection.tolist()) == {int(selection)}
        assert np.all(np.diff(tree.survival) <= 1e-12)
        for kids in tree.children:
            assert len({int(tree.tokens[c]) for c in kids}) == len(kids)


def test_hub_pairs_and_chains_of_one() -> None:
    tree = play(Fixed(expansion([2, 2]), Selection.HUB), random_law(1, vocab=4), 99, rng=Rng(3)).tree
    assert tree.nodes == 6
    for nodes in range(7):                                    # a cap never tears a pair apart
        cut = play(Fixed(expansion([2, 2]), Selection.HUB), random_law(1, vocab=4), nodes, rng=Rng(3)).tree
        assert cut.nodes == nodes - nodes % 2
    assert play(Fixed(chain(3), Selection.HUB), random_law(1, vocab=4), 3, rng=Rng(3)).tree.nodes == 0
    assert play(Fixed(chain(5), Selection.IID), random_law(1), 99, rng=Rng(3)).tree.form == "chain"


def test_caps_shorten_the_shape_before_anything_is_drafted() -> None:
    shape = sequoia_dp(GEOM, 16)[1]
    for nodes, depth, width in ((5, 99, 99), (15, 2, 99), (15, 99, 1), (9, 3, 2)):
        policy = Fixed(shape, Selection.WITHOUT_REPLACEMENT)
        played = play(policy, random_law(2, vocab=5), nodes, depth, width, rng=Rng(1))
        tree = played.tree
        assert tree.nodes <= nodes and tree.max_depth <= depth and tree.width <= width
        assert len(played.growth) == tree.nodes               # nothing drafted in vain
    assert capped(shape, 99, 99, 99) is shape
    cut = capped(shape, 99, 99, 2)
    assert set(cut.paths) <= set(shape.paths) and max(cut.level_sizes) == 2
    assert TreeShape.from_paths(cut.paths).nodes == cut.nodes  # closed under parents and earlier siblings


def test_a_template_of_the_plan_replaces_the_shape() -> None:
    plan = Plan(nodes=9, template=expansion([3]))
    assert play(Fixed(chain(4)), positional(GEOM), 9, plan=plan).paths == [(0,), (1,), (2,)]
    plan = Plan(nodes=9, source=1)
    assert play(Fixed(chain(2)), [positional(GEOM), positional([0.1, 0.9])], 9, plan=plan).paths == [(1,), (1, 1)]


def test_a_block_drafter_ends_the_shape() -> None:
    played = play(Fixed(chain(5)), marginals([[0.5, 0.5], [0.9, 0.1]]), 9)
    assert played.tree.nodes == 2


def test_survival_of_drawn_nodes_is_known_before_their_draw() -> None:
    growth = Growth()
    growth.add([-1], [2], [3, 5], [np.log(0.5), np.log(0.3)], selection=Selection.WITHOUT_REPLACEMENT)
    growth.add([0], [2], [1, 2], [np.log(0.25), np.log(0.25)], selection=Selection.WITHOUT_REPLACEMENT)
    growth.add([1], [1], [1], [np.log(0.2)])
    assert path_survival(growth, [0, 1, 2, 3, 4]) == pytest.approx([1.0, 0.5, 0.5, 0.375, 0.06])
    assert path_survival(growth, [1, 4, 0]) == pytest.approx([0.5, 0.06, 1.0])
    before = path_survival(growth, [0, 1, 2])
    growth.log_q[2] = np.log(0.01)                            # another token under the same slot
    assert path_survival(growth, [0, 1, 2]) == before


def test_spec_says_how_big() -> None:
    spec = Fixed(expansion([2, 1])).spec()
    assert spec is not None and spec.values == {"nodes": 4, "depth": 2}
