"""Draft rows of learned drafters: logits stay on the device, and what a policy asks for is picked from them.

A row is the draft law of the children of one or more nodes. Ids and log-probabilities of its best tokens cross to the
host, many rows at a time: a few where the best are the children, `DRAWN` where children are drawn. Those, filtered and
renormalised, are then the law that is drawn from and that rules are told; what is behind them is hardly ever drawn, and
passing over a vocabulary for every node costs more than it brings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Ask, Children, Row, Sampling, View
from hedgerow.core.probs import law
from hedgerow.core.select import Picked, pick
from hedgerow.core.tree import ROOT, Selection
from hedgerow.systems.rank import top_k

LEAST = 8                                 # ranks are fetched by powers of two from here: one size serves many trees
DRAWN = 128                               # the best tokens of a row are its draft law, where children are drawn

_COLD = Sampling(0.05)                    # the likeliest tokens are drawn in their order, nearly always


class Best(NamedTuple):
    """The likeliest tokens of a row, best first, with log q; and the row's entropy in nats."""

    token: list[int]
    log_q: list[float]
    entropy: float


@dataclass
class Rows:
    """The rows of one request's step, by origin; `vocab` is the target's, ids of a row's columns are given with it.

    Greedy requests rank by the law at temperature 1, since the law at 0 names one token only.
    """

    view: View
    vocab: int
    logits: list[Float[torch.Tensor, " columns"]] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)                            # of the children a row is about
    ids: list[Int[np.ndarray, " columns"] | None] = field(default_factory=list)   # None: columns are token ids
    best: dict[int, Best] = field(default_factory=dict)
    laws: dict[int, Row] = field(default_factory=dict)

    def add(
        self, logits: Float[torch.Tensor, " columns"], depth: int, ids: Int[np.ndarray, " columns"] | None = None
    ) -> int:
        """Append a row; returns its origin."""
        self.logits.append(logits)
        self.depth.append(depth)
        self.ids.append(ids)
        return len(self.logits) - 1

    def extend(
        self, logits: Float[torch.Tensor, "rows columns"], depth: Sequence[int],
        ids: Int[np.ndarray, " columns"] | None, ranks: Float[np.ndarray, "rows ranks"] | None = None,
    ) -> range:
        """Append rows of one pass; returns their origins.

        `ranks`, from a network that ranks itself: a row's best columns, their logits, log-sum-exp, entropy, all at
        temperature 1; at another one the last two are made anew.
        """
        first, n = len(self.logits), len(depth)
        self.logits += logits.unbind(0)
        self.depth += depth
        self.ids += [ids] * n
        if ranks is not None:
            k, heat = ranks.shape[1] // 2 - 1, self.view.sampling.temperature or 1.0
            if heat != 1.0:
                ranks = np.concatenate([ranks[:, :k], ranks[:, k : 2 * k] / heat, _totals(logits, heat)], 1)
            columns = ranks[:, :k].astype(np.int64)
            token = (columns if ids is None else ids[columns]).tolist()
            log_q, chaos = (ranks[:, k : 2 * k] - ranks[:, -2:-1]).tolist(), ranks[:, -1].tolist()
            for i in range(n):
                self.best[first + i] = Best(token[i], log_q[i], chaos[i])
        return range(first, first + n)

    def law(self, origin: int) -> Row:
        """q over the target's vocabulary: the row's best tokens, as the request samples them.

        A greedy request's is the law at a low temperature, not at none: it leaves siblings to be drawn, and whatever
        they were drawn from, a rule that reads q keeps the target's one token.

        Raises: UsageError for an origin that is not of this step.
        """
        if origin not in self.laws:
            if not 0 <= origin < len(self.logits):
                raise UsageError(f"draft row {origin} was asked for; this step has {len(self.logits)}")
            self.rank({origin: DRAWN})
            best, heat = self.best[origin], self.view.sampling.temperature
            ids = np.array(best.token[:DRAWN], np.int64)
            rising = np.argsort(ids)
            ids, logits = ids[rising], np.array(best.log_q[:DRAWN])[rising] * (heat or 1.0)
            q = np.zeros(self.vocab)
            if len(ids):
                q[ids] = self.view.draw(logits, self.depth[origin], ids) if heat else _cold(logits)
            self.laws[origin] = q
        return self.laws[origin]

    def lacks(self, origin: int, k: int) -> bool:
        """Whether fewer than `k` ranks of a row are known, and more could be."""
        have = self.best.get(origin)
        return have is None or (len(have.token) < k and len(have.token) < len(self.logits[origin]))

    def rank(self, wanted: Mapping[int, int]) -> None:
        """Fetch so many ranks of some rows, where they are not known."""
        for origin, k in wanted.items():
            if self.lacks(origin, k):
                _fetch([(self, origin)], k)

    def ranked(self, selection: Selection) -> bool:
        """Whether children of this selection are simply the best of the row.

        A filter keeps the best, so it does not matter here: log q of ranked children is that of the unfiltered row.
        """
        return not selection.drawn if self.view.sampling.temperature == 0.0 else selection is Selection.TOP_K


