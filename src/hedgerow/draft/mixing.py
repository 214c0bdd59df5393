"""From evidence to survival: votes of several memories mixed into one law of a node's children, learned online.

A memory that knows a context votes: it lists tokens that followed it with their share. A vote falls in a *bucket*
(which memory, how long the match, how often seen); every bucket has a slope, a bias and a voice for "none of these".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

MAX_SLOPE = 2.0


Vote = tuple[int, Sequence[int], Sequence[float]]
"""One memory's word on the children of a node: bucket, tokens, and the log of the share each has."""


class Prior(NamedTuple):
    """Where a bucket's three weights start."""

    slope: float
    bias: float
    other: float = 0.0


class Mixer:
    """A log-linear mixture of votes whose weights follow what the target committed.

    score(t) = Σ over votes v that list t of bias_b + slope_b · log share_v(t), and none of the listed scores
    base + Σ over all votes of other_b, where b is the vote's bucket; a child's survival, given that its parent is
    right, is the softmax over the listed and "none". Two memories that agree thus make each other surer.

    `learn` does one step of gradient ascent on the log-likelihood, each weight with its own AdaGrad rate; slopes stay
    in [0, 2]. It mutates the weights; equal histories give equal weights.

    >>> mixer = Mixer([Prior(1.0, 1.0)], base=0.0)
    >>> vote = 0, (7, 8), (math.log(0.75), math.log(0.25))
    >>> [(t, round(math.exp(l), 3)) for t, l in mixer.rank([vote], 2)]
    [(7, 0.548), (8, 0.183)]
    >>> for _ in range(50): mixer.learn([vote], 9)
    >>> [(t, round(math.exp(l), 3)) for t, l in mixer.rank([vote], 1)]
    [(7, 0.328)]
    """

    def __init__(self, priors: Sequence[Prior], base: float, rate: float = 0.05, inertia: float = 4.0) -> None:
        self.slope = [p.slope for p in priors]
        self.bias = [p.bias for p in priors]
        self.other = [p.other for p in priors]
        self.base = base
        self.rate = rate
        self._seen = [[inertia] * 3 for _ in priors]    # Σ gradient² of slope, bias, other
        self._seen_base = inertia

    def rank(self, votes: Sequence[Vote], k: int) -> list[tuple[int, float]]:
        """The `k` likeliest children with the log of their probability, likeliest first, ties as voted for."""
        if not votes:
            return []
        score, none = self._scores(votes)
        best = sorted(score, key=score.__getitem__, reverse=True)
        exp, peak = math.exp, max(score[best[0]], none)
        log_z = peak + math.log(exp(none - peak) + sum([exp(s - peak) for s in score.values()]))
        return [(t, score[t] - log_z) for t in best[:k]]

    def learn(self, votes: Sequence[Vote], token: int) -> None:
        """Take in that `token` came after a node with these votes."""
        if not votes:
            return
        score, none = self._scores(votes)
        peak = max(none, *score.values())
        weight = {t: math.exp(s - peak) for t, s in score.items()}
        none = math.exp(none - peak)
        z = none + sum(weight.values())
        gap = {t: -w / z for t, w in weight.items()}     # d log-likelihood / d score
        miss = -none / z
        if token in gap:
            gap[token] += 1.0
        else:
            miss += 1.0
        rate, sqrt = self.rate, math.sqrt
        for bucket, tokens, log_share in votes:
            by_bias = by_slope = 0.0
            for t, share in zip(tokens, log_share):  # noqa: B905
                d = gap[t]
                by_bias += d
                by_slope += d * share
            seen = self._seen[bucket]
            seen[0] += by_slope * by_slope
            seen[1] += by_bias * by_bias
            seen[2] += miss * miss
            slope = self.slope[bucket] + rate * by_slope / sqrt(seen[0])
            self.slope[bucket] = min(max(slope, 0.0), MAX_SLOPE)
            self.bias[bucket] += rate * by_bias / sqrt(seen[1])
            self.other[bucket] += rate * miss / sqrt(seen[2])
        self._seen_base += miss * miss
        self.base += rate * miss / sqrt(self._seen_base)

    def _scores(self, votes: Sequence[Vote]) -> tuple[dict[int, float], float]:
        score: dict[int, float] = {}
        none = self.base
        for bucket, tokens, log_share in votes:
            none += self.other[bucket]
            slope, bias = self.slope[bucket], self.bias[bucket]
            for t, share in zip(tokens, log_share):  # noqa: B905 — the innermost loop of drafting
                score[t] = score.get(t, 0.0) + bias + slope * share
        return score, none


def log_shares(count: Sequence[float]) -> list[float]:
    """log(count / total) of each.

    >>> [round(x, 3) for x in log_shares([1, 3])]
    [-1.386, -0.288]
    """
    log_total = math.log(math.fsum(count))
    return [math.log(c) - log_total for c in count]
