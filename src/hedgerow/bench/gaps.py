"""What is left to gain on real p and q: rules against the optimum of one node, and of whole trees of few tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hedgerow.bench.expected import Folded, group_accepted
from hedgerow.bench.judging import near
from hedgerow.bench.paths import PathDrafter, TargetLaws
from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Row
from hedgerow.core.rng import Rng
from hedgerow.core.select import pick, top_ids
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.testing.law import step_law
from hedgerow.testing.steps import Grown, Request, trees
from hedgerow.verify import offline
from hedgerow.verify.joint import Traversal
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection, acceptance_with, acceptance_without
from hedgerow.verify.transport import acceptance_greedy, kseq, spechub

WIDE = 512                                # tokens of p and of q that keep outcomes of their own when folded
FLOOR = 1e-6                              # of the uniform law in the laws of few tokens: moves no figure that is shown
S = Selection


def _floored(row: Row) -> Row:
    total = float(row.sum())
    law: Row = row / total if total > 0.0 else np.full(len(row), 1.0 / len(row))
    return (1.0 - FLOOR) * law + FLOOR / len(row)


def root_gaps(p: Row, q: Row, rng: Rng, ks: Sequence[int] = (2, 4), groups: int = 24) -> dict[str, float]:
    """α* of one node and what rules reach, by selection and number of children; all exact but rejection · without.

    That one is an average over `groups` drawn groups at more than two children. Rows are folded beyond the `WIDE`
    likeliest tokens.
    """
    fp, fq, _ = Folded.of(p, q, near(p, q, WIDE)).rows()
    out: dict[str, float] = {}
    for k in ks:
        out[f"top_k {k} α*"] = offline.optimum_fixed(p, top_ids(q, k).tolist())
        out[f"iid {k} α*"] = offline.optimum_iid(fp, fq, k)
        out[f"iid {k} rejection"] = acceptance_with(fp, fq, k)
        out[f"iid {k} kseq"] = _kseq(fp, fq, k)
        out[f"without {k} α*"] = offline.optimum_without(fp, fq, k)
        out[f"without {k} rejection"] = acceptance_without(fp, fq, k) if k == 2 else _drawn(fp, fq, k, rng, groups)
        out[f"greedy_plus_one {k} α*"] = acceptance_greedy(p, q, k)
    out["hub 2 spechub"] = 1.0 - float(spechub(p, q).residual.sum())
    return out


def _kseq(p: Row, q: Row, k: int) -> float:
    beta = float((q / q.sum() * kseq(p, q, k).accept).sum())
    return 1.0 - (1.0 - beta) ** k


def _drawn(p: Row, q: Row, k: int, rng: Rng, groups: int) -> float:
    total = 0.0
    for i in range(groups):
        got = pick(q, k, S.WITHOUT_REPLACEMENT, rng, i)
        group = TokenTree.of(got.token, [ROOT] * len(got.token), selection=S.WITHOUT_REPLACEMENT)
        total += sum(group_accepted(Rejection(), group, p, q))
    return total / groups


def joint_gaps(
    target: TargetLaws, drafter: PathDrafter, temperature: float, counts: tuple[int, ...] = (2, 1), tokens: int = 3
) -> dict[str, float]:
    """E[accepted] of rules, of value-weighted transport and of the best rule there is, on laws of a few tokens.

    Both laws are cut to the target's likeliest tokens after each path, renormalised and mixed with FLOOR of the uniform
    law, below which the solver's optimum cannot be certified: everything is enumerated. Empty, for both selections,
    where it is not certified all the same; the table then counts a context less.
    """
    real: dict[tuple[int, ...], tuple[tuple[int, ...], np.ndarray, np.ndarray]] = {}

    def at(path: tuple[int, ...]) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
        if path not in real:
            above: tuple[int, ...] = ()
            for n in range(len(path)):
                ids = top_ids(target.row(above, temperature), tokens)
                above = (*above, int(ids[path[n]]))
            p = target.row(above, temperature)
            best = top_ids(p, tokens)
            q = drafter.law(above).astype(np.float64)[best]
            real[path] = above, _floored(p[best]), _floored(q)
        return real[path]

    def p(path: tuple[int, ...]) -> np.ndarray:
        return at(path)[1]

    def q(path: tuple[int, ...]) -> np.ndarray:
        return at(path)[2]

    out: dict[str, float] = {}
    for selection, word in ((S.IID, "iid"), (S.WITHOUT_REPLACEMENT, "without")):
        request = Request(Grown.levels(*counts, selection=selection), p, q)
        every = trees(request)
        for rule in (Match(), Rejection(), Traversal()):
            out[f"{word} {rule.name}"] = float(step_law(rule, request).accepted[0])
        try:
            out[f"{word} value-weighted"] = offline.value_weighted(every, p)
            out[f"{word} joint optimum"] = offline.joint_optimum(every, p)
        except InvariantError:
            return {}
    return out
