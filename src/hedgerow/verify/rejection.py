"""Recursive rejection: siblings are tested in draw order, each against what its predecessors left of p."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Row, Rows, Verdict
from hedgerow.core.rng import Purpose, Source
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.verify.residual import Proposal, Residual, unit
from hedgerow.verify.walk import DraftRows, Site, draws, walk


@dataclass(frozen=True)
class Rejection:
    """Multi-draft rejection sampling, with and without replacement, for one or several drafters.

    For siblings x₁, x₂, … in draw order, with r = p and s_j the law x_j was drawn from given the siblings before it:
    accept x_j with probability min(1, r(x_j)/s_j(x_j)), else r ← norm((r − s_j)₊); when all are refused emit y ~ r.
    s_j is q for an `iid` child (a repeat, counted by `mult`, cannot be accepted but does update r), and q without the
    source's earlier siblings, renormalised, for a `without_replacement` child. Each stage preserves the law it is
    given, hence Y ~ p. O(children · vocab) per visited node; at most depth + 1 rows of p.

    Source: with replacement SpecInfer's multi-step speculative sampling (arXiv 2305.09781, algorithm 2) and MCSD
    (arXiv 2401.06706, algorithm 1); without replacement MCSD (algorithm 2), Sequoia (arXiv 2402.12374, algorithm 2)
    and RSD (arXiv 2402.14160). Differs from SpecInfer in that several drafters are tried in draw order, not in random
    order, and from the public codes in that a test is strict (u < ratio), so that a token with p = 0 is never accepted.

    Raises: InvariantError if a row is no law, or a child carries a token its draft row gives no mass.

    >>> import numpy as np
    >>> from hedgerow.core.rng import Rng
    >>> tree = TokenTree.of([2, 0], [-1, -1], selection=Selection.WITHOUT_REPLACEMENT)
    >>> p, q = np.array([0.6, 0.4, 0.0]), np.array([0.2, 0.2, 0.6])
    >>> Rejection().verify(tree, lambda node: p, lambda node, source: q, Rng(1), position=0).path
    (1,)
    """

    name: ClassVar[str] = "rejection"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[Selection]] = frozenset({Selection.IID, Selection.WITHOUT_REPLACEMENT})
    needs_q: ClassVar[bool] = True

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows, rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`."""
        return walk(tree, p, q, rng, position, _reject)


def _reject(site: Site) -> int:
    left = Residual(site.p)
    proposals = proposals_of(site)
    for number, child in enumerate(draws(site.tree, site.children, site.rng, site.position)):
        token, proposal = site.token(child), proposals[int(site.tree.source[child])]
        if site.accepts(left.ratio(token, proposal), number):
            return token
        left.refuse(token, proposal)
        if site.tree.selection[child] == Selection.WITHOUT_REPLACEMENT:
            proposal.remove(token)
    return site.rng.categorical(left.row, site.position, Purpose.RESIDUAL)


def proposals_of(site: Site) -> dict[int, Proposal]:
    """The draft law of every source that drafted below a node.

    Raises: InvariantError if a child carries a token its source could not have drawn.
    """
    out: dict[int, Proposal] = {}
    for child in site.children:
        source = int(site.tree.source[child])
        if source not in out:
            out[source] = Proposal(site.q(source))
        if not out[source].row[site.token(child)] > 0.0:
            raise InvariantError(
                f"node {child} carries token {site.token(child)}, to which its draft row (source {source}, node "
                f"{site.node}) gives no mass; a rule that reads q must get the row the token was drawn from"
            )
    return out


def acceptance_with(p: Row, q: Row, k: int) -> float:
    """Probability that one of `k` i.i.d. siblings is accepted: 1 − Π_j (1 − Σ min(r_j, q)), r₁ = p, r ← norm((r − q)₊).

    >>> import numpy as np
    >>> round(acceptance_with(np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4]), 2), 9)
    0.72
    """
    return acceptance_several(p, [q] * k)


def acceptance_without(p: Row, q: Row, k: int) -> float:
    """Probability that one of `k` siblings drawn without replacement is accepted; O(vocab^k) worst, less in practice.

    α(r, s, k) = Σ min(r, s) + Σ_x (s(x) − r(x))₊ · α(norm((r − s)₊), s without x, k − 1).

    >>> round(acceptance_without(np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4]), 2), 9)
    0.764285714
    """

    def accepted(r: Row, s: Row, k: int) -> float:
        refused = np.maximum(s - r, 0.0)
        left = np.maximum(r - s, 0.0)
        total, mass = 1.0 - float(refused.sum()), float(left.sum())
        if k == 1 or mass <= 0.0:
            return total
        for x in np.flatnonzero(refused).tolist():
            rest = s.copy()
            rest[x] = 0.0
            if rest.any():
                total += float(refused[x]) * accepted(left / mass, rest / rest.sum(), k - 1)
        return total

    return accepted(unit(p), unit(q), k)


def acceptance_several(p: Row, qs: list[Row]) -> float:
    """The same with one sibling from each of several drafters, in this order."""
    left, refused = Residual(unit(p)), 1.0
    for q in qs:
        proposal = Proposal(unit(q))
        refused *= 1.0 - float(np.minimum(left.row / left.mass, proposal.row).sum())
        if refused <= 0.0:
            break
        left.refuse(0, proposal)
    return 1.0 - refused
