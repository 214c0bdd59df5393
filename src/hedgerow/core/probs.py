"""From logits to a law: the only place where temperature and filters turn scores into probabilities.

`law` is the numpy reference in float64. Temperature 0 is a one-hot law, so that one rule serves greedy and sampling.
Order: temperature, top-k, top-p, min-p; ties at every cut go to the lowest id, so that plain and speculative decoding
filter alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from hedgerow.core.select import top_ids

if TYPE_CHECKING:
    from hedgerow.core.parts import Sampling

_HEAD = 1024  # ids sorted at first for top-p: a whole-vocabulary sort costs more than the step it serves


class OneHot(np.ndarray):
    """A law with all its mass on one token, which `token` names: whoever draws from it need not search the row.

    The row is read-only. Arrays made from it are like any other: their `token` is None.

    >>> row = OneHot.of(1, 3)
    >>> row.tolist(), row.token, row[:2].token, (2 * row).token
    ([0.0, 1.0, 0.0], 1, None, None)
    """

    token: int | None = None

    @classmethod
    def of(cls, token: int, vocab: int) -> OneHot:
        """All mass on `token` of `vocab` tokens."""
        row = np.zeros(vocab, np.float64).view(cls)
        row[token] = 1.0
        row.token = token
        row.flags.writeable = False
        return row


def law(logits: Float[np.ndarray, " vocab"], sampling: Sampling) -> Float[np.ndarray, " vocab"]:
    """The law of the next token: softmax(logits / temperature), filtered and renormalised.

    Entries of −inf are impossible tokens.

    Raises: ValueError if a logit is NaN or +inf, or every token is impossible.

    >>> from hedgerow.core.parts import Sampling
    >>> law(np.array([0.0, 2.0, 2.0]), Sampling(temperature=0.0)).tolist()
    [0.0, 1.0, 0.0]
    """
    top = int(np.argmax(logits))
    peak = float(logits[top])
    if not np.isfinite(peak):
        raise ValueError(
            f"logits have the maximum {peak}: the model returned values that are no numbers, or every token is barred"
        )
    out = np.zeros(len(logits), np.float64)
    if sampling.temperature == 0.0:
        out[top] = 1.0
        return out
    scaled = (np.asarray(logits, np.float64) - peak) / sampling.temperature
    if not sampling.filtered:
        np.exp(scaled, out=out)
        out /= out.sum()
        return out
    ids = filtered_ids(scaled, sampling)
    weight = np.exp(scaled[ids])
    out[ids] = weight / weight.sum()
    return out


def filtered_ids(scaled: Float[np.ndarray, " vocab"], sampling: Sampling) -> Int[np.ndarray, " ids"]:
    """Ids that survive top-k, top-p and min-p on scores already divided by the temperature and shifted to maximum 0.

    top-p keeps the smallest head of the order (probability falling, then id rising) whose mass reaches p, computed on
    what top-k left; min-p keeps ids with probability ≥ min_p × the largest.
    """
    vocab = len(scaled)
    limit = sampling.top_k if 0 < sampling.top_k < vocab else vocab
    ids = top_ids(scaled, limit) if limit < vocab else None
    if sampling.top_p < 1.0:
        if ids is None:
            total = float(np.exp(scaled).sum())
            head = _HEAD
            while True:
                ids = top_ids(scaled, min(head, vocab))
                mass = np.cumsum(np.exp(scaled[ids])) / total
                if mass[-1] >= sampling.top_p or len(ids) == vocab:
                    break
                head *= 8
        else:
            weight = np.exp(scaled[ids])
            mass = np.cumsum(weight) / weight.sum()
        ids = ids[: int(np.searchsorted(mass, sampling.top_p, side="left")) + 1]
    if ids is None:
        ids = np.arange(vocab)
    if sampling.min_p > 0.0:
        ids = ids[scaled[ids] >= np.log(sampling.min_p)]
    return ids


def log_law(logits: Float[np.ndarray, " vocab"]) -> Float[np.ndarray, " vocab"]:
    """log softmax in float64, for reported log-probabilities: temperature 1, no filter."""
    x = np.asarray(logits, np.float64)
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def entropy(p: Float[np.ndarray, " vocab"]) -> float:
    """−Σ p log p in nats; 0 log 0 = 0."""
    mass = p[p > 0]
    return float(-(mass * np.log(mass)).sum())
