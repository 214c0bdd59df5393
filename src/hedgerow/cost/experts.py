"""Experts a batch of rows wakes in a mixture-of-experts layer: the reason rows are not free there."""

from __future__ import annotations


def distinct_experts(experts: int, per_token: int, rows: float) -> float:
    """Expected number of different experts of `experts` that `rows` rows use, `per_token` each, routed independently.

    E · (1 − (1 − k / E)^rows). Neighbouring tokens route alike: pass rows · rho with rho ≤ 1 for that.

    >>> distinct_experts(8, 2, 2)
    3.5
    """
    return experts * (1.0 - (1.0 - per_token / experts) ** rows)


def marginal_experts(experts: int, per_token: int, rows: float) -> float:
    """Expected new experts that one more row wakes: what the row costs; it falls towards 0 as all are awake.

    >>> marginal_experts(8, 2, 1)
    1.5
    """
    return distinct_experts(experts, per_token, rows + 1) - distinct_experts(experts, per_token, rows)
