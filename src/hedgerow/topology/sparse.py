"""Sparse shapes: lists of rank paths, shipped or grown from measured rank accuracies."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files

from hedgerow.core.errors import UnknownName, UsageError
from hedgerow.core.shape import TreeShape
from hedgerow.topology.expected import Rates, rates
from hedgerow.topology.optimal import positional_tree

EAGLE1 = (
    "0 1 2 3  00 01 02 10 11 20 21 30  000 001 002 010 011 020 021 100  0000 0001 0002  00000 00001"
)
RECYCLING_LEVELS = (8, 21, 25, 15, 8, 3)
RECYCLING_RATES = (0.42, 0.15, 0.09, 0.06, 0.045, 0.035, 0.03, 0.025)
FALCON_LEVELS = (20, 19, 19, 15, 14, 10, 10, 9)


def medusa_accuracy(model: str = "7b") -> list[list[float]]:
    """Measured accuracies acc[head][rank] of Medusa heads on Vicuna: the chance that the rank-th guess is right.

    Models: 7b, 13b, 33b; five heads, ranks 0-4.

    Source: Medusa (2401.10774), public repository, assets/medusa_acc.csv (Apache-2.0), as differences of its top-k.

    >>> [round(a, 3) for a in medusa_accuracy("7b")[0]]
    [0.56, 0.111, 0.055, 0.033, 0.02]
    """
    table = json.loads(files("hedgerow").joinpath("data/medusa_acc.json").read_text(encoding="utf-8"))["top_k"]
    if model not in table:
        raise UnknownName("accuracy table", model, table)
    return [[b - a for a, b in zip([0.0, *row], row, strict=False)] for row in table[model]]


def medusa_tree(
    acc: Sequence[Sequence[float]], nodes: int = 63, max_depth: int = 5, max_child: int = 10
) -> TreeShape:
    """Grow a tree greedily by the product of head accuracies: acc[head][rank] belongs to children at depth head + 1.

    Source: Medusa (2401.10774) section 2.3.3; defaults of its public search (62 steps after the first node).

    >>> medusa_tree([[0.6, 0.2], [0.5, 0.1]], nodes=3).paths
    ((0,), (0, 0), (1,))
    """
    return positional_tree(acc, nodes, max_depth, max_child)


def eagle1_tree() -> TreeShape:
    """EAGLE-1's static tree: 25 nodes in levels of 4, 8, 8, 3, 2.

    Source: EAGLE (2401.15077) section 4.1, public code.

    >>> eagle1_tree().level_sizes
    (4, 8, 8, 3, 2)
    """
    return TreeShape.from_paths([tuple(map(int, word)) for word in EAGLE1.split()])


def level_tree(sizes: Sequence[int], p: Rates) -> TreeShape:
    """The most probable tree with exactly these level sizes: at each depth the best children of the depth before.

    Raises: UsageError if a level cannot hold its size.

    >>> level_tree([2, 1], [0.6, 0.3]).paths
    ((0,), (0, 0), (1,))
    """
    layer: dict[tuple[int, ...], float] = {(): 1.0}
    value: dict[tuple[int, ...], float] = {}
    for depth, size in enumerate(sizes, 1):
        offers = {(*path, r): s * x for path, s in layer.items() for r, x in enumerate(rates(p, depth))}
        if size > len(offers):
            raise UsageError(f"level {depth} cannot hold {size} nodes; at most {len(offers)} fit below the one before")
        layer = dict(sorted(offers.items(), key=lambda item: (-item[1], item[0]))[:size])
        value.update(layer)
    order = sorted(value, key=lambda path: (-value[path], len(path), path))
    return TreeShape.from_paths(order, [value[path] for path in order])


def recycling_tree() -> TreeShape:
    """Token Recycling's template: 80 nodes in levels of 8, 21, 25, 15, 8, 3, at most 8 children a node.

    Source: Token Recycling (2408.08696). Differs from the paper in: the list is the most probable one of those level
    sizes under fixed rank rates, as the paper's own list is not printed there.
    """
    return level_tree(RECYCLING_LEVELS, RECYCLING_RATES)


def falcon_tree(p: Rates, sizes: Sequence[int] = FALCON_LEVELS) -> TreeShape:
    """Falcon's kind of template: 116 nodes in 8 levels, every two levels from one pass of a block-of-2 drafter.

    `p[depth][rank]` lets the second level of a block have the marginal rates it has.

    Source: Falcon (2412.12639). Differs from the paper in: grown from rates, as its shipped lists repeat paths.
    """
    return level_tree(sizes, p)


def graft_tree(nodes: int, max_depth: int = 6, max_child: int = 9) -> TreeShape:
    """A template for retrieved nodes: level sizes ∝ 1/√depth, a rank-0 chain to the bottom, the rest dealt round-robin.

    What a level cannot hold goes to the deeper ones; fewer nodes come back where the last cannot either.

    Source: Graft (2605.20104). Differs from the paper in: how sizes are rounded (up, level by level).

    >>> graft_tree(6, max_depth=2).level_sizes
    (4, 2)
    """
    weight = [1.0 / math.sqrt(depth) for depth in range(1, max_depth + 1)]
    paths: list[tuple[int, ...]] = []
    layer: list[tuple[int, ...]] = [()]
    for depth in range(max_depth):
        size = math.ceil((nodes - len(paths)) * weight[depth] / sum(weight[depth:]) - 1e-9)
        layer = [(*path, r) for r in range(max_child) for path in layer][:size]
        paths += layer
    return TreeShape.from_paths(paths)


def draft_calls(shape: TreeShape, block: int = 1) -> int:
    """Drafter passes a shape needs when one pass gives `block` levels: ⌈depth / block⌉."""
    return -(-shape.max_depth // block)


def hydra_tree(rank_paths: Iterable[Sequence[int]], nodes: int = 100) -> TreeShape:
    """Grow a tree one node at a time by what it would have accepted on recorded steps.

    A recorded step is the rank path of the true continuation: the rank the drafter gave each true token, up to the
    first it did not offer. A node is worth the share of steps whose path passes through it; a later sibling needs the
    earlier ones. Fewer nodes come back where the records end.

    Source: Hydra (2402.05109) section 5 (procedure; size by `fastest_prefix`).

    >>> hydra_tree([(0, 1), (0,), (1,), (0, 0)], nodes=3).paths
    ((0,), (1,), (0, 0))
    """
    steps = [tuple(path) for path in rank_paths]
    count = Counter(path[:d] for path in steps for d in range(1, len(path) + 1))
    behind: Counter[tuple[int, ...]] = Counter()        # largest count among a path and its later siblings
    for path, c in count.items():
        for r in range(path[-1] + 1):
            behind[(*path[:-1], r)] = max(behind[(*path[:-1], r)], c)
    chosen: list[tuple[int, ...]] = []
    open_: set[tuple[int, ...]] = {(0,)}
    while len(chosen) < nodes:
        best = min(open_, key=lambda path: (-count[path], -behind[path], len(path), path))
        if not behind[best]:
            break
        open_.discard(best)
        chosen.append(best)
        open_ |= {(*best[:-1], best[-1] + 1), (*best, 0)}
    return TreeShape.from_paths(chosen, [count[path] / len(steps) for path in chosen])


def fastest_prefix(
    shape: TreeShape, step_s: Callable[[int], float], draft_call_s: float = 0.0
) -> tuple[int, float]:
    """The number of nodes of a shape that gives most tokens a second, and that rate; sizes 1 … all are timed.

    `step_s(rows)` is a step's time with the root counted; every level costs one draft call.
    """
    best, rate, total = 0, 1.0 / step_s(1), 1.0
    depth = 0
    for n in range(1, shape.nodes + 1):
        total += float(shape.survival[n - 1])
        depth = max(depth, int(shape.depth[n - 1]))
        theta = total / (step_s(n + 1) + depth * draft_call_s)
        if theta > rate:
            best, rate = n, theta
    return best, rate
