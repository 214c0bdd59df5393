"""Which requests begin with the same pages, so that a kernel can read those once for all of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int


class Cluster(NamedTuple):
    """Members whose first `shared` keys are the same; 0 of one alone."""

    members: tuple[int, ...]
    shared: int


def clusters(
    tables: Sequence[Int[np.ndarray, " pages"]], prefixes: Sequence[int], page_len: int, least: int
) -> list[Cluster]:
    """Requests grouped by their first `least` committed keys, rounded up to whole pages, and how many they share.

    `tables`: pages of each request; `prefixes`: its committed keys. Members keep their order, clusters that of their
    first member. Source: DeFT (arXiv 2404.00242) section 3; differs from the paper in having one level.

    >>> clusters([np.array([4, 5, 6]), np.array([9]), np.array([4, 5, 7])], [40, 16, 33], page_len=16, least=20)
    [Cluster(members=(0, 2), shared=32), Cluster(members=(1,), shared=0)]
    """
    first = max(-(-least // page_len), 1)
    found: dict[object, list[int]] = {}
    for i, (table, prefix) in enumerate(zip(tables, prefixes, strict=True)):
        found.setdefault(tuple(table[:first].tolist()) if prefix >= first * page_len else i, []).append(i)
    out = []
    for members in found.values():
        pages = min(prefixes[i] // page_len for i in members)
        same = np.ones(pages, np.bool_)
        for i in members[1:]:
            same &= tables[i][:pages] == tables[members[0]][:pages]
        out.append(Cluster(tuple(members), page_len * int(same.argmin() if not same.all() else pages)))
    return [c if len(c.members) > 1 else Cluster(c.members, 0) for c in out]