def ranks_for(asks: Sequence[Ask], rows: Mapping[int, Rows]) -> int:
    """How many ranks of every row these frontiers want, rounded up to a size that serves many."""
    most = max((_ranks(rows[ask.slot], ask, k) for ask in asks for k in ask.frontier.counts), default=0)
    return max(LEAST, 1 << (most - 1).bit_length()) if most else 0


def _ranks(rows: Rows, ask: Ask, k: int) -> int:
    """Ranks of a row that its `k` children take."""
    return k if rows.ranked(ask.frontier.selection) else DRAWN


def _totals(logits: Float[torch.Tensor, "rows columns"], heat: float) -> Float[np.ndarray, "rows 2"]:
    """log-sum-exp of each row's logits / heat and the entropy of their softmax, on the host.

    On the CPU by numpy: so few numbers are not worth waking torch's threads between two passes of the network.
    """
    if logits.device.type == "cpu":
        x = logits.float().numpy() * np.float32(1.0 / heat)
        peak = x.max(1, keepdims=True)
        x -= peak
        weight = np.exp(x)
        total = weight.sum(1, keepdims=True)
        weight *= np.maximum(x, np.float32(-1e4))
        chaos = np.log(total) - weight.sum(1, keepdims=True) / total
        return np.concatenate([peak + np.log(total), chaos], 1)
    logs = (logits.float() / heat).log_softmax(1)
    chaos = -(logs.exp() * logs.clamp_min(-1e4)).sum(1, keepdim=True)
    return torch.cat([(logits[:, :1].float() / heat) - logs[:, :1], chaos], 1).cpu().numpy()


def _cold(row: Row) -> Row:
    """The law of logits at a low temperature, without what is as good as never drawn."""
    q = law(row, _COLD)
    q[q < 1e-30] = 0.0
    return q / q.sum()


OriginOf = Callable[[Ask, int], int | None]   # a frontier node -> its row; None: there is none


def answer(asks: Sequence[Ask], rows: Mapping[int, Rows], origin_of: OriginOf, block: bool = False) -> Children:
    """Children of every frontier node, from the rows of its slot.

    `aux` says of every frontier node's row: `entropy` (nats), `margin` (log q of the best − of the second),
    `confidence` (largest q), `top` (log q of the best tokens). `block`: row d is the law of depth d + 1 whatever the
    path; all rows are then ranked with the root's, and `aux["block"]` has their `top`. Mutates the caches of `rows`.
    """
    found = [[origin_of(ask, node) for node in ask.frontier.nodes] for ask in asks]
    _rank(asks, rows, found, block)
    count: list[int] = []
    token: list[int] = []
    log_q: list[float] = []
    origin: list[int] = []
    mult: list[int] = []
    chaos: list[float] = []
    margin: list[float] = []
    confidence: list[float] = []
    tops: list[list[float]] = []
    tables: list[Any] = []
    for ask, origins in zip(asks, found, strict=True):
        mine, ranked = rows[ask.slot], rows[ask.slot].ranked(ask.frontier.selection)
        for node, k, at in zip(ask.frontier.nodes, ask.frontier.counts, origins, strict=True):
            if ranked and at is not None:     # the usual case: no more than lists to be cut
                best = mine.best[at]
                some = best.token[:k]
                n = len(some)
                token += some
                log_q += best.log_q[:k]
                mult += [1] * n
            else:
                got, best = _children(mine, ask, node, k, at)
                n = len(got.token)
                token += got.token
                log_q += got.log_q
                mult += got.mult
            count.append(n)
            origin += [-1 if at is None else at] * n
            top = best.log_q
            chaos.append(best.entropy)
            margin.append(top[0] - top[1] if len(top) > 1 else math.inf)
            confidence.append(math.exp(top[0]) if top else 0.0)
            tops.append(top)
        if block and ranked:
            table = [mine.best[at].log_q for at in range(len(mine.logits)) if at in mine.best]
            tables += [table if node == ROOT else [] for node in ask.frontier.nodes]
    aux: dict[str, Any] = {"entropy": chaos, "margin": margin, "confidence": confidence, "top": tops}
    if tables and len(tables) == len(count):
        aux["block"] = tables
    return Children(count, token, log_q, origin, mult, aux)


