"""Equal growth: every drafting step adds the same number of nodes, so that every tensor shape is fixed in advance."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from hedgerow.core.errors import UsageError
from hedgerow.core.shape import TreeShape
from hedgerow.topology.expected import Rates, check_rates, rates


def equal_growth(p: Rates, width: int, steps: int) -> TreeShape:
    """A shape of `steps` × `width` nodes under the positional model, in order of survival.

    A step adds the most probable child of the deepest level, then the `width` − 1 most probable open nodes anywhere
    (later siblings only after earlier ones); the depth is exactly `steps`, and width 1 gives the chain.

    Raises: UsageError where a step finds fewer than `width` open nodes.

    Source: Yggdrasil (2512.23858) section 4. Differs from the paper in: where the new nodes may attach is not stated
    there; here anywhere, with one node kept for the deepest level.

    >>> equal_growth([0.6, 0.3], width=2, steps=2).level_sizes
    (2, 2)
    """
    check_rates(p)
    value: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 1.0}      # nodes whose children may be added from the next step on
    for step in range(1, steps + 1):
        added: dict[tuple[int, ...], float] = {}
        closed = dict(open_)
        for turn in range(width):
            offers = {}
            for path, s in closed.items():
                row = rates(p, len(path) + 1)
                r = next((r for r in range(len(row)) if (*path, r) not in value), None)
                if r is not None and (turn or len(path) == step - 1):
                    offers[(*path, r)] = s * row[r]
            if not offers:
                raise UsageError(f"step {step} finds {turn} open nodes of {width}; give more ranks or less width")
            best = min(offers, key=lambda path: (-offers[path], len(path), path))
            value[best] = added[best] = offers[best]
        open_.update(added)
    order = sorted(value, key=lambda path: (-value[path], len(path), path))
    return TreeShape.from_paths(order, [value[path] for path in order])


class Growth(NamedTuple):
    """A chosen setting: nodes a step, steps, verified rows, and the speed-up it promises."""

    width: int
    depth: int
    rows: int
    speedup: float


def choose_growth(
    tokens: Callable[[int, int, int], float], draft_s: Callable[[int], float], verify_s: Callable[[int], float],
    widths: Iterable[int], depths: Iterable[int], rows: Iterable[int],
) -> Growth:
    """The setting with most tokens per second relative to plain decoding.

    speed-up = tokens(width, depth, rows) · verify_s(1) / (depth · draft_s(width) + verify_s(rows)).

    Source: Yggdrasil (2512.23858) equation for latency-optimal trees.
    """
    sizes = list(rows)
    depth_list = list(depths)
    settings = [
        Growth(w, d, r, tokens(w, d, r) * verify_s(1) / (d * draft_s(w) + verify_s(r)))
        for w in widths for d in depth_list for r in sizes
    ]
    if not settings:
        raise UsageError("no setting to choose from; give at least one width, one depth and one number of rows")
    return max(settings, key=lambda g: g.speedup)
