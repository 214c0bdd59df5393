"""Expected tokens per step under the positional acceptance model, in closed form.

The model: given that a node was accepted, its r-th child (0-based) is accepted with probability `p[r]`; Σ p ≤ 1. A
table `p[depth][rank]` lets the rates depend on the child's depth (entry 0: children of the root). F counts the bonus
token, E(A) = F − 1 does not.

Source: Sequoia (2402.12374) section 3.1; Leviathan et al. (2211.17192) for the chain.
"""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.core.errors import UsageError
from hedgerow.core.shape import TreeShape

Rates = Sequence[float] | Sequence[Sequence[float]]     # p[rank], or p[depth][rank]


def rates(p: Rates, depth: int) -> Sequence[float]:
    """p[rank] of children at `depth` (1 = children of the root); empty beyond a table's last row.

    >>> list(rates([[0.6, 0.2], [0.5]], 2)), list(rates([0.6], 7))
    ([0.5], [0.6])
    """
    if by_depth(p):
        return p[depth - 1] if depth <= len(p) else ()  # type: ignore[return-value]
    return p  # type: ignore[return-value]


def by_depth(p: Rates) -> bool:
    """Whether the rates are a table p[depth][rank]."""
    return len(p) > 0 and not isinstance(p[0], (int, float))


def check_rates(p: Rates) -> None:
    """Raise UsageError unless every row is non-negative and sums to at most 1."""
    for depth in range(1, 1 + (len(p) if by_depth(p) else 1)):
        row = list(rates(p, depth))
        if min(row, default=0.0) < 0.0 or sum(row) > 1.0 + 1e-9:
            raise UsageError(f"acceptance rates are {row}; allowed: 0 or more each, at most 1 in all")


def survivals(shape: TreeShape, p: Rates) -> list[float]:
    """Probability that each node and its ancestors are accepted; a rank beyond the rates has none."""
    out: list[float] = []
    for parent, rank, depth in zip(shape.parent.tolist(), shape.rank.tolist(), shape.depth.tolist(), strict=True):
        row = rates(p, depth)
        out.append((out[parent] if parent >= 0 else 1.0) * (row[rank] if rank < len(row) else 0.0))
    return out


def expected_tokens(shape: TreeShape, p: Rates) -> float:
    """F = 1 + Σ survival over the nodes of a shape.

    >>> from hedgerow.topology.basic import expansion
    >>> round(expected_tokens(expansion([2, 1]), [0.5, 0.25]), 12)
    2.125
    """
    return 1.0 + sum(survivals(shape, p))


def expansion_tokens(counts: Sequence[int], p: Rates) -> float:
    """F of an expansion vector: 1 + Σ_i Π_{j ≤ i} P_{k_j}, with P_k the sum of the first k rates.

    >>> round(expansion_tokens([2, 1], [0.5, 0.25]), 12)
    2.125
    """
    total, reach = 1.0, 1.0
    for depth, k in enumerate(counts, 1):
        reach *= sum(rates(p, depth)[:k])
        total += reach
    return total


def chain_tokens(alpha: float, length: int) -> float:
    """F of a chain: (1 − α^(length + 1)) / (1 − α), and length + 1 at α = 1.

    >>> chain_tokens(0.5, 2)
    1.75
    """
    return length + 1.0 if alpha == 1.0 else (1.0 - alpha ** (length + 1)) / (1.0 - alpha)


def chain_speedup(alpha: float, length: int, cost: float) -> float:
    """F / (length × cost + 1): `cost` is a draft call's time over the target's step time.

    Source: Leviathan et al. (2211.17192) Theorem 3.8.
    """
    return chain_tokens(alpha, length) / (length * cost + 1.0)


def chain_limit(p: Sequence[float]) -> float:
    """F of an endless chain: 1 / (1 − p_1)."""
    return 1.0 / (1.0 - p[0])


def chains_limit(p: Sequence[float], k: int) -> float:
    """F of k endless chains that part at the root: 1 + P_k / (1 − p_1)."""
    return 1.0 + sum(p[:k]) / (1.0 - p[0])


def k_ary_limit(p: Sequence[float], k: int) -> float:
    """F of the endless k-ary tree: 1 / (1 − P_k), infinite where P_k = 1."""
    left = 1.0 - sum(p[:k])
    return 1.0 / left if left > 0.0 else float("inf")
