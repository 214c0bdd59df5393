"""core.shape: topologies as rank paths."""

from __future__ import annotations

import pytest

from hedgerow.core.errors import UsageError
from hedgerow.core.shape import TreeShape


def test_paths_in_any_order() -> None:
    shape = TreeShape.from_paths([(1, 0), (0,), (1,), (0, 0), (0, 1)], [0.2, 0.9, 0.4, 0.8, 0.3])
    assert shape.paths == ((0,), (1,), (1, 0), (0, 0), (0, 1)), "a parent and earlier siblings are placed first"
    assert shape.survival.tolist() == [0.9, 0.4, 0.2, 0.8, 0.3]
    assert shape.parent.tolist() == [-1, -1, 1, 0, 0] and shape.rank.tolist() == [0, 1, 0, 0, 1]
    assert shape.depth.tolist() == [1, 1, 2, 2, 2] and shape.level_sizes == (2, 3) and shape.max_depth == 2
    assert shape.child_counts == (2, 2, 1, 0, 0, 0) and shape.nodes == 5


def test_prefix() -> None:
    shape = TreeShape.from_paths([(0,), (0, 0), (1,)])
    assert shape.prefix(2).paths == ((0,), (0, 0)) and shape.prefix(3) is shape


def test_nothing() -> None:
    shape = TreeShape.from_paths([])
    assert (shape.nodes, shape.level_sizes, shape.max_depth, shape.child_counts) == (0, (), 0, (0,))


@pytest.mark.parametrize("paths, words", [
    ([(0,), (0,)], "twice"), ([()], "lists the root"), ([(0, 0)], "not its parent"),
    ([(1,)], "not its earlier sibling"), ([(0,), (0, 1)], "not its earlier sibling"),
])
def test_what_is_no_shape(paths: list[tuple[int, ...]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        TreeShape.from_paths(paths)
