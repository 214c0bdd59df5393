"""A drafter of dialled quality: it knows the target's law and errs as often as it is told to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from hedgerow.core.errors import InvariantError, UsageError
from hedgerow.core.parts import Ask, Children, Feats, Needs, Row, Step, View
from hedgerow.core.probs import entropy
from hedgerow.core.rng import Purpose
from hedgerow.core.select import pick, top_ids
from hedgerow.core.tree import Selection

FAN = 1024                                # coins of one node
LEAST = 1e-12                             # log q of what is never right

Law = Callable[[Sequence[int]], Float[np.ndarray, " vocab"]]


class OracleDrafter:
    """Proposes from the target's own law, spoilt to a quality between 0 (never right) and 1 (always right).

    `law(tokens)` is the law of the token after `tokens`, as the request's processors leave it; `tokens` starts with
    what `begin` was given. For `top_k` and `retrieved` the children are guesses at the law's most likely token: guess r
    is right with probability `quality` if the ones before it were wrong, so log q = log(quality · (1 − quality)^r) is
    exact for a greedy target; wrong guesses are the next likely tokens, and coins keyed by the node's path decide. For
    drawn and coupled children q = quality · p + (1 − quality) · u, where u is p with its tokens shifted by one (token t
    gets the mass of t − 1): `row` returns it, and `core.select` draws from it. `commit` and `begin` mutate the text.

    Raises: UsageError for a quality outside [0, 1] or an origin that is not valid; InvariantError for a slot that was
    not begun.

    >>> from hedgerow.core.parts import Frontier, Sampling
    >>> from hedgerow.core.rng import Rng
    >>> oracle = OracleDrafter(lambda tokens: np.array([0.1, 0.7, 0.2]), quality=1.0)
    >>> oracle.begin(0, [2], Feats())
    >>> view = View(0, slot=0, root=2, position=0, room=9, sampling=Sampling(), rng=Rng(0))
    >>> oracle.children([Ask(0, Frontier([-1], [1]), view)]).token
    [1]
    """

    needs = Needs()
    selections = frozenset(Selection)

    def __init__(self, law: Law, quality: float = 0.8) -> None:
        if not 0.0 <= quality <= 1.0:
            raise UsageError(f"the oracle's quality is {quality}; allowed: 0 (never right) to 1 (always right)")
        self.law = law
        self.quality = quality
        self._text: dict[int, list[int]] = {}
        self._rows: dict[int, dict[int, np.ndarray]] = {}

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Start a request with its prompt and first token."""
        self._text[slot] = [int(t) for t in tokens]
        self._rows[slot] = {}

    def children(self, asks: Sequence[Ask]) -> Children:
        """Answer every frontier; origins are arrival indices of the parents plus one."""
        count: list[int] = []
        token: list[int] = []
        log_q: list[float] = []
        origin: list[int] = []
        mult: list[int] = []
        unsure: list[float] = []
        margin: list[float] = []
        best: list[float] = []
        for slot, frontier, view in asks:
            text = self._slot(slot)
            for node, k in zip(frontier.nodes, frontier.counts, strict=True):
                path = view.growth.tokens_to(node)
                p = np.asarray(self.law([*text, *path]), np.float64)
                q = self.quality * p + (1.0 - self.quality) * np.roll(p, 1)
                self._rows[slot][node + 1] = q
                position = view.position + (view.growth.depth[node] if node >= 0 else 0) + 1
                if frontier.selection in (Selection.TOP_K, Selection.RETRIEVED):
                    tokens, logs, mults = self._guesses(p, k, view, position, path)
                else:
                    picked = pick(q, k, frontier.selection, view.rng, position, node + 1, frontier.source)
                    tokens, logs, mults = picked.token, picked.log_q, picked.mult
                count.append(len(tokens))
                token += tokens
                log_q += logs
                mult += mults
                origin += [node + 1] * len(tokens)
                first, second = q[top_ids(q, 2)].tolist() if len(q) > 1 else (1.0, 0.0)
                unsure.append(entropy(q))
                margin.append(math.log(first / second) if second > 0.0 else math.inf)
                best.append(first)
        aux: dict[str, Sequence[float]] = {"entropy": unsure, "margin": margin, "confidence": best}
        return Children(count, token, log_q, origin, mult, aux)

    def row(self, slot: int, origin: int) -> Row:
        """The mixture q a node's children were drawn from."""
        row = self._rows.get(slot, {}).get(origin)
        if row is None:
            raise UsageError(f"slot {slot} has no draft row {origin}; rows live from the drawing to the next commit")
        return row

    def commit(self, slot: int, step: Step) -> None:
        """Append the committed tokens and forget the rows."""
        self._slot(slot).extend(step.verdict.committed(step.tree))
        self._rows[slot] = {}

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` tokens of `src`."""
        self._text[dst] = self._slot(src)[:length]
        self._rows[dst] = {}

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._text.pop(slot, None)
        self._rows.pop(slot, None)

    def _slot(self, slot: int) -> list[int]:
        text = self._text.get(slot)
        if text is None:
            raise InvariantError(f"slot {slot} was not begun; open slots: {sorted(self._text)}")
        return text

    def _guesses(
        self, p: np.ndarray, k: int, view: View, position: int, path: Sequence[int]
    ) -> tuple[list[int], list[float], list[int]]:
        """Up to `k` tokens, of which guess r is the likeliest one with the dialled probability."""
        right, *others = top_ids(p, k + 1).tolist()
        key = 0
        for token in path:                # a node's coins depend on its path alone, whatever tree it stands in
            key = key * (len(p) + 1) + token + 1
        tokens: list[int] = []
        logs: list[float] = []
        found = False
        for r in range(min(k, len(p))):
            if not found and view.rng.bernoulli(self.quality, position, Purpose.MODEL, key * FAN + r):
                found = True
                tokens.append(right)
            elif others:
                tokens.append(others.pop(0))
            else:
                break
            logs.append(math.log(max(self.quality * (1.0 - self.quality) ** r, LEAST)))
        return tokens, logs, [1] * len(tokens)
