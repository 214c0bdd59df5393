"""Features of rows that were run for an earlier request: a drafter is shown them as if they had been run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch

from hedgerow.core.parts import Feats, Needs


class RowNote(NamedTuple):
    """Where the features of a committed token's row stand: row `row` of `feats`, which hold what `needs` asked for."""

    needs: Needs
    feats: Feats
    row: int


def notes(needs: Needs, feats: Feats, rows: Sequence[int]) -> list[RowNote] | None:
    """A note for each of these rows; None where nothing was asked for.

    >>> notes(Needs(), Feats(), [0, 1]) is None
    True
    """
    return None if needs == Needs() else [RowNote(needs, feats, int(r)) for r in rows]


def answers(needs: Needs) -> Callable[[RowNote | None], bool]:
    """Whether a note has all that `needs` asks for.

    >>> answers(Needs(top_k=4))(RowNote(Needs(top_k=8), Feats(), 0)), answers(Needs(top_k=4))(None)
    (True, False)
    """
    if needs == Needs():
        return lambda note: True

    def enough(note: RowNote | None) -> bool:
        return note is not None and (
            needs.taps in ((), note.needs.taps)
            and note.needs.last_hidden >= needs.last_hidden and note.needs.top_k >= needs.top_k
        )

    return enough


def joined(known: Sequence[RowNote], needs: Needs, new: Feats) -> Feats:
    """Features of known rows, then of new ones, as one group's.

    >>> old = Feats(top_ids=np.array([[5, 6], [7, 8]]), top_logits=np.zeros((2, 2)))
    >>> new = Feats(top_ids=np.array([[9]]), top_logits=np.ones((1, 1)))
    >>> joined([RowNote(Needs(top_k=2), old, 1)], Needs(top_k=1), new).top_ids.tolist()
    [[7], [9]]
    """
    if not known or needs == Needs():
        return new
    k = 0 if new.top_ids is None else new.top_ids.shape[1]
    parts: list[tuple[Feats, list[int]]] = []
    for _, group in groupby(known, key=lambda note: id(note.feats)):
        run = list(group)
        parts.append((run[0].feats, [note.row for note in run]))

    def host(name: str) -> Any:
        return np.concatenate([*(getattr(f, name)[rows, :k] for f, rows in parts), getattr(new, name)])

    def device(name: str, dim: int) -> Any:
        last = getattr(new, name)
        old = [getattr(f, name).index_select(dim, torch.tensor(rows, device=last.device)) for f, rows in parts]
        return torch.cat([*old, last], dim)

    return Feats(
        taps=device("taps", 1) if needs.taps else None, tapped=needs.taps,
        last_hidden=device("last_hidden", 0) if needs.last_hidden else None,
        top_ids=host("top_ids") if needs.top_k else None, top_logits=host("top_logits") if needs.top_k else None,
    )
