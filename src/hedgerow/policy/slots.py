"""Slot trees: best-first growth that is exact with drawn children.

A slot is a child's place before its token is known. Its value is an estimate made from its ancestors' tokens, its
earlier siblings' tokens and the draft row alone; slots are admitted by value, and only then is the token seen. Draws of
a node may be made together and ahead: they stay covered until their slot is admitted.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hedgerow.core.errors import RecipeError
from hedgerow.core.parts import Frontier, Grow, GrowSpec, Plan, View
from hedgerow.core.tree import ROOT, Selection
from hedgerow.policy.parts import Score, SlotValue, Stop
from hedgerow.policy.score import PathProbability, platt
from hedgerow.policy.stop import Budget


@dataclass(frozen=True)
class Remainder:
    """1 − Σ q of the earlier siblings: the chance that the rule gets past all of them.

    Source: DySpec (2410.11744) section 4.1.

    >>> Remainder().value([math.log(0.5), math.log(0.25)], {})
    0.25
    """

    def value(self, drawn: Sequence[float], row: dict[str, Any]) -> float:
        """The mass not yet drawn."""
        return max(0.0, 1.0 - math.fsum(math.exp(x) for x in drawn))


@dataclass(frozen=True)
class LargestLeft:
    """Calibrated survival of the likeliest token not yet drawn: an upper bound of what the slot can bring.

    Read from `row["top"]` (log q of the best tokens, best first); without it from `row["confidence"]`, the largest q,
    capped by the mass left.

    Source: TreeSpark (2609.22098), sampled trees.
    """

    slope: float = 0.6684
    offset: float = -0.4587

    def value(self, drawn: Sequence[float], row: dict[str, Any]) -> float:
        """p̂ of the largest undrawn q."""
        mass = 1.0 - math.fsum(math.exp(x) for x in drawn)
        left = list(row.get("top", ()))
        for x in drawn:
            twin = min(left, key=lambda y: abs(y - x), default=math.inf)
            if abs(twin - x) < 1e-9:
                left.remove(twin)
        best = math.exp(left[0]) if left else row.get("confidence", 1.0)
        q = min(best, mass)
        return math.exp(platt(math.log(q), self.slope, self.offset)) if q > 0.0 else 0.0


@dataclass(frozen=True)
class Slots:
    """Admit the most valuable slots one by one; the best open nodes get their `fanout` draws together, `batch` a round.

    `value` prices slots, `score` says what an admitted node is worth to its own slots. The stored survival is the
    slot's value. The stop is asked slot by slot; one that looks ahead is refused.

    Raises: RecipeError for a selection other than `without_replacement` or a deterministic one, or such a stop.

    Source: DySpec (2410.11744) with the defaults, its threshold form with `stop=Threshold(tau)` and a large batch;
    TreeSpark (2609.22098) with `value=LargestLeft(), score=Calibrated(), stop=Threshold(theta, 64)`. Differs from the
    papers in: a node has at most `fanout` children.
    """

    fanout: int = 8
    batch: int = 8
    stop: Stop = field(default_factory=Budget)
    value: SlotValue = field(default_factory=Remainder)
    score: Score = field(default_factory=PathProbability)
    selection: Selection = Selection.WITHOUT_REPLACEMENT
    source: int = 0
    reads_tokens = False

    def __post_init__(self) -> None:
        if self.selection.drawn and self.selection is not Selection.WITHOUT_REPLACEMENT:
            raise RecipeError(
                f"slots are draws without replacement, selection {self.selection.label!r} is not; "
                "allowed: without_replacement, top_k, retrieved, coupled"
            )
        if self.stop.looks_ahead:
            raise RecipeError(
                f"stop {type(self.stop).__name__} looks at nodes beyond the cut, which drawn trees do not allow; "
                "use Budget, Threshold, Price or Throughput(greedy=True)"
            )

    @property
    def selections(self) -> frozenset[Selection]:
        """The one selection of its nodes."""
        return frozenset({self.selection})

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier whenever the best slot's node has no draws yet."""
        growth = view.growth
        source = self.source if plan.source is None else plan.source
        fanout = min(self.fanout, plan.nodes)
        draws: dict[int, range] = {}
        edge: dict[int, float] = {}                     # log survival of every draw; read once admitted
        rows: dict[int, dict[str, Any]] = {}
        reach = {ROOT: 1.0}
        used: dict[int, int] = {}
        heap: list[tuple[float, int, int, int, int]] = [(-1.0, 0, 0, ROOT, 0)]   # (−value, depth, tick, node, slot)
        chosen: list[int] = []
        survival: list[float] = []
        total, tick = 0.0, 0
        while heap and len(chosen) < plan.nodes:
            minus, depth, _, node, slot = heapq.heappop(heap)
            if not self.stop.admits(-minus, len(chosen), total):
                break
            if node not in draws:
                waiting = (x for x in heap if x[3] not in draws and self.stop.admits(-x[0], len(chosen), total))
                wave = [node, *(x[3] for x in heapq.nsmallest(self.batch - 1, waiting))]
                received = yield Frontier(wave, [fanout] * len(wave), source, self.selection)
                start = received.ids.start
                for i, (v, count) in enumerate(zip(wave, received.children.count, strict=True)):
                    draws[v] = range(start, start + count)
                    rows[v] = {name: values[i] for name, values in received.children.aux.items()}
                    start += count
                edge.update(zip(received.ids, self.score.edges(growth, received), strict=True))
            if slot >= len(draws[node]) or used.get(depth + 1, 0) >= plan.width:
                continue
            child = draws[node][slot]
            value = min(-minus, reach[node] * self.value.value(_logs(growth.log_q, draws[node], slot), rows[node]))
            tick += 1
            if value < -minus:                          # it was priced before its row was known: back in line
                heapq.heappush(heap, (-value, depth, tick, node, slot))
                continue
            chosen.append(child)
            survival.append(value)
            total += value
            used[depth + 1] = used.get(depth + 1, 0) + 1
            reach[child] = min(value, reach[node] * math.exp(edge[child]))
            after = reach[node] * self.value.value(_logs(growth.log_q, draws[node], slot + 1), rows[node])
            heapq.heappush(heap, (-min(value, after), depth, tick, node, slot + 1))
            if depth + 1 < plan.depth:
                heapq.heappush(heap, (-reach[child], depth + 1, tick, child, 0))
        return growth.tree(chosen, survival)

    def spec(self) -> GrowSpec | None:
        """Not yet written as data."""
        return None


def _logs(log_q: list[float], ids: range, count: int) -> list[float]:
    return log_q[ids.start : ids.start + count]

