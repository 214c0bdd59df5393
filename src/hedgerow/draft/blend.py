"""Suffix matches and recycled rows as one drafter: their evidence is mixed node by node, not merged tree by tree."""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.draft.recycle import recycle_kind
from hedgerow.draft.retrieval import Kind, Retrieval
from hedgerow.draft.suffix import suffix_kind


class BlendDrafter(Retrieval):
    """`SuffixDrafter` and `RecycleDrafter` in one mixture: a child both speak for is surer than by either alone.

    One drafter call a round serves both, and the weights are learned jointly. Our own; the memories cite their papers.
    """

    def __init__(
        self, corpus: Sequence[int] = (), context: int = 2, leftovers: bool = True, tenants: int = 8,
        more: Sequence[Kind] = (),
    ) -> None:
        kinds = [suffix_kind(corpus), recycle_kind(context, leftovers=leftovers), *more]
        super().__init__(kinds, base=3.0, tenants=tenants)
