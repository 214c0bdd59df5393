"""core.tree: the tree, what is derived from it, how it shrinks, and the growth it comes from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core.errors import InvariantError
from hedgerow.core.tree import ROOT, Growth, Selection, TokenTree

IID, WITHOUT, GREEDY, TOP_K = (
    Selection.IID, Selection.WITHOUT_REPLACEMENT, Selection.GREEDY_PLUS_ONE, Selection.TOP_K,
)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Any valid tree of up to twelve nodes."""
    n = draw(st.integers(0, 12))
    parent = [draw(st.integers(-1, i - 1)) for i in range(n)]
    return TokenTree.of(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)), parent)


def test_selections() -> None:
    drawn = {Selection.IID, Selection.WITHOUT_REPLACEMENT, Selection.HUB, Selection.GREEDY_PLUS_ONE}
    assert {s for s in Selection if s.drawn} == drawn
    assert [s.label for s in Selection][:3] == ["top_k", "retrieved", "coupled"]


def test_neutral_values_and_given_ones() -> None:
    tree = TokenTree.of([5, 6], [-1, 0])
    assert tree.survival.tolist() == [1.0, 1.0] and tree.selection.tolist() == [0, 0]
    assert tree.origin.tolist() == [-1, -1] and tree.mult.tolist() == [1, 1] and not tree.keep.any()
    tree = TokenTree.of([5, 6], [-1, 0], [0.9, 0.5], [IID, TOP_K], 3, [7, 8], [2, 1], [True, False])
    assert tree.selection.tolist() == [IID, TOP_K] and tree.source.tolist() == [3, 3]
    assert tree.origin.tolist() == [7, 8] and tree.mult.tolist() == [2, 1] and tree.keep.tolist() == [True, False]


@pytest.mark.parametrize("parent", [[0], [-1, 1], [-1, 2, 0], [-2]])
def test_a_parent_comes_before(parent: list[int]) -> None:
    with pytest.raises(InvariantError, match="has parent"):
        TokenTree.of([0] * len(parent), parent)


def test_arrays_of_one_length() -> None:
    with pytest.raises(InvariantError, match="differ in length"):
        TokenTree.of([1, 2], [-1])


def test_the_empty_tree() -> None:
    tree = TokenTree.empty()
    assert (tree.nodes, tree.rows, tree.max_depth, tree.width, tree.form) == (0, 1, 0, 0, "plain")
    assert tree.mask.tolist() == [[True]] and tree.positions(4).tolist() == [4]
    assert tree.children == ((),) and tree.leaves.tolist() == [] and tree.prefix(3) is tree
    assert tree.descend(ROOT)[0].nodes == 0


@pytest.mark.parametrize("parent, form", [
    ([-1], "chain"), ([-1, 0, 1], "chain"), ([-1, -1], "tree"), ([-1, 0, 0], "tree"),
])
def test_form(parent: list[int], form: str) -> None:
    assert TokenTree.of([0] * len(parent), parent).form == form


def test_a_bent_tree() -> None:
    tree = TokenTree.of([1, 2, 3, 4, 2], [-1, 0, -1, 1, 0])
    assert tree.depth.tolist() == [1, 2, 1, 3, 2] and tree.max_depth == 3 and tree.width == 2
    assert tree.children == ((0, 2), (1, 4), (3,), (), (), ())
    assert tree.leaves.tolist() == [2, 3, 4]
    assert tree.positions(10).tolist() == [10, 11, 12, 11, 13, 12]
    assert tree.path(3) == (0, 1, 3) and tree.path(ROOT) == ()
    assert tree.child(ROOT, 3) == 2 and tree.child(0, 2) == 1, "the first child that carries the token"
    assert tree.child(0, 9) is None and tree.child(3, 1) is None
    assert tree.mask.astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0], [1, 1, 1, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]


@given(trees())
@settings(max_examples=150, deadline=None)
def test_what_is_derived_agrees(tree: TokenTree) -> None:
    for v in range(tree.nodes):
        path = tree.path(v)
        assert len(path) == tree.depth[v] and path[-1] == v
        assert set(np.flatnonzero(tree.mask[v + 1])) == {0, *(u + 1 for u in path)}
        assert v in tree.children[int(tree.parent[v]) + 1]
    assert set(tree.leaves.tolist()) == {v for v in range(tree.nodes) if not tree.children[v + 1]}
    assert tree.nodes == sum(len(c) for c in tree.children)


@given(trees(), st.integers(-2, 14))
@settings(max_examples=150, deadline=None)
def test_every_prefix_is_a_tree(tree: TokenTree, n: int) -> None:
    cut = tree.prefix(n)
    assert cut.nodes == min(max(n, 0), tree.nodes)
    assert cut.tokens.tolist() == tree.tokens[: cut.nodes].tolist()
    assert cut.prefix(tree.nodes + 1) is cut


@given(trees())
@settings(max_examples=150, deadline=None)
def test_descending_keeps_the_subtree(tree: TokenTree) -> None:
    for node in range(-1, tree.nodes):
        below, remap = tree.descend(node)
        inside = [v for v in range(tree.nodes) if v != node and (node == ROOT or node in tree.path(v))]
        assert [v for v in range(tree.nodes) if remap[v] >= 0] == inside
        for v in inside:
            tail = tree.path(v)[len(tree.path(node)):]
            assert below.path(int(remap[v])) == tuple(int(remap[u]) for u in tail)
            assert below.tokens[remap[v]] == tree.tokens[v]


