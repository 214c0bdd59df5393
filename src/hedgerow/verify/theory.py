"""The field's theory as plain functions: what acceptance rates are worth, and what bounds any method.

Tokens per step count the extra token (accepted + 1); a tree of `rows` rows has the root among them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Row
from hedgerow.verify.residual import unit

Law = Callable[[tuple[int, ...]], Row]


def chain_tokens(alpha: float, gamma: int) -> float:
    """Tokens per step of a chain of `gamma` drafts, each accepted with probability α: (1 − α^{γ+1})/(1 − α).

    Source: arXiv 2211.17192, equation 1 (accepted independently of one another).

    >>> round(chain_tokens(0.8, 3), 3)
    2.952
    """
    return float(gamma + 1) if alpha == 1.0 else (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)


def chain_speedup(alpha: float, gamma: int, cost: float) -> float:
    """`chain_tokens`/(γ·cost + 1): speed over plain decoding when one draft costs `cost` target steps.

    Source: arXiv 2211.17192, theorem 3.8 (a step costs the same whatever its rows).
    """
    return chain_tokens(alpha, gamma) / (gamma * cost + 1.0)


def best_gamma(alpha: float, cost: float, most: int = 64) -> int:
    """The γ in 0 … `most` of largest `chain_speedup`; the smallest of equals."""
    return max(range(most + 1), key=lambda gamma: (chain_speedup(alpha, gamma, cost), -gamma))


@dataclass(frozen=True)
class Ceilings:
    """Tokens per step of unbounded structures, from positional acceptance."""

    chain: float
    chains: float                         # k independent chains
    k_ary: float


def ceilings(p: Sequence[float], k: int) -> Ceilings:
    """1/(1 − P₁), 1 + P_k/(1 − P₁) and 1/(1 − P_k), P_k = p₁ + … + p_k: what size alone can buy (inf if P = 1).

    `p[j]` is the probability that the (j + 1)-th child is the accepted one, given its parent was.

    Source: arXiv 2402.12374, section 3.

    >>> ceilings([0.5, 0.25], 2)
    Ceilings(chain=2.0, chains=2.5, k_ary=4.0)
    """
    first, all_k = p[0], sum(p[:k])

    def over(miss: float) -> float:
        return 1.0 / miss if miss > 0.0 else math.inf

    return Ceilings(over(1.0 - first), 1.0 + all_k * over(1.0 - first) if all_k > 0 else 1.0, over(1.0 - all_k))


def tree_values(p: Sequence[float], rows: int, levels: int | None = None) -> list[float]:
    """Tokens per step of the best tree of 1, 2, …, `rows` rows (at most `levels` levels, the root's included).

    A node's worth is the product of p along its path; the best tree takes the worthiest nodes, found best-first
    because a node is worth no more than its parent, nor than its earlier sibling (p must not rise).

    Source: arXiv 2402.12374, section 3.1 (the same values as its dynamic programme).

    Raises: UsageError if p rises.

    >>> tree_values([0.5, 0.25], 4)
    [1.0, 1.5, 1.75, 2.0]
    """
    if any(b > a for a, b in pairwise(p)):
        raise UsageError(f"positional acceptance {list(p)} rises; it must fall from child to child")
    best = [1.0]
    heap = [(-p[0], 0, 2, 1.0)] if p and (levels is None or levels >= 2) else []   # (-worth, rank, level, parent's)
    while len(best) < rows and heap:
        worth, rank, level, parent = heapq.heappop(heap)
        best.append(best[-1] - worth)
        if levels is None or level < levels:
            heapq.heappush(heap, (worth * p[0], 0, level + 1, -worth))
        if rank + 1 < len(p):
            heapq.heappush(heap, (-parent * p[rank + 1], rank + 1, level, parent))
    return best + [best[-1]] * (rows - len(best))


def power_law(b: float, children: int) -> list[float]:
    """Positional acceptance p_k with 1 − P_k = (k + 1)^{−b}, k = 1 … `children`; steep b means good drafts.

    Source: arXiv 2402.12374, section 3.2.
    """
    miss = [(k + 1.0) ** -b for k in range(children + 1)]
    return [a - c for a, c in pairwise(miss)]


@dataclass(frozen=True)
class SpeedOfLight:
    """Bounds on accepted tokens of deterministic drafting, from the target's surprise."""

    mu: float                             # E[−ln p]: entropy, nats
    mu2: float                            # E[ln² p], nats²
    ceiling: float                        # ln P/μ: what renewal theory says, up to O(1)
    bound: float                          # (μ + μ₂) ln P/μ²: the proven bound's leading term


def surprise(p: Row) -> tuple[float, float]:
    """μ = E[−ln p] and μ₂ = E[ln² p] of one row."""
    mass = unit(p)
    mass = mass[mass > 0.0]
    log = np.log(mass)
    return float(-(mass * log).sum()), float((mass * log * log).sum())


def speed_of_light(rows: Sequence[Row], capacity: int) -> SpeedOfLight:
    """Bounds for a verifier that checks `capacity` tokens a step; μ and μ₂ are averaged over the target's `rows`.

    Source: arXiv 2512.11718 (i.i.d.-type assumptions; an O(1) term is left out of both).

    Raises: UsageError for a capacity below 1 or rows without entropy.
    """
    moments = np.array([surprise(row) for row in rows])
    mu, mu2 = (float(m) for m in moments.mean(axis=0))
    if capacity < 1 or mu <= 0.0:
        raise UsageError(f"capacity {capacity} and mean entropy {mu} nats; needed: 1 token or more, some entropy")
    return SpeedOfLight(mu, mu2, math.log(capacity) / mu, (mu + mu2) * math.log(capacity) / mu**2)


def oracle_accepted(p: Row, nodes: int) -> float:
    """E[accepted] of the best deterministic tree of `nodes` nodes when every row is `p`: the largest path products."""
    ranked = sorted((x for x in unit(p).tolist() if x > 0.0), reverse=True)
    return tree_values(ranked, nodes + 1)[-1] - 1.0


def tv(p: Row, q: Row) -> float:
    """½ Σ |p − q|: the probability that one draw from q is refused by the best rule.

    >>> tv(np.array([0.5, 0.5]), np.array([1.0, 0.0]))
    0.5
    """
    return float(np.abs(unit(p) - unit(q)).sum() / 2)


def expected_refusals(p: Law, q: Law, tokens: int) -> float:
    """Σ_t E[TV(p_t, q_t)] over contexts the target writes: refusals while `tokens` tokens are made one draft at a time.

    No unbiased rule of one draft a token refuses less often.

    Source: arXiv 2411.00841, theorem 1.
    """
    total = 0.0
    reach: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(tokens):
        nxt: dict[tuple[int, ...], float] = {}
        for path, w in reach.items():
            row = unit(p(path))
            total += w * tv(row, q(path))
            nxt.update({(*path, t): w * x for t, x in enumerate(row.tolist()) if x > 0.0})
        reach = nxt
    return total


def greedy_tree(q: Law, vocab: int, nodes: int) -> list[tuple[int, ...]]:
    """The `nodes` paths of largest Π q: with the target's own law the best deterministic tree there is.

    Ties prefer the shallower node, then the lower token. Source: OPT-Tree (arXiv 2406.17276), theorem 3.1.
    """
    out: list[tuple[int, ...]] = []
    first = unit(q(()))
    heap: list[tuple[float, int, tuple[int, ...]]] = [(-float(first[t]), 1, (t,)) for t in range(vocab) if first[t] > 0]
    heapq.heapify(heap)
    while heap and len(out) < nodes:
        worth, depth, path = heapq.heappop(heap)
        out.append(path)
        row = unit(q(path))
        for t in range(vocab):
            if row[t] > 0.0:
                heapq.heappush(heap, (worth * float(row[t]), depth + 1, (*path, t)))
    return out
