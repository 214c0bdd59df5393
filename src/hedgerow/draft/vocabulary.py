"""Two vocabularies side by side: which of a drafter's tokens are which of the target's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from hedgerow.core.errors import ModelError


@dataclass(frozen=True)
class Words:
    """`reads[t]` is what the drafter is shown for the target's token t; its column `columns[i]` is token `ids[i]`.

    `ids` rise, so that ties go to the lowest id of the target.
    """

    reads: Int[np.ndarray, " target_vocab"]
    columns: Int[np.ndarray, " shared"]
    ids: Int[np.ndarray, " shared"]


def same(vocab: int, drafted: int) -> Words | None:
    """One vocabulary under both models, which may be padded differently; None where nothing is to be done."""
    if vocab == drafted:
        return None
    both = np.arange(min(vocab, drafted))
    return Words(np.minimum(np.arange(vocab), drafted - 1), both, both)


def matched(target: Mapping[str, int], draft: Mapping[str, int], vocab: int, drafted: int, unknown: int = 0) -> Words:
    """Tokens of equal text are one token; the others are never drafted, and read as the drafter's `unknown`.

    `vocab` and `drafted` are the sizes of the two models' outputs.

    Raises: ModelError where no token has its like.

    >>> words = matched({"a": 0, "b": 1, "c": 2}, {"c": 0, "a": 1}, vocab=3, drafted=2)
    >>> words.reads.tolist(), words.columns.tolist(), words.ids.tolist()
    ([1, 0, 0], [1, 0], [0, 2])
    """
    pairs = sorted((i, draft[t]) for t, i in target.items() if i < vocab and draft.get(t, drafted) < drafted)
    if not pairs:
        raise ModelError("the drafter's tokenizer has no token of the target's: it cannot draft for it")
    ids, columns = (np.array(x, np.int64) for x in zip(*pairs, strict=True))
    reads = np.full(vocab, unknown, np.int64)
    reads[ids] = columns
    return Words(reads, columns, ids)


def words_of(target: Mapping[str, int], draft: Mapping[str, int], vocab: int, drafted: int) -> Words | None:
    """How a drafter's vocabulary is read: as it is where every id has the same text under both, else matched.

    >>> words_of({"a": 0, "b": 1}, {"b": 1, "a": 0}, 2, 2) is None
    True
    """
    return same(vocab, drafted) if dict(target) == dict(draft) else matched(target, draft, vocab, drafted)
