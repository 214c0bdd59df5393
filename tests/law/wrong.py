"""Published and plausible wrong variants of exact rules, written out: the law tests must tell them from the right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hedgerow.core.parts import Verdict
from hedgerow.core.rng import Purpose
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.verify.walk import Site, walk


@dataclass(frozen=True)
class PortOfTraversal:
    """Traversal as public ports have it: `deepest` takes the deepest leaf first, `ratio` sets P = min(1, S/draft mass).

    State is kept per node and every alive descendant is recomputed, as in the ports; both switches off is the paper.
    """

    deepest: bool = False
    ratio: bool = False
    last_first: bool = False
    name: str = "port of traversal"
    lossless: bool = True
    needs_q: bool = True
    accepts: frozenset[Selection] = frozenset({Selection.IID, Selection.WITHOUT_REPLACEMENT})

    def verify(self, tree: TokenTree, p: Any, q: Any, rng: Any, position: int) -> Verdict:
        rows = {v: np.array(p(v), float) for v in range(-1, tree.nodes)}
        drafts = {v: np.array(q(v, 0), float) for v in range(-1, tree.nodes) if tree.children[v + 1]}
        alive = {v: list(tree.children[v + 1]) for v in range(-1, tree.nodes)}
        value = {ROOT: 1.0}

        def spread(v: int) -> None:
            for c in alive[v]:
                x = int(tree.tokens[c])
                value[c] = min(1.0, value[v] * rows[v][x] / drafts[v][x]) if drafts[v][x] > 0 else 0.0
                spread(c)

        def leaf() -> int:
            if self.deepest:
                leaves = [v for v in [ROOT, *live(ROOT)] if not alive[v]]
                return max(leaves, key=lambda v: (len(tree.path(v)), -v))
            v = ROOT
            while alive[v]:
                v = alive[v][-1 if self.last_first else 0]
            return v

        def live(v: int) -> list[int]:
            return [u for c in alive[v] for u in (c, *live(c))]

        spread(ROOT)
        while True:
            v = leaf()
            path = tree.path(v)
            if v == ROOT or rng.bernoulli(value[v], position + len(path), Purpose.ACCEPT, v):
                token = rng.categorical(rows[v], position + len(path) + 1, Purpose.RESIDUAL)
                return Verdict(path, token, "bonus")
            r, x = int(tree.parent[v]), int(tree.tokens[v])
            left = np.maximum(value[r] * rows[r] - drafts[r], 0.0)
            mass, covered = float(left.sum()), float(drafts[r].sum())
            if self.ratio:
                drafts[r][x] = 0.0
                covered = float(drafts[r].sum())
                value[r] = min(1.0, mass / covered) if covered > 0 and r != ROOT else 1.0 if r == ROOT else 0.0
            elif r != ROOT:
                value[r] = mass / (mass + 1.0 - value[r]) if mass > 0 else 0.0
            if mass > 0:
                rows[r] = left / mass
            drafts[r][x] = 0.0
            if drafts[r].sum() > 0:
                drafts[r] /= drafts[r].sum()
            alive[r].remove(v)
            spread(r)


@dataclass(frozen=True)
class PortOfBlock:
    """Block verification as wrong ports have it: a token-wise test with the block's residual, or a scan that stops."""

    stops_early: bool = False
    name: str = "port of block"
    lossless: bool = True
    needs_q: bool = True
    accepts: frozenset[Selection] = frozenset({Selection.IID, Selection.WITHOUT_REPLACEMENT})

    def verify(self, tree: TokenTree, p: Any, q: Any, rng: Any, position: int) -> Verdict:
        n = tree.nodes
        value, keep = [1.0], [1.0]
        for i in range(n):
            x = int(tree.tokens[i])
            ratio = float(p(i - 1)[x] / q(i - 1, 0)[x])
            value.append(min(1.0, value[-1] * ratio))
            if i + 1 == n:
                h = value[-1]
            else:
                mass = float(np.maximum(value[-1] * p(i) - q(i, 0), 0.0).sum())
                h = mass / (mass + 1.0 - value[-1]) if mass > 0 else 0.0
            keep.append(h if self.stops_early else min(1.0, ratio))
        kept = 0
        if self.stops_early:               # from the front, as a token-wise loop would
            while kept < n and rng.bernoulli(keep[kept + 1], position + kept + 1, Purpose.ACCEPT):
                kept += 1
        else:                              # the token-wise test, scanned from the end
            kept = next((i for i in range(n, 0, -1) if rng.bernoulli(keep[i], position + i, Purpose.ACCEPT)), 0)
        row = p(kept - 1)
        if kept < n:
            row = np.maximum(value[kept] * row - q(kept - 1, 0), 0.0)
            row = row if row.sum() > 0 else p(kept - 1)
        token = rng.categorical(row, position + kept + 1, Purpose.RESIDUAL)
        return Verdict(tuple(range(kept)), token, "bonus")


@dataclass(frozen=True)
class CumulatedCoin:
    """The target-only kernel with one coin, which counts a token drafted twice twice."""

    name: str = "cumulated coin"
    lossless: bool = True
    needs_q: bool = False
    accepts: frozenset[Selection] = frozenset(Selection)

    def verify(self, tree: TokenTree, p: Any, q: Any, rng: Any, position: int) -> Verdict:
        def judge(site: Site) -> int:
            past = 0.0
            for number, child in enumerate(site.children):
                reach = min(1.0, past + float(site.p[site.token(child)]))
                if past < 1.0 and site.accepts((reach - past) / (1.0 - past), number):
                    return site.token(child)
                past = reach
            rest = np.array(site.p)
            rest[[site.token(c) for c in site.children]] = 0.0
            return site.rest(rest, [])

        return walk(tree, p, q, rng, position, judge)


@dataclass(frozen=True)
class ArgmaxFirst:
    """Accept the child that is the target's most likely token, else draw: greedy acceptance under sampling."""

    name: str = "argmax first"
    lossless: bool = True
    needs_q: bool = False
    accepts: frozenset[Selection] = frozenset(Selection)

    def verify(self, tree: TokenTree, p: Any, q: Any, rng: Any, position: int) -> Verdict:
        def judge(site: Site) -> int:
            best = int(np.argmax(site.p))
            return best if best in [site.token(c) for c in site.children] else site.bonus()

        return walk(tree, p, q, rng, position, judge)
