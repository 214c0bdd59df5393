"""The choice behind global resolution: Luce weights over the drafted tuples, found as two convex programs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize
from scipy.sparse import coo_array

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Row
from hedgerow.core.tree import Selection
from hedgerow.verify.residual import unit

Mask = Bool[np.ndarray, " vocab"]

_TUPLES = 300_000                          # most drafted tuples whose law is listed
_NEWTON, _CONVERGED = 30, 1e-14            # steps, and Σ |s − p| at which they end


@dataclass(frozen=True)
class TupleLaw:
    """The law of what was drafted below a node: tuples of tokens and their probabilities."""

    tokens: Int[np.ndarray, "tuples k"]
    probability: Float[np.ndarray, " tuples"]


def tuple_law(q: Row, k: int, selection: Selection) -> TupleLaw:
    """Every tuple of `k` draws from q, i.i.d. or without replacement, with its probability.

    Without replacement the draws stop where the support ends.

    Raises: UsageError for another selection, or where more than 300,000 tuples are possible.

    >>> law = tuple_law(np.array([0.5, 0.5, 0.0]), 2, Selection.WITHOUT_REPLACEMENT)
    >>> law.tokens.tolist(), law.probability.tolist()
    ([[0, 1], [1, 0]], [0.5, 0.5])
    """
    q = unit(q)
    support = np.flatnonzero(q > 0.0)
    if selection is Selection.WITHOUT_REPLACEMENT:
        k = min(k, len(support))
    elif selection is not Selection.IID:
        raise UsageError(f"selection {selection.label!r} has no tuple law; allowed: iid, without_replacement")
    if float(len(support)) ** k > _TUPLES:
        raise UsageError(
            f"{len(support)} tokens in {k} draws make {float(len(support)) ** k:.0f} tuples; at most {_TUPLES} are "
            "listed: draft from a draft law cut to fewer tokens (top-k), or with fewer draws"
        )
    rows, chance, tokens = q[support][None, :], np.ones(1), np.empty((1, 0), np.int64)
    for draw in range(k):                  # masses are summed, not differenced: what is left may be tiny
        which, token = np.nonzero(rows)
        chance = chance[which] * rows[which, token] / rows.sum(axis=1)[which]
        tokens = np.column_stack([tokens[which], support[token]])
        if draw + 1 < k:
            rows = rows[which]
            if selection is Selection.WITHOUT_REPLACEMENT:
                rows[np.arange(len(rows)), token] = 0.0
    return TupleLaw(tokens, chance)


def luce_choice(law: TupleLaw, theta: Row, barred: Mask) -> Float[np.ndarray, "tuples k"]:
    """Probability that each draw of each tuple is the chosen one: e^θ over the tuple's eligible draws.

    A draw is eligible unless its token is `barred` and the tuple has draws that are not.
    """
    weight = np.where(barred[law.tokens], -np.inf, theta[law.tokens])
    inside = np.all(barred[law.tokens], axis=1)
    weight[inside] = theta[law.tokens[inside]]
    weight = np.exp(weight - weight.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)


def luce_marginal(law: TupleLaw, theta: Row, barred: Mask) -> Row:
    """The exact law of the token chosen by `luce_choice`."""
    mass = luce_choice(law, theta, barred) * law.probability[:, None]
    return np.bincount(law.tokens.ravel(), mass.ravel(), minlength=len(theta))


def tightest_set(p: Row, law: TupleLaw) -> Mask:
    """The set H (a mask) that minimises p(H) − Pr[all draws in H], among prefixes of the order of q/p.

    The order is by draft mass per target mass, falling; for i.i.d. draws and draws without replacement the minimum
    lies on such a prefix.
    """
    first = np.bincount(law.tokens[:, 0], law.probability, minlength=len(p))
    with np.errstate(divide="ignore", invalid="ignore"):
        lift = np.where(first > 0.0, p / first, np.inf)
    order = np.lexsort((np.arange(len(p)), lift))
    place = np.empty(len(p), np.int64)
    place[order] = np.arange(len(p))
    deepest = place[law.tokens].max(axis=1)                    # the prefix length at which a tuple is inside
    covered = np.cumsum(np.bincount(deepest, law.probability, minlength=len(p)))
    slack = np.concatenate([[0.0], np.cumsum(p[order]) - covered])
    mask = np.zeros(len(p), np.bool_)
    mask[order[: int(np.argmin(slack))]] = True
    return mask


def resolve(p: Row, law: TupleLaw) -> tuple[Row, Mask]:
    """θ and the cut of global resolution: `barred` tokens are those of the tightest set H.

    H minimises p(H) − Pr[all draws in H]. Tuples that leave H choose among their draws outside it, tuples inside H
    among all of theirs; on each side θ minimises E[log Σ e^θ] − Σ p θ, with θ ≤ 0 outside and θ ≥ 0 inside. At the
    optimum s = p wherever θ is free, s ≤ p outside, s ≥ p inside, hence Σ min(p, s) = α*.
    """
    p = unit(p)
    vocab = len(p)
    barred = tightest_set(p, law)
    inside = np.all(barred[law.tokens], axis=1)
    theta = np.zeros(vocab)
    for which, members, low, high in ((~inside, ~barred, -60.0, 0.0), (inside, barred, 0.0, 60.0)):
        part = TupleLaw(law.tokens[which], law.probability[which])
        free = np.flatnonzero(members & (np.bincount(part.tokens.ravel(), minlength=vocab) > 0))
        if not len(free):
            continue
        best = minimize(
            _luce_loss, np.zeros(len(free)), (p, part, free, members), "L-BFGS-B", jac=True,
            bounds=[(low, high)] * len(free),
            options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-12},
        )
        theta[free] = _polished(best.x, p, part, free, members, low, high)
    return theta, barred


def _polished(
    x: np.ndarray, p: Row, part: TupleLaw, free: np.ndarray, members: Mask, low: float, high: float
) -> np.ndarray:
    """Newton steps from where L-BFGS-B stopped (s within 1e-8 of the optimum) to rounding.

    A step moves the numbers that no bound holds, and is kept as long as it brings their s closer to p.
    """
    _, slope = _luce_loss(x, p, part, free, members)
    for _ in range(_NEWTON):
        loose = ~(((x <= low) & (slope > 0.0)) | ((x >= high) & (slope < 0.0)))
        error = float(np.abs(slope[loose]).sum())
        if error < _CONVERGED:
            break
        bend = _luce_bend(x, p, part, free, members)[np.ix_(loose, loose)]
        step = np.zeros(len(x))
        step[loose] = np.linalg.lstsq(bend, slope[loose], rcond=1e-11)[0]
        ahead = np.clip(x - step, low, high)
        _, there = _luce_loss(ahead, p, part, free, members)
        if not float(np.abs(there[loose]).sum()) < error:
            break
        x, slope = ahead, there
    return x


def _luce_bend(x: np.ndarray, p: Row, part: TupleLaw, free: np.ndarray, members: Mask) -> np.ndarray:
    """The second derivative of `_luce_loss`, Σ over tuples of Pr·(diag π − π πᵀ), π = the law of the chosen token."""
    place = np.zeros(len(p), np.int64)
    place[free] = np.arange(len(free))
    theta = np.zeros(len(p))
    theta[free] = x
    scores = np.where(members[part.tokens], theta[part.tokens], -np.inf)
    weight = np.exp(scores - scores.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    at = np.repeat(np.arange(len(weight)), weight.shape[1]), place[part.tokens].ravel()
    choice = coo_array((weight.ravel(), at), shape=(len(weight), len(free))).tocsr()       # repeats are added up
    spread = choice * part.probability[:, None]
    bend: np.ndarray = np.diag(choice.T @ part.probability) - (choice.T @ spread).toarray()
    return bend


def _luce_loss(
    x: np.ndarray, p: Row, part: TupleLaw, free: np.ndarray, members: Mask
) -> tuple[float, np.ndarray]:
    """E[log Σ e^θ] − Σ p θ over the `members` of each tuple, θ = x at `free`, and its gradient s − p."""
    full = np.full(len(p), -np.inf)
    full[free] = x
    scores = np.where(members[part.tokens], full[part.tokens], -np.inf)
    peak = scores.max(axis=1, keepdims=True)
    weight = np.exp(scores - peak)
    total = weight.sum(axis=1, keepdims=True)
    mass = weight / total * part.probability[:, None]
    s = np.bincount(part.tokens.ravel(), mass.ravel(), minlength=len(p))
    value = float((part.probability * (np.log(total) + peak).ravel()).sum() - (p[free] * x).sum())
    return value, s[free] - p[free]
