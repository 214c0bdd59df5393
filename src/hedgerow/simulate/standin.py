"""A drafter without a model: what a neural drafter might propose on a recorded trace, as good as one dials it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Ask, Children, Feats, Needs, Row, Sampling, Step, View
from hedgerow.core.probs import entropy, law
from hedgerow.core.rng import Purpose, Rng
from hedgerow.core.select import pick
from hedgerow.core.tree import Selection
from hedgerow.simulate.clock import ONE_CALL
from hedgerow.simulate.replay import ReplayTarget

EULER = 0.5772156649015329                 # mean of a standard Gumbel variable
BLOCK = "block"


class StandIn:
    """Answers from the trace's rows with Gumbel noise of scale σ = 1 / quality − 1 on their logits.

    So its favourite token is a draw from the target's law at temperature σ: quality 1 knows the law, 0.5 draws the
    favourite from it, near 0 guesses. The noise is keyed by position and token: asked again, it answers the same.

    `autoregressive`: after a node on the recorded text, the row recorded there; off it, the row recorded for exactly
    those tokens, or else that of the last time the text had the node's token (where the target assumes rows: the one
    it assumes); without any, nothing. `heads` and
    `block`: the row at the node's depth on the recorded text, whatever the node is, down to `reach`.

    `top_k`, `coupled` and `retrieved` children at temperature 0 are the best of q at temperature 1; all others are
    picked from q as the request's sampling makes it. Only recorded tokens are proposed.
    """

    needs = Needs()
    selections = frozenset(Selection)

    def __init__(self, target: ReplayTarget, kind: str, quality: float, seed: int, reach: int) -> None:
        self.target, self.kind, self.seed = target, kind, seed
        self.sigma = 1.0 / quality - 1.0
        self.reach = reach if kind in ONE_CALL else math.inf
        self._rows: dict[int, list[Row]] = {}

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Start a request."""
        self._rows[slot] = []

    def children(self, asks: Sequence[Ask]) -> Children:
        """Answer every frontier from the recorded rows."""
        count: list[int] = []
        token: list[int] = []
        log_q: list[float] = []
        origin: list[int] = []
        mult: list[int] = []
        aux: dict[str, Any] = {"entropy": [], "margin": [], "confidence": []}
        if self.kind == BLOCK:
            aux[BLOCK] = []
        for slot, frontier, view in asks:
            sampling = _ranked(view.sampling, frontier.selection)
            for node, k in zip(frontier.nodes, frontier.counts, strict=True):
                if self.kind == BLOCK:
                    aux[BLOCK].append(self._table(slot, view, sampling) if node < 0 else [])
                ids, q = self._law(slot, view, view.growth.tokens_to(node), sampling)
                for name, value in zip(("entropy", "margin", "confidence"), _signals(q), strict=True):
                    aux[name].append(value)
                depth = view.growth.depth[node] if node >= 0 else 0
                got = self._pick(slot, ids, q, k, frontier.selection, view, depth, node, frontier.source)
                count.append(len(got[0]))
                token += got[0]
                log_q += got[1]
                mult += got[2]
                origin += [len(self._rows[slot]) - 1] * len(got[0])
        return Children(count, token, log_q, origin, mult, aux)

    def _pick(
        self, slot: int, ids: Int[np.ndarray, " k"], q: Float[np.ndarray, " k"], k: int, selection: Selection,
        view: View, depth: int, node: int, source: int,
    ) -> tuple[list[int], list[float], list[int]]:
        if not selection.drawn and (selection is not Selection.COUPLED or view.sampling.temperature == 0.0):
            best = np.lexsort((ids, -q))[:k]
            best = best[q[best] > 0.0]
            return ids[best].tolist(), np.log(q[best]).tolist(), [1] * len(best)
        row = np.zeros(self.target.info.vocab)
        row[ids] = q
        self._rows[slot].append(row)
        if not np.any(row):
            return [], [], []
        got = pick(row, k, selection, view.rng, view.position + depth + 1, node + 1, source)
        return got.token, got.log_q, got.mult

    def _law(
        self, slot: int, view: View, path: tuple[int, ...], sampling: Sampling
    ) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        """Recorded ids after `path` and their draft law; empty where nothing is known."""
        recording, root = self.target.recording(slot), view.position
        if len(path) >= self.reach:
            known = None
        elif self.kind in ONE_CALL:
            known = recording.on_path.get(root + len(path))
        else:
            known = recording.row(root, path)
            if known is None and self.target.assume:
                known = recording.on_path.get(root + len(path))
            elif known is None:
                known = recording.last_row_of(path[-1], root) if path else None
        if known is None:
            return np.empty(0, np.int64), np.empty(0)
        logits = known.logits.astype(np.float64)
        if self.sigma > 0.0:
            wait = Rng(self.seed, recording.number).noise(known.ids, root + len(path) + 1, Purpose.MODEL, 0)
            logits = logits + self.sigma * (-np.log(wait) - EULER)
        return known.ids, law(logits, sampling)

    def _table(self, slot: int, view: View, sampling: Sampling) -> list[list[float]]:
        """log q of a block's positions, each best first."""
        out: list[list[float]] = []
        while True:
            ids, q = self._law(slot, view, (-1,) * len(out), sampling)
            best = np.lexsort((ids, -q))
            best = best[q[best] > 0.0]
            if not len(best):
                return out
            out.append(np.log(q[best]).tolist())

    def row(self, slot: int, origin: int) -> Row:
        """The q row at an origin. Raises UsageError where the children were not drawn."""
        if not 0 <= origin < len(self._rows.get(slot, [])):
            raise UsageError("a stand-in keeps draft rows for drawn children only; use a rule that needs no q")
        return self._rows[slot][origin]

    def commit(self, slot: int, step: Step) -> None:
        """The step's rows are no longer needed."""
        self._rows[slot] = []

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a fresh reader beside `src`."""
        self._rows[dst] = []

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._rows.pop(slot, None)


def _ranked(sampling: Sampling, selection: Selection) -> Sampling:
    """The sampling behind q: temperature 1 where a greedy request only ranks tokens."""
    return Sampling(temperature=1.0) if sampling.temperature == 0.0 and not selection.drawn else sampling


def _signals(q: Float[np.ndarray, " k"]) -> tuple[float, float, float]:
    """Entropy (nats), log margin of the best two, and the best, of a draft row."""
    best = np.sort(q)[::-1]
    if not len(best) or best[0] == 0.0:
        return 0.0, math.inf, 0.0
    margin = math.log(best[0] / best[1]) if len(best) > 1 and best[1] > 0.0 else math.inf
    return entropy(q), margin, float(best[0])
