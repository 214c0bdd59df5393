"""One-node rules that treat a sibling group as a whole: how mass is moved from drafted sets to tokens.

Each is a frozen rule whose one-node step is a plain function beside it; the walk of `verify.walk` makes it a tree rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hedgerow.core.errors import InvariantError, UsageError
from hedgerow.core.parts import Row, Rows, Verdict
from hedgerow.core.rng import Source
from hedgerow.core.select import top_ids
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.verify.residual import unit
from hedgerow.verify.walk import DraftRows, Site, draws, single, walk

_TOLERANCE = 1e-12


# ------------------------------------------------------------------------------------------------ K-SEQ

@dataclass(frozen=True)
class KSeqPlan:
    """K-SEQ at one node: accept probability of every token, the residual, and the numbers behind them."""

    rho: float
    beta: float                           # Σ min(q, p/ρ): probability that one draw passes its test
    acceptance: float                     # 1 − (1 − β)^K
    accept: Row                           # min(1, p/(ρ q)) per token
    residual: Row                         # p − min(q, p/ρ) · acceptance/β


def kseq_rho(p: Row, q: Row, k: int) -> float:
    """The smallest ρ in [1, K] with ρ·β(ρ) ≥ 1 − (1 − β(ρ))^K, β(ρ) = Σ min(q, p/ρ), by bisection (upper end).

    >>> round(kseq_rho(np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4]), 2), 9)
    1.5
    """
    p, q = unit(p), unit(q)

    def surplus(rho: float) -> float:
        beta = float(np.minimum(q, p / rho).sum())
        return rho * beta - (1.0 - (1.0 - beta) ** k)

    low, high = 1.0, float(k)
    if surplus(low) >= -_TOLERANCE:        # p = q among others: the surplus is zero, or rounding
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if surplus(middle) >= 0.0 else (middle, high)
    return high


def kseq(p: Row, q: Row, k: int, rho: float | None = None) -> KSeqPlan:
    """K-SEQ's tests and residual for `k` i.i.d. draws; `rho` is solved for unless it is given.

    Raises: UsageError for a ρ so small that the accepted mass would exceed p somewhere (the rule would be biased).
    """
    p, q = unit(p), unit(q)
    rho = kseq_rho(p, q, k) if rho is None else rho
    if rho < 1.0:
        raise UsageError(f"K-SEQ's rho is {rho}; allowed: 1 to {k}, the number of draws")
    covered = np.minimum(q, p / rho)
    beta = float(covered.sum())
    acceptance = 1.0 - (1.0 - min(beta, 1.0)) ** k
    residual = p - covered * (acceptance / beta if beta > 0.0 else 0.0)
    if float(residual.min()) < -_TOLERANCE:
        raise UsageError(
            f"K-SEQ's rho is {rho}, but at least {kseq_rho(p, q, k)} is needed for {k} draws: less accepts tokens more "
            "often than the target emits them"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        accept = np.where(q > 0.0, covered / q, 0.0)
    return KSeqPlan(rho, beta, acceptance, accept, np.maximum(residual, 0.0))


@dataclass(frozen=True)
class KSeq:
    """SpecTr's K-SEQ: every draw passes the same test, min(1, p(x)/(ρ q(x))), until one does; else a residual.

    ρ is solved at every node for its own number of draws (repeats counted): O(60 · vocab). Accepts with probability
    1 − (1 − β(ρ))^K ≥ (1 − (1 − 1/K)^K) · α*, where α* is the best any rule can do with i.i.d. draws.

    Source: arXiv 2310.15141, algorithm 3. Differs from the paper in that ρ is solved per node, not set.

    Raises: InvariantError where several sources drafted below one node or a row is no law.
    """

    name: ClassVar[str] = "kseq"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[Selection]] = frozenset({Selection.IID})
    needs_q: ClassVar[bool] = True

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows, rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`."""
        return walk(tree, p, q, rng, position, _kseq_step)


def _kseq_step(site: Site) -> int:
    plan = kseq(site.p, site.only_q(), site.drawn)
    tried: list[int] = []
    for number, child in enumerate(draws(site.tree, site.children, site.rng, site.position)):
        token = site.token(child)
        if site.accepts(float(plan.accept[token]), number):
            return token
        tried.append(token)
    return site.rest(plan.residual, tried)


# ------------------------------------------------------------------------------------------------ SpecHub

@dataclass(frozen=True)
class HubPlan:
    """SpecHub at one node: accept probabilities and the residual; `hub` is argmax q."""

    hub: int
    first: Row                            # token drafted with the hub behind it
    hub_after: float                      # the hub behind such a token
    second: Row                           # token drafted behind the hub
    hub_before: float                     # the hub before such a token
    residual: Row


