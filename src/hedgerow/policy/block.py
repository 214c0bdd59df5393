"""Trees over block drafters: one pass gives the law of every position, the same for all parents.

Shape and order then follow from a table `log_q[depth][rank]` (depth 0: children of the root; ranks by falling log q)
before any node is drafted: a builder turns the table into a list of nodes, and the list is filled.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hedgerow.core.parts import Frontier, Grow, GrowSpec, Plan, View
from hedgerow.core.tree import ROOT, Selection
from hedgerow.policy.fixed import fill
from hedgerow.policy.layerwise import refuse_drawn
from hedgerow.policy.parts import Stop
from hedgerow.policy.stop import ANY, Budget

Table = Sequence[Sequence[float]]                       # log q by depth and rank


class Ranks(NamedTuple):
    """Nodes as lists: parent (-1 = root, else earlier), rank below it, log survival; in the builder's order."""

    parent: list[int]
    rank: list[int]
    score: list[float]

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """0-based rank path of every node."""
        out: list[tuple[int, ...]] = []
        for p, r in zip(self.parent, self.rank, strict=True):
            out.append((*(out[p] if p >= 0 else ()), r))
        return out


Builder = Callable[[Table, int, int], Ranks]            # table, most nodes, most nodes a depth -> nodes


def best_ranks(table: Table, nodes: int, width: int = ANY) -> Ranks:
    """The `nodes` best prefixes of a table of position log-probabilities, best first, by a heap in O(n log n).

    A popped node offers its next sibling and its first child, so every prefix is reached once; what does not fit the
    width is passed over with all below and after it.

    Source: DDTree (2604.12989) Algorithm 1.

    >>> best_ranks([[-0.5, -1.0], [-0.2, -2.0]], 3).paths
    [(0,), (0, 0), (1,)]
    """
    parents: list[int] = []
    ranks: list[int] = []
    scores: list[float] = []
    if not table or not table[0] or nodes < 1:
        return Ranks(parents, ranks, scores)
    sizes = [len(row) for row in table]
    last = len(table) - 1
    room = [width] * len(table)
    push, replace, pop = heapq.heappush, heapq.heapreplace, heapq.heappop
    heap: list[tuple[float, int, int, int, int]] = [(-table[0][0], 0, 0, ROOT, 0)]
    tick = 0                                            # ties: shallower, then the one offered earlier
    while heap and len(scores) < nodes:
        minus, depth, _, parent, rank = heap[0]
        if not room[depth]:
            pop(heap)
            continue
        room[depth] -= 1
        node = len(scores)
        parents.append(parent)
        ranks.append(rank)
        scores.append(-minus)
        row = table[depth]
        if rank + 1 < sizes[depth]:
            tick += 1
            replace(heap, (minus + row[rank] - row[rank + 1], depth, tick, parent, rank + 1))
        else:
            pop(heap)
        if depth < last and sizes[depth + 1]:
            tick += 1
            push(heap, (minus - table[depth + 1][0], depth + 1, tick, node, 0))
    return Ranks(parents, ranks, scores)


@dataclass(frozen=True)
class Families:
    """A builder that pops the best node and adds all its children at once, up to `fanout(depth, margin)` of them.

    The margin of a position is log q_1 − log q_2. Nodes come in order of addition. Worse than `best_ranks` at equal
    size: weak siblings come before better nodes elsewhere.

    Source: JetSpec (2606.18394), public builder accum_logp and its variants.

    >>> Families(lambda depth, margin: 2)([[-0.5, -1.0], [-0.2, -2.0]], 3).paths
    [(0,), (1,), (0, 0)]
    """

    fanout: Callable[[int, float], int]

    def __call__(self, table: Table, nodes: int, width: int = ANY) -> Ranks:
        """Nodes in order of addition."""
        out = Ranks([], [], [])
        room = [width] * len(table)
        heap: list[tuple[float, int, int]] = [(0.0, 0, ROOT)]   # (−score, depth, node)
        while heap and len(out.rank) < nodes:
            minus, depth, node = heapq.heappop(heap)
            if depth == len(table):
                continue
            row = table[depth]
            margin = row[0] - row[1] if len(row) > 1 else math.inf
            for rank, log_q in enumerate(row[: max(0, self.fanout(depth, margin))]):
                if len(out.rank) == nodes or not room[depth]:
                    break
                room[depth] -= 1
                heapq.heappush(heap, (minus - log_q, depth + 1, len(out.rank)))
                out.parent.append(node)
                out.rank.append(rank)
                out.score.append(log_q - minus)
        return out


