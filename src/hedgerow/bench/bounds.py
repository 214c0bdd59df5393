"""What any method could reach on a recorded generation: surprise, ceilings, the best tree an oracle could draft.

A trace holds the target's best tokens at every verified row, with the raw law's normaliser and entropy. The rows that
chose the text give μ = E[−ln p] and μ₂ = E[ln² p] of the law the text was drawn from (and of the raw law, at
temperature 1); all recorded rows together give the best deterministic tree, as far as rows were recorded.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.core.errors import ModelError, UsageError
from hedgerow.core.parts import Sampling
from hedgerow.core.probs import law
from hedgerow.core.record import StepRecord, read
from hedgerow.verify.theory import SpeedOfLight

BUDGETS = (7, 15, 63)
RANKS = (1, 2, 4, 8, 16, 64)


@dataclass(frozen=True)
class Known:
    """A recorded row: best tokens, their logits, log Σ exp of all logits, entropy of the raw law (nats)."""

    ids: list[int]
    logits: np.ndarray
    lse: float
    entropy: float

    def law(self, sampling: Sampling) -> np.ndarray:
        """p of the listed tokens: exact at temperature 1; elsewhere unlisted tokens are taken to have no mass."""
        if sampling.temperature == 1.0 and not sampling.filtered:
            return np.exp(self.logits - self.lse)
        return law(self.logits, sampling)

    def surprise(self, sampling: Sampling | None) -> tuple[float, float]:
        """μ and μ₂ of one row; None: of the raw law.

        Of unlisted tokens mass m and entropy h are known of the raw law, hence Σ p ln² p ≥ h²/m, which is taken.
        """
        p = self.law(sampling or Sampling(1.0))
        p = p[p > 0.0]
        log = np.log(p)
        mu, mu2 = -float((p * log).sum()), float((p * log * log).sum())
        if sampling is None:
            rest, h = 1.0 - float(p.sum()), self.entropy - mu
            if rest > 1e-9 and h > 0.0:
                mu, mu2 = self.entropy, mu2 + h * h / rest
        return mu, mu2


@dataclass
class Story:
    """One request of a trace: its text, and its rows by (position, tokens off the text)."""

    sampling: Sampling
    text: list[int]
    rows: dict[tuple[int, tuple[int, ...]], Known] = field(default_factory=dict)
    roots: list[int] = field(default_factory=list)
    chosen: list[tuple[int, int]] = field(default_factory=list)   # (position, token) of every committed token
    committed: int = 0

    def row(self, position: int, path: tuple[int, ...]) -> Known | None:
        """The row after `path` behind the root at `position`."""
        return self.rows.get(self._place(position, path))

    def _place(self, position: int, path: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        shared = 0
        behind = self.text[position + 1 : position + 1 + len(path)]
        while shared < len(behind) and behind[shared] == path[shared]:
            shared += 1
        return position + shared, path[shared:]

    def settle(self) -> None:
        """Sort rows by where they leave the text, now that it is known."""
        self.rows = {self._place(*key): row for key, row in self.rows.items()}


def stories(records: Iterable[StepRecord]) -> list[Story]:
    """The requests of a trace. Raises ModelError where a request's first record is missing."""
    out: list[Story] = []
    current: dict[int, Story] = {}
    for r in records:
        if r.prompt is not None:
            known = dict(r.sampling or {})
            fields = {k: known[k] for k in ("temperature", "top_k", "top_p", "min_p") if k in known}
            current[r.request] = Story(Sampling(**fields), [*r.prompt, r.root])
            out.append(current[r.request])
        if r.request not in current:
            raise ModelError(f"the trace has a step of request {r.request} but not its first: record whole requests")
        story = current[r.request]
        tokens, parent = r.tree["tokens"], r.tree["parent"]
        paths: list[tuple[int, ...]] = [()]
        for token, p in zip(tokens, parent, strict=True):
            paths.append((*paths[p + 1], token))
        for path, ids, logits, lse, h in zip(paths, r.top_ids, r.top_logits, r.lse, r.entropy, strict=True):
            story.rows[r.position, path] = Known(ids, np.array(logits, np.float64), lse, h)
        kept = [*(tokens[i] for i in r.path), r.token][: r.committed]
        story.text[r.position + 1 :] = kept
        story.roots.append(r.position)
        story.chosen += [(r.position + i, token) for i, token in enumerate(kept)]
        story.committed += r.committed
    for story in out:
        story.settle()
    return out


