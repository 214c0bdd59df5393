"""Delayed branching: one path first, several from its end."""

from __future__ import annotations

from hedgerow.core.errors import UsageError
from hedgerow.core.shape import TreeShape
from hedgerow.topology.basic import expansion
from hedgerow.topology.expected import Rates, expansion_tokens


def delayed(trunk: int, branches: int, length: int) -> TreeShape:
    """A trunk of `trunk` nodes, then `branches` paths of `length` nodes each.

    Raises: UsageError for a negative number, or branches without a length.

    Source: Dynamic Delayed Tree Expansion (2602.16994): (L1, K, L2).

    >>> delayed(1, 2, 2).paths
    ((0,), (0, 0), (0, 1), (0, 0, 0), (0, 1, 0))
    """
    return expansion(vector(trunk, branches, length))


def delayed_tokens(trunk: int, branches: int, length: int, p: Rates) -> float:
    """Expected tokens F of the shape under the positional model.

    >>> round(delayed_tokens(1, 2, 1, [0.5, 0.25]), 12)
    1.875
    """
    return expansion_tokens(vector(trunk, branches, length), p)


def vector(trunk: int, branches: int, length: int) -> list[int]:
    """The expansion vector of (L1, K, L2)."""
    if trunk < 0 or length < 0 or branches < 1:
        raise UsageError(f"(L1, K, L2) is ({trunk}, {branches}, {length}); allowed: L1, L2 from 0, K from 1")
    return [1] * trunk + ([branches] + [1] * (length - 1) if length else [])