def depth_of(ask: Ask, node: int) -> int:
    """Depth of a frontier node, 0 for the root."""
    return ask.view.growth.depth[node] if node != ROOT else 0


def _children(rows: Rows, ask: Ask, node: int, k: int, at: int | None) -> tuple[Picked, Best]:
    """The children of one node that are not simply a row's best, and what the row's best tokens are."""
    if at is None:
        return Picked([], [], []), Best([], [], 0.0)
    frontier = ask.frontier
    q = rows.law(at)
    got = pick(q, k, frontier.selection, ask.view.rng, ask.view.position + rows.depth[at], node + 1, frontier.source)
    ids = np.flatnonzero(q)
    mass = q[ids]
    order = np.lexsort((ids, -mass))[: k + 1]
    return got, Best(ids[order].tolist(), np.log(mass[order]).tolist(), float(-(mass * np.log(mass)).sum()))


def _rank(asks: Sequence[Ask], rows: Mapping[int, Rows], found: Sequence[Sequence[int | None]], block: bool) -> None:
    """Fetch the best tokens of all rows that are wanted and are not known yet, or not far enough: once for all."""
    wanted: dict[tuple[int, int], int] = {}               # (slot, origin) -> ranks
    for ask, origins in zip(asks, found, strict=True):
        mine = rows[ask.slot]
        for node, count, at in zip(ask.frontier.nodes, ask.frontier.counts, origins, strict=True):
            k = _ranks(mine, ask, count)
            for o in range(len(mine.logits)) if block and node == ROOT else () if at is None else (at,):
                if mine.lacks(o, k):
                    wanted[ask.slot, o] = max(k, wanted.get((ask.slot, o), 0))
    sizes: dict[int, list[tuple[int, int]]] = {}
    for slot, at in wanted:
        sizes.setdefault(len(rows[slot].logits[at]), []).append((slot, at))
    for keys in sizes.values():
        k = max(LEAST, 1 << (max(wanted[key] for key in keys) - 1).bit_length())
        _fetch([(rows[slot], at) for slot, at in keys], k)


def _fetch(wanted: Sequence[tuple[Rows, int]], k: int) -> None:
    """The `k` best of rows of one width, in one pass and one transfer."""
    logits = torch.stack([rows.logits[at] for rows, at in wanted]).float()
    heat = torch.tensor(
        [rows.view.sampling.temperature or 1.0 for rows, _ in wanted], dtype=torch.float32, device=logits.device
    )[:, None]
    logits = logits / heat
    ids, _ = top_k(logits, k)
    logs = logits.log_softmax(-1)
    chaos = -(logs.exp() * logs.clamp_min(-1e4)).sum(-1, keepdim=True)
    there = logs.gather(1, ids)
    k = ids.shape[1]
    host = torch.cat([ids.float(), there, chaos], 1).cpu().numpy()    # ids below 2^24 are exact in float32
    for (rows, at), line in zip(wanted, host, strict=True):
        columns = line[:k].astype(np.int64)
        names = rows.ids[at]
        known = columns if names is None else names[columns]
        alive = int(np.count_nonzero(line[k : 2 * k] > -np.inf))
        rows.best[at] = Best(known[:alive].tolist(), line[k : k + alive].tolist(), float(line[-1]))
