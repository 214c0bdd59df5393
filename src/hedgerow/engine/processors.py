"""From raw logits to a request's law, at every node: what may not come yet is barred, then temperature and filters.

The same function serves plain decoding, every node of a tree, and the drafter's rows, so that a feature cannot behave
differently under speculation (law 8). A processor sees how many completion tokens precede the one being drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from hedgerow.core.parts import Sampling
from hedgerow.core.probs import law

Row = Float[np.ndarray, " vocab"]


@dataclass(frozen=True)
class Processors:
    """How one request turns logits into the law of its next token.

    `min_tokens` bars `stop_ids` from the first `min_tokens` completion tokens.

    >>> p = Processors(Sampling(), min_tokens=1, stop_ids=frozenset({1}))
    >>> p(np.array([0.0, 5.0, 1.0]), 0).tolist(), p(np.array([0.0, 5.0, 1.0]), 1).tolist()
    ([0.0, 0.0, 1.0], [0.0, 1.0, 0.0])
    """

    sampling: Sampling
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()

    def plain_greedy(self, completed: int) -> bool:
        """Whether the law is simply the argmax of the raw logits, so that the row need not leave the device."""
        return self.sampling.temperature == 0.0 and not self._bars(completed)

    def logits(self, row: Row, completed: int, ids: Int[np.ndarray, " columns"] | None = None) -> Row:
        """Logits after penalties, biases and bars; the input is not changed. `ids`: the columns' tokens, where not all.
        """
        if not self._bars(completed):
            return row
        out = np.array(row)
        if ids is None:
            out[[i for i in self.stop_ids if i < len(out)]] = -np.inf
        else:
            out[np.isin(ids, list(self.stop_ids))] = -np.inf
        return out

    def __call__(self, row: Row, completed: int, ids: Int[np.ndarray, " columns"] | None = None) -> Row:
        """The law of completion token number `completed` (0-based)."""
        return law(self.logits(row, completed, ids), self.sampling)

    def _bars(self, completed: int) -> bool:
        return completed < self.min_tokens and bool(self.stop_ids)
