"""Choose first, then test: rules that pick one of the siblings by a law known exactly and judge it alone.

Lossless for *any* choice whose marginal s(y) = Pr[chosen = y] is exact: the chosen token z is accepted with
probability min(1, p(z)/s(z)), else y ~ norm((p − s)₊). What the choice decides is how often: Σ min(p, s), and some
choice reaches the optimum α*. (The token of the residual may be a sibling too; it is then followed.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from scipy.optimize import linprog
from scipy.sparse import coo_array

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Row, Rows, Verdict
from hedgerow.core.rng import Purpose, Source
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.verify.luce import Mask, luce_marginal, resolve, tuple_law
from hedgerow.verify.residual import unit
from hedgerow.verify.walk import DraftRows, Site, single, walk

# ------------------------------------------------------------------------------------------------ pairs (Khisti)

def canonical_weights(p: Row, q: Row, head: int = 64) -> Float[np.ndarray, "vocab vocab"]:
    """w[i, j]: probability to choose i from a drafted pair {i, j}; w[i, j] + w[j, i] = 1.

    A linear program maximises Σ min(p, s) over the pairs inside the `head` tokens of largest |p − q|; any other pair
    chooses the token with the larger p/q (ties: the lower id), which costs acceptance, never exactness.
    """
    p, q = unit(p), unit(q)
    vocab = len(p)
    with np.errstate(divide="ignore", invalid="ignore"):
        lift = np.where(q > 0.0, p / q, 0.0)
    order = np.lexsort((np.arange(vocab), -lift))
    place = np.empty(vocab, np.int64)
    place[order] = np.arange(vocab)
    w = (place[:, None] < place[None, :]).astype(np.float64)
    near = np.lexsort((np.arange(vocab), -np.abs(p - q)))[:head]
    near = np.sort(near[q[near] > 0.0])
    i, j = (near[a] for a in np.triu_indices(len(near), 1))
    if not len(i):
        return w
    w[i, j] = w[j, i] = 0.0
    base = q * q + 2.0 * q * (w @ q)       # s without the pairs that are free
    pair = 2.0 * q[i] * q[j]
    n, m = len(i), vocab
    # maximise Σ t with t ≤ p and t − (free part of s) ≤ base + (pairs' default), x = w[i, j] in [0, 1]
    rows = np.concatenate([np.arange(m), i, j])
    cols = np.concatenate([n + np.arange(m), np.arange(n), np.arange(n)])
    vals = np.concatenate([np.ones(m), -pair, pair])
    bound = base.copy()
    np.add.at(bound, j, pair)
    best = linprog(
        np.concatenate([np.zeros(n), -np.ones(m)]), A_ub=coo_array((vals, (rows, cols)), shape=(m, n + m)).tocsr(),
        b_ub=bound, bounds=np.concatenate([np.tile([0.0, 1.0], (n, 1)), np.stack([np.zeros(m), p], 1)]), method="highs",
    )
    free = np.clip(best.x[:n], 0.0, 1.0)
    w[i, j], w[j, i] = free, 1.0 - free
    return w


def canonical_marginal(q: Row, w: Float[np.ndarray, "vocab vocab"]) -> Row:
    """s(y) = q(y)² + 2 q(y) Σ_{j≠y} q(j) w(y, j): the exact law of the token chosen from a pair of i.i.d. draws."""
    q = unit(q)
    return q * q + 2.0 * q * (w @ q - np.diag(w) * q)


@dataclass(frozen=True)
class Canonical:
    """Canonical decomposition for pairs: importance-weighted choice of one of two i.i.d. draws, then one test.

    Reaches α* when `head` covers the support of q. One linear program a node: a research rule. A single draw is judged
    alone.

    Source: arXiv 2410.18234, sections 3 and 4. Differs from the paper in how pairs outside the program choose.

    Raises: UsageError for a node with more than two draws; InvariantError where several sources drafted.
    """

    head: int = 64
    name: ClassVar[str] = "canonical"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[Selection]] = frozenset({Selection.IID})
    needs_q: ClassVar[bool] = True

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows, rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`."""
        return walk(tree, p, q, rng, position, self._step)

    def _step(self, site: Site) -> int:
        q, first = site.only_q(), site.token(site.children[0])
        if site.drawn == 1:
            return single(site, first, q, 1)
        if site.drawn > 2:
            raise UsageError(
                f"canonical decomposition judges pairs; node {site.node} has {site.drawn} draws, 2 are allowed; use "
                "'global_resolution'"
            )
        w = canonical_weights(site.p, q, self.head)
        second = site.token(site.children[-1])
        chosen = first if first == second or site.accepts(float(w[first, second]), 0) else second
        return single(site, chosen, canonical_marginal(q, w), 1)


# ------------------------------------------------------------------------------------------------ global resolution

@dataclass(frozen=True)
class Resolution:
    """Global resolution at one node: Luce weights θ, the tokens of the tightest set, the exact law of the choice."""

    theta: Row
    barred: Mask
    marginal: Row


def global_resolution(p: Row, q: Row, k: int, selection: Selection) -> Resolution:
    """Everything `GlobalResolution` needs at a node with `k` draws; Σ min(p, marginal) is what it accepts.

    Raises: UsageError for too many possible tuples.
    """
    law = tuple_law(q, k, selection)
    theta, barred = resolve(p, law)
    return Resolution(theta, barred, luce_marginal(law, theta, barred))


@dataclass(frozen=True)
class GlobalResolution:
    """Global resolution: the choice that reaches α*, found as two convex programs over at most `vocab` numbers.

    The test uses the exact marginal of the θ it was left with, so it is lossless whether or not the programs converged.
    Every tuple of draws is listed (at most 300,000): a research rule, seconds at 64 tokens and three draws.

    Source: arXiv 2511.15898. Differs from the paper: min-cut over sorted prefixes and Luce weights, our construction.

    Raises: UsageError for too many possible tuples; InvariantError where several sources drafted.
    """

    name: ClassVar[str] = "global_resolution"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[Selection]] = frozenset({Selection.IID, Selection.WITHOUT_REPLACEMENT})
    needs_q: ClassVar[bool] = True

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows, rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`."""
        return walk(tree, p, q, rng, position, _resolution_step)


def _resolution_step(site: Site) -> int:
    selection = Selection(int(site.tree.selection[site.children[0]]))
    found = global_resolution(site.p, site.only_q(), site.drawn, selection)
    tokens = np.array([site.token(c) for c in site.children])
    mult = site.tree.mult[list(site.children)].astype(np.float64)
    outside = ~found.barred[tokens]
    eligible = np.where(outside, mult, 0.0) if np.any(outside) else mult
    theta = found.theta[tokens]
    weight = eligible * np.exp(theta - theta[eligible > 0].max())
    chosen = int(tokens[site.rng.categorical(weight, site.position, Purpose.ACCEPT, 0)])
    return single(site, chosen, found.marginal, 1)
