"""What a drafter over the target's features has not run yet: pairs of a feature and the token after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int

from hedgerow.core.parts import Feats


def rows_of(feats: Feats, rows: Sequence[int] | slice) -> Feats:
    """The tapped and last hidden states of some rows. A list is copied out, so that the rest can be let go."""
    taps, last = feats.taps, feats.last_hidden
    if isinstance(rows, slice):
        taps, last = None if taps is None else taps[:, rows], None if last is None else last[rows]
    elif (some := taps if taps is not None else last) is not None:
        index = torch.tensor(rows, dtype=torch.int64, device=some.device)
        taps, last = (None if x is None else x.index_select(-2, index) for x in (taps, last))
    return Feats(taps, last, tapped=feats.tapped)


@dataclass
class Lag:
    """Pairs in order of position, piece by piece as they came; the front is run first.

    >>> lag = Lag()
    >>> lag.add(Feats(last_hidden=torch.zeros(3, 2)), [5, 6, 7]); len(lag)
    3
    >>> tokens, features = lag.take(2, lambda feats: feats.last_hidden)
    >>> tokens.tolist(), features.shape, len(lag)
    ([5, 6], torch.Size([2, 2]), 1)
    """

    pieces: deque[tuple[Feats, list[int]]] = field(default_factory=deque)
    rows: int = 0

    def __len__(self) -> int:
        return self.rows

    def add(self, feats: Feats, tokens: Sequence[int]) -> None:
        """Append one pair for each row of `feats`; `tokens` are those that came after the rows."""
        if tokens:
            self.pieces.append((feats, list(tokens)))
            self.rows += len(tokens)

    def take(
        self, most: int, fuse: Callable[[Feats], torch.Tensor]
    ) -> tuple[Int[np.ndarray, " rows"], Float[torch.Tensor, "rows hidden"]]:
        """Remove up to `most` pairs from the front: tokens, and features as `fuse` makes them."""
        tokens: list[int] = []
        features = []
        while self.pieces and len(tokens) < most:
            feats, said = self.pieces.popleft()
            n = min(len(said), most - len(tokens))
            if n < len(said):
                self.pieces.appendleft((rows_of(feats, slice(n, None)), said[n:]))
                feats = rows_of(feats, slice(0, n))
            features.append(fuse(feats))
            tokens += said[:n]
        self.rows -= len(tokens)
        return np.array(tokens, np.int64), features[0] if len(features) == 1 else torch.cat(features)

    def first(self, rows: int) -> Lag:
        """A copy of the first `rows` pairs; features are shared."""
        out = Lag()
        for feats, said in self.pieces:
            n = min(len(said), rows - out.rows)
            out.add(rows_of(feats, slice(0, n)), said[:n])
        return out