@dataclass(frozen=True)
class Constant:
    """Fan-out `k` everywhere.

    Source: JetSpec (2606.18394), accum_logp, k = 7.
    """

    k: int

    def __call__(self, depth: int, margin: float) -> int:
        """k."""
        return self.k


@dataclass(frozen=True)
class GapFanout:
    """Fan-out max(1, round(k · σ(−beta (margin − middle)))), margin = log q_1 − log q_2: wide where the draft wavers.

    Source: JetSpec (2606.18394), top2gap_fanout, beta = middle = 1.

    >>> [GapFanout(8)(0, g) for g in (0.0, 1.0, 9.0)]
    [6, 4, 1]
    """

    k: int
    beta: float = 1.0
    middle: float = 1.0

    def __call__(self, depth: int, margin: float) -> int:
        """Between 1 and k."""
        x = self.beta * (margin - self.middle)
        return max(1, round(self.k / (1.0 + math.exp(min(x, 700.0)))))


@dataclass(frozen=True)
class HistogramFanout:
    """Fan-out = number of ranks whose profiled acceptance at that depth is at least `floor`.

    `acceptance[depth][rank]`; depths beyond the profile get the last row.

    Source: JetSpec (2606.18394), depth_rank_histogram, floor 0.02.

    >>> HistogramFanout(((0.6, 0.1, 0.01),))(0, 1.0)
    2
    """

    acceptance: tuple[tuple[float, ...], ...]
    floor: float = 0.02

    def __call__(self, depth: int, margin: float) -> int:
        """Ranks worth drafting."""
        row = self.acceptance[min(depth, len(self.acceptance) - 1)]
        return sum(1 for a in row if a >= self.floor)


@dataclass(frozen=True)
class Block:
    """Build the tree from the block's table, then fill it.

    The table comes from `aux["block"]` of the drafter's first answer (rows of log q by depth, for the root), or, where
    there is none, from expanding the most likely chain. `fanout` caps the ranks of a position.

    Source: DDTree (2604.12989) with the defaults; CaDDTree (2606.01813) with `stop=Throughput(…)`; CAST (2610.00321)
    with `fanout=8, stop=Budget(width)`; JetSpec (2606.18394) with `build=Families(…)`.
    """

    build: Builder = best_ranks
    fanout: int = ANY
    stop: Stop = field(default_factory=Budget)
    selection: Selection = Selection.TOP_K
    source: int = 0
    reads_tokens = False

    def __post_init__(self) -> None:
        refuse_drawn("a block tree", self.selection)

    @property
    def selections(self) -> frozenset[Selection]:
        """The one selection of its nodes."""
        return frozenset({self.selection})

    def grow(self, view: View, plan: Plan) -> Grow:
        """The table, then one frontier a level."""
        growth = view.growth
        source = self.source if plan.source is None else plan.source
        fanout = min(self.fanout, plan.nodes, plan.width)
        table: list[list[float]] = []
        known: dict[int, range] = {}
        node, block = ROOT, None
        while block is None and len(table) < plan.depth:
            received = yield Frontier([node], [fanout], source, self.selection)
            ids = known[node] = received.ids
            block = received.children.aux.get("block")
            if not ids:
                break
            table.append(growth.log_q[ids.start : ids.stop])
            node = ids[0]
        if block is not None:
            table = [list(row)[:fanout] for row in block[0][: plan.depth]]  # type: ignore[index]
        ranks = self.build(table, plan.nodes, plan.width)
        order = sorted(range(len(ranks.score)), key=lambda v: -ranks.score[v])
        kept = set(order[: self.stop.cut([math.exp(ranks.score[v]) for v in order])])
        chosen = [v for v in range(len(ranks.score)) if v in kept]
        index = {v: i for i, v in enumerate(chosen)} | {ROOT: ROOT}
        arrival = yield from fill(
            [index[ranks.parent[v]] for v in chosen], [ranks.rank[v] for v in chosen], source, self.selection, known
        )
        return growth.tree(arrival.values(), [math.exp(ranks.score[chosen[i]]) for i in arrival])

    def spec(self) -> GrowSpec | None:
        """Not yet written as data."""
        return None

