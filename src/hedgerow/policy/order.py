"""Putting nodes in order: what every growth shares."""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.core.tree import ROOT, Growth


def admit(growth: Growth, ranked: Sequence[int], nodes: int, width: int) -> list[int]:
    """The first `nodes` of nodes ranked best first, parents before children, at most `width` at one depth.

    What does not fit is passed over with all below it.

    >>> g = Growth()
    >>> _ = g.add([-1], [2], token=[5, 6], log_q=[-0.1, -2.5])
    >>> admit(g, [0, 1], nodes=2, width=1)
    [0]
    """
    if width >= nodes:
        return list(ranked[:nodes])
    parent, depth = growth.parent, growth.depth
    out: list[int] = []
    inside = {ROOT}
    used: dict[int, int] = {}
    for v in ranked:
        if len(out) >= nodes:
            break
        d = depth[v]
        if parent[v] in inside and used.get(d, 0) < width:
            used[d] = used.get(d, 0) + 1
            inside.add(v)
            out.append(v)
    return out