def spechub(p: Row, q: Row) -> HubPlan:
    """SpecHub's transport for pairs (i, a) with mass q(i) and (a, i) with mass q(a)q(i)/(1 − q(a)), a = argmax q.

    Tokens i ≠ a are served from (i, a) first, then from (a, i); the hub first from (a, i), then from (i, a).
    """
    p, q = unit(p), unit(q)
    hub = int(top_ids(q, 1)[0])
    off = np.arange(len(q)) != hub
    rest = float(q[off].sum())             # not 1 − q(hub), which rounding spoils where the hub has almost all
    behind = np.where(off, q * (q[hub] / rest), 0.0) if rest > 0.0 else np.zeros(len(q))
    want = np.where(off, np.maximum(p - q, 0.0), 0.0)
    spare_first = float(np.where(off, np.maximum(q - p, 0.0), 0.0).sum())
    spare_second = float(np.maximum(behind - want, 0.0).sum())
    left = max(float(p[hub]) - spare_second, 0.0)
    residual = np.maximum(want - behind, 0.0)
    residual[hub] = max(left - spare_first, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(q > 0.0, np.minimum(1.0, p / q), 0.0)
        second = np.where(behind > 0.0, np.minimum(1.0, want / behind), 0.0)
    return HubPlan(
        hub, first, min(1.0, left / spare_first) if spare_first > 0.0 else 0.0,
        second, min(1.0, float(p[hub]) / spare_second) if spare_second > 0.0 else 0.0, residual,
    )


@dataclass(frozen=True)
class SpecHub:
    """SpecHub: pairs that always hold the draft's favourite, verified by a closed-form transport.

    One child (q has a single token, or the pair was cut) is judged by single-draft rejection. O(vocab) a node.

    Source: arXiv 2411.05289, section 4.

    Raises: InvariantError for children that are no hub pair.
    """

    name: ClassVar[str] = "spechub"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[Selection]] = frozenset({Selection.HUB})
    needs_q: ClassVar[bool] = True

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows, rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`."""
        return walk(tree, p, q, rng, position, _hub_step)


def _hub_step(site: Site) -> int:
    q = site.only_q()
    if len(site.children) == 1:
        return single(site, site.token(site.children[0]), q, 0)
    plan = spechub(site.p, q)
    pair = [site.token(c) for c in site.children]
    if len(pair) != 2 or plan.hub not in pair:
        raise InvariantError(
            f"children {pair} of node {site.node} are no hub pair: two are allowed, one of them {plan.hub}, the most "
            "likely token of their draft row"
        )
    behind = pair[0] == plan.hub
    token = pair[1] if behind else pair[0]
    if site.accepts(float(plan.second[token] if behind else plan.first[token]), 0):
        return token
    if site.accepts(plan.hub_before if behind else plan.hub_after, 1):
        return plan.hub
    return site.rest(plan.residual, pair)


# ------------------------------------------------------------------------------------------------ greedy plus one

@dataclass(frozen=True)
class GreedyPlusOne:
    """The optimal verifier of K − 1 fixed tokens T, the most likely ones, and one draw x from q̃ = norm(q off T).

    Accept x with min(1, p(x)/q̃(x)), else y ~ norm((p − q̃)₊) over the whole vocabulary, followed if it is one of the
    fixed tokens. Accepts p(T) + Σ_{i∉T} min(p, q̃): the optimum for this way of drafting, at O(vocab). Siblings drawn
    without replacement may be judged so too, the last one as the draw: exact, though `rejection` accepts more.

    Source: arXiv 2502.18779, section 5 (ties among the most likely tokens go to the lowest id).

    Raises: InvariantError where several sources drafted below one node or a row is no law.
    """

    name: ClassVar[str] = "greedy_plus_one"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[Selection]] = frozenset({Selection.GREEDY_PLUS_ONE, Selection.WITHOUT_REPLACEMENT})
    needs_q: ClassVar[bool] = True

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows, rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`."""
        return walk(tree, p, q, rng, position, _greedy_step)


def _greedy_step(site: Site) -> int:
    if site.tree.selection[site.children[-1]] == Selection.TOP_K:
        return site.bonus()               # a cut removed the draw: what is left is a function of the context
    *fixed, drawn = [site.token(c) for c in site.children]
    rest = np.array(site.only_q(), np.float64)
    rest[fixed] = 0.0
    if not rest[drawn] > 0.0:
        raise InvariantError(
            f"token {drawn} of node {site.children[-1]} was not drawn from the draft row without {fixed}: it has no "
            "mass there"
        )
    return single(site, drawn, rest, 0)


def acceptance_greedy(p: Row, q: Row, k: int) -> float:
    """p(T) + Σ_{i∉T} min(p, q̃) for T the k − 1 most likely tokens of q: what `GreedyPlusOne` accepts, its optimum.

    >>> round(acceptance_greedy(np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4]), 2), 9)
    0.766666667
    """
    p, q = unit(p), unit(q)
    fixed = [i for i in top_ids(q, k - 1).tolist() if q[i] > 0.0]
    rest = q.copy()
    rest[fixed] = 0.0
    mass = float(rest.sum())
    drawn = float(np.minimum(np.where(rest > 0.0, p, 0.0), rest / mass).sum()) if mass > 0.0 else 0.0
    return float(p[fixed].sum()) + drawn