def oracle_tree(story: Story, position: int, nodes: int) -> list[float]:
    """Σ of the 1, 2, …, `nodes` largest path products behind a root, as far as rows were recorded.

    That is E[accepted] of the best deterministic tree of an oracle that knows p: no deterministic drafting beats it.
    A node whose own row was never recorded gets no children, so the true optimum is at least this.
    """
    out: list[float] = []
    total, tick = 0.0, 0
    heap: list[tuple[float, int, tuple[int, ...], int, float, np.ndarray, list[int]]] = []

    def offer(path: tuple[int, ...], rank: int, above: float, p: np.ndarray, ids: list[int]) -> None:
        nonlocal tick
        if rank < len(ids) and p[rank] > 0.0:
            tick += 1
            heapq.heappush(heap, (-above * float(p[rank]), tick, path, rank, above, p, ids))

    def expand(path: tuple[int, ...], worth: float) -> None:
        row = story.row(position, path)
        if row is not None:
            p = row.law(story.sampling)
            order = np.lexsort((np.array(row.ids), -p))
            offer(path, 0, worth, p[order], [row.ids[i] for i in order])

    expand((), 1.0)
    while heap and len(out) < nodes:
        minus, _, path, rank, above, p, ids = heapq.heappop(heap)
        total -= minus
        out.append(total)
        offer(path, rank + 1, above, p, ids)
        expand((*path, ids[rank]), -minus)
    return out


@dataclass(frozen=True)
class Laws:
    """Mean surprise of the rows that chose the text."""

    rows: int
    mu: float
    mu2: float
    entropy_quartiles: tuple[float, float, float]

    def light(self, nodes: int) -> SpeedOfLight | None:
        """The speed-of-light bounds at a budget; None where the law has no entropy.

        Source: arXiv 2512.11718, with its assumptions.
        """
        if self.mu <= 0.0:
            return None
        log = math.log(nodes)
        return SpeedOfLight(self.mu, self.mu2, log / self.mu, (self.mu + self.mu2) * log / self.mu**2)


def _laws(surprises: Sequence[tuple[float, float]]) -> Laws | None:
    if not surprises:
        return None
    each = np.array(surprises)
    low, mid, high = np.percentile(each[:, 0], [25, 50, 75])
    return Laws(len(each), float(each[:, 0].mean()), float(each[:, 1].mean()), (float(low), float(mid), float(high)))


def bounds(path: Path, budgets: Sequence[int] = BUDGETS) -> dict[str, Any]:
    """Everything `hedgerow bounds` prints, as one object; entropies in nats.

    Raises: ModelError for a file that is no trace, UsageError for a trace without a step.
    """
    every = stories(read(path))
    if not every:
        raise UsageError("the trace has no steps; record one with `hedgerow generate --trace FILE`")
    raw, sampled = [], []
    hits = dict.fromkeys(RANKS, 0)
    mass = dict.fromkeys(RANKS, 0.0)
    rows = 0
    oracle: dict[int, list[float]] = {n: [] for n in budgets}
    for story in every:
        for position, token in story.chosen:
            row = story.row(position, ())
            if row is None:
                continue
            rows += 1
            raw.append(row.surprise(None))
            if story.sampling.temperature > 0.0:
                sampled.append(row.surprise(story.sampling))
            p = row.law(story.sampling)
            order = np.lexsort((np.array(row.ids), -p))
            rank = next((i for i, at in enumerate(order.tolist()) if row.ids[at] == token), len(row.ids))
            for k in RANKS:
                hits[k] += rank < k
                mass[k] += float(p[order[:k]].sum())
        for root in story.roots:
            best = oracle_tree(story, root, max(budgets))
            for n in budgets:
                oracle[n].append(best[min(n, len(best)) - 1] if best else 0.0)
    steps = sum(len(s.roots) for s in every)
    committed = sum(s.committed for s in every)
    laws = {"raw": _laws(raw), "sampled": _laws(sampled)}
    return {
        "trace": str(path), "requests": len(every), "steps": steps, "tokens": committed,
        "tau": committed / steps, "temperatures": sorted({s.sampling.temperature for s in every}), "rows": rows,
        "laws": {
            name: None if found is None else {
                "rows": found.rows, "mu": found.mu, "mu2": found.mu2, "quartiles": list(found.entropy_quartiles),
            } for name, found in laws.items()
        },
        "budgets": [
            {
                "nodes": n, "oracle_tau": 1.0 + float(np.mean(oracle[n])),
                **{
                    f"{kind}_{name}": getattr(light, kind) if light else None
                    for name, found in laws.items() for light in [found.light(n) if found else None]
                    for kind in ("ceiling", "bound")
                },
            } for n in budgets
        ],
        "hits": [{"k": k, "hit": hits[k] / rows, "mass": mass[k] / rows} for k in RANKS] if rows else [],
    }
