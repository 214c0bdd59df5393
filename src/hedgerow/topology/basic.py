"""Shapes that need no statistics: chain, k chains, k-ary trees, expansion vectors."""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.core.errors import UsageError
from hedgerow.core.shape import TreeShape


def chain(length: int) -> TreeShape:
    """One path of `length` nodes.

    >>> chain(3).level_sizes
    (1, 1, 1)
    """
    return TreeShape.from_paths([(0,) * d for d in range(1, length + 1)])


def chains(k: int, length: int) -> TreeShape:
    """`k` paths that part at the root, `length` nodes each; breadth first.

    >>> chains(2, 3).level_sizes
    (2, 2, 2)
    """
    return expansion([k] + [1] * (length - 1)) if length > 0 else expansion([])


def k_ary(k: int, depth: int) -> TreeShape:
    """Every node above `depth` has `k` children.

    >>> k_ary(2, 3).nodes
    14
    """
    return expansion([k] * depth)


def expansion(counts: Sequence[int]) -> TreeShape:
    """Every node at depth i − 1 has `counts[i]` children, breadth first.

    Raises: UsageError for a count below 1.

    Source: SpecInfer (2305.09781) section 5.2, expansion configuration.

    >>> expansion([1, 2]).paths
    ((0,), (0, 0), (0, 1))
    """
    if any(c < 1 for c in counts):
        raise UsageError(f"expansion vector is {list(counts)}; allowed: whole numbers of 1 or more")
    paths: list[tuple[int, ...]] = []
    layer: list[tuple[int, ...]] = [()]
    for c in counts:
        layer = [(*p, r) for p in layer for r in range(c)]
        paths += layer
    return TreeShape.from_paths(paths)