def test_sameness() -> None:
    tree = TokenTree.of([1, 2], [-1, 0])
    assert tree.same(TokenTree.of([1, 2], [-1, 0])) and not tree.same(TokenTree.of([1, 3], [-1, 0]))
    assert not tree.same(TokenTree.of([1], [-1]))


def test_a_cut_greedy_plus_one_group_becomes_top_k() -> None:
    """Its drawn child is the last; siblings of another source or parent are untouched."""
    tree = TokenTree.of([1, 2, 3, 4, 5, 6], [-1, -1, 0, 0, -1, 0], selection=GREEDY, source=[0, 0, 0, 0, 1, 0])
    assert tree.prefix(6).selection.tolist() == [GREEDY] * 6
    assert tree.prefix(5).selection.tolist() == [GREEDY, GREEDY, TOP_K, TOP_K, GREEDY]
    assert tree.prefix(1).selection.tolist() == [TOP_K]
    more = TokenTree.of([0, 1, 2], [-1, -1, 0], selection=[GREEDY, GREEDY, IID])
    assert more.prefix(2).selection.tolist() == [GREEDY, GREEDY], "a group that lost nothing keeps its law"
    assert tree.selection.tolist() == [GREEDY] * 6, "the tree itself is not changed"


# ------------------------------------------------------------------------------------------------ growth

def grown(selection: Selection = TOP_K) -> Growth:
    """Two children of the root, two below the first, one below the second."""
    growth = Growth()
    growth.add([ROOT], [2], [5, 6], [-0.1, -2.0], selection=selection)
    growth.add([0, 1], [2, 1], [7, 8, 9], [-0.5, -1.0, -0.2], origin=[1, 1, 2], mult=[2, 1, 1], selection=selection)
    return growth


def test_growth_remembers_arrivals() -> None:
    growth = grown()
    assert len(growth) == 5 and growth.parent == [-1, -1, 0, 0, 1] and growth.depth == [1, 1, 2, 2, 2]
    assert np.allclose(growth.score, [-0.1, -2.0, -0.6, -1.1, -2.2])
    assert growth.origin == [-1, -1, 1, 1, 2] and growth.mult == [1, 1, 2, 1, 1]
    assert growth.tokens_to(3) == (5, 8) and growth.tokens_to(ROOT) == ()
    assert growth.add([4], [0], [], []) == range(5, 5)


def test_order_of_survival() -> None:
    tree = grown().tree(range(5), [0.9, 0.1, 0.6, 0.1, 0.3])
    assert tree.tokens.tolist() == [5, 7, 6, 8, 9], "ties to the shallower, then the earlier; a child below its parent"
    assert tree.survival.tolist() == [0.9, 0.6, 0.1, 0.1, 0.1]
    assert tree.parent.tolist() == [-1, 0, -1, 0, 2] and tree.mult.tolist() == [1, 2, 1, 1, 1]


def test_drawn_siblings_keep_their_order() -> None:
    tree = grown(WITHOUT).tree(range(5), [0.2, 0.9, 0.1, 0.2, 0.9])
    assert tree.tokens.tolist() == [5, 6, 9, 7, 8]
    assert tree.survival.tolist() == [0.2, 0.2, 0.2, 0.1, 0.1]
    free = grown(TOP_K).tree(range(5), [0.2, 0.9, 0.1, 0.2, 0.9])
    assert free.tokens.tolist() == [6, 9, 5, 8, 7]


@pytest.mark.parametrize("nodes", [[1], [0, 1, 3], [0, 1, 3, 4]])
def test_a_drawn_sibling_is_not_dropped(nodes: list[int]) -> None:
    with pytest.raises(InvariantError, match="may only lose their last"):
        grown(IID).tree(nodes, [0.5] * len(nodes))
    assert grown(TOP_K).tree(nodes, [0.5] * len(nodes)).nodes == len(nodes)


def test_the_last_drawn_siblings_may_go() -> None:
    tree = grown(GREEDY).tree([0, 1, 2, 4], [0.5] * 4)
    assert dict(zip(tree.tokens.tolist(), tree.selection.tolist(), strict=True)) == {
        5: GREEDY, 6: GREEDY, 7: TOP_K, 9: GREEDY,
    }
    assert set(grown(WITHOUT).tree([0, 2], [0.5] * 2).selection.tolist()) == {WITHOUT}


def test_only_drawn_siblings_are_bound_to_their_order() -> None:
    """A drawn and a deterministic source below one node: the latter's children come and go as they like."""
    growth = Growth()
    growth.add([ROOT], [2], [5, 6], [-0.1, -2.0], source=0, selection=TOP_K)
    growth.add([ROOT], [2], [7, 8], [-0.5, -1.0], source=1, selection=WITHOUT)
    tree = growth.tree([1, 2, 3], [0.3, 0.1, 0.9])
    assert tree.tokens.tolist() == [6, 7, 8] and tree.survival.tolist() == [0.3, 0.1, 0.1]


def test_a_parent_is_chosen_too() -> None:
    with pytest.raises(InvariantError, match="without its parent 1"):
        grown().tree([0, 4], [0.5, 0.5])


def test_kept_nodes_come_first_with_their_ancestors() -> None:
    tree = grown().tree(range(5), [0.9, 0.1, 0.6, 0.5, 0.05], keep=[4, 1])
    assert tree.tokens.tolist() == [6, 9, 5, 7, 8]
    assert tree.keep.tolist() == [True, True, False, False, False]
