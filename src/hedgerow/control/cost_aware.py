"""A cut that pays: verify the nodes whose expected tokens are worth the seconds they add, over the whole batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hedgerow.core.parts import Observation, Plan, View, Worth
from hedgerow.core.tree import TokenTree

REMEMBERED = 4096
CREDIT = 4.0                        # tokens: most that earlier gains count for


@dataclass
class Trust:
    """How a request's survivals have fared: accepted and predicted tokens, fading, from an even prior."""

    accepted: float = 2.0
    predicted: float = 2.0
    idle: int = 0                   # steps in a row in which nothing was worth verifying
    rest: int = 0                   # steps left without drafting
    credit: float = 2.0             # tokens that drafting gained, less those its seconds would have brought
    losses: int = 0                 # how often in a row the credit was used up

    @property
    def factor(self) -> float:
        """What a survival is multiplied with before it is believed."""
        return min(max(self.accepted / self.predicted, 0.25), 2.0)


@dataclass
class CostAware:
    """Drafts up to `nodes` a request, then verifies the K best nodes of the batch that give most tokens per second.

    K maximises (b + Σ of the K largest survivals) / price(b + K) for b requests; survivals are scaled by how the
    request's earlier ones fared. `price(rows)` is T(rows) / T(1). The scan goes to the end, so steps and inversions of
    the cost are no obstacle. After `patience` steps in which nothing was worth a row, drafting rests, at most `rest`
    steps at a time. It also rests, 1, 2, 4, 8 × `rest` steps, when the seconds of drafting and of the added rows took
    two tokens more from a request (after a rest: one) than the drafts gained.

    It reads what the step drafted, so only match rules are exact under it.

    Source: the marginal rule common to CaDDTree (2606.01813), DSpark (2607.05147) and TETRIS (2502.15197), here for
    trees: since a child never has more survival than its parent, the K best nodes are a prefix of every tree.

    >>> from hedgerow.core.parts import View
    >>> tree = TokenTree.of(tokens=[5, 6, 7], parent=[-1, -1, 0], survival=[0.6, 0.2, 0.01])
    >>> CostAware(nodes=3, price=lambda rows: 1 + 0.1 * (rows - 1)).cut([tree], [None])
    [2]
    """

    nodes: int
    price: Callable[..., float] = lambda rows=1: 1.0
    memory: float = 0.95
    patience: int = 4
    rest: int = 8
    looks_ahead: bool = True
    cuts: bool = True
    _trust: dict[int, Trust] = field(default_factory=dict)
    _unit_s: float = 0.0            # of a plain step, as steps have gone lately: seconds / price
    _slope: tuple[list[float], list[float]] = ([], [])      # prices, and what they say in `slopes`

    def plan(self, batch: Sequence[View]) -> list[Plan]:
        """The same caps for all that do not rest."""
        return [self._plan(view, len(batch) == 1) for view in batch]

    def _plan(self, view: View, alone: bool) -> Plan:
        if self.nodes <= 0:
            return Plan(0, reason="nodes is 0: plain decoding was asked for")
        trust = self._trust.get(view.request)
        if trust and trust.rest > 0:
            return Plan(0, reason="resting: drafts were not worth verifying lately")
        return Plan(self.nodes, worth=self._worth(trust.factor if trust else 1.0) if alone else None)

    def _worth(self, factor: float) -> Worth:
        """Of a request that runs alone: false where no prefix that ends at the node or behind it can be the best.

        With gain A behind k nodes the rate is B = A / price(k), and m more nodes of survival ≤ s give at most A + m s.
        That is no more than B · price(k + m) for every m if s ≤ B · the least mean slope of the price from k on.
        """
        price = [self.price(rows) for rows in range(1, self.nodes + 2)]
        if price != self._slope[0]:
            self._slope = price, slopes(price)
        least, sure = self._slope[1], min(factor, 1.0)

        def worth(survival: float, count: int, total: float) -> bool:
            return min(survival * factor, 1.0) * price[count] > (1.0 + sure * total) * least[count]

        return worth

    def cut(self, trees: Sequence[TokenTree], batch: Sequence[View]) -> list[int]:
        """How many nodes of each tree are worth their rows."""
        requests = len(trees)
        ranked = []
        for r, (tree, view) in enumerate(zip(trees, batch, strict=True)):
            known = self._trust.get(view.request) if view is not None else None
            factor = known.factor if known else 1.0
            ranked += [(-min(s * factor, 1.0), r) for s in tree.survival.tolist()]
        ranked.sort()
        best, best_rate, gained = 0, requests / self.price(requests), float(requests)
        for k, (minus, _) in enumerate(ranked, 1):
            gained -= minus
            rate = gained / self.price(requests + k)
            if rate > best_rate:
                best, best_rate = k, rate
        out = [0] * requests
        for _, r in ranked[:best]:
            out[r] += 1
        return out

    def observe(self, step: Sequence[Observation]) -> None:
        """Compare what was predicted with what was accepted; decide who rests. Mutates the memory of requests only."""
        extra = self._extra(step)
        for seen in step:
            if seen.finished:
                self._trust.pop(seen.request, None)
                continue
            trust = self._trust.setdefault(seen.request, Trust())
            if seen.tree.nodes:
                trust.accepted = self.memory * trust.accepted + len(seen.verdict.path)
                trust.predicted = self.memory * trust.predicted + float(seen.tree.survival.sum())
                trust.idle = 0
            elif seen.plan.nodes:
                trust.idle += 1
                if trust.idle >= self.patience:
                    trust.rest = min(self.rest, trust.idle - self.patience + 1)
            elif trust.rest:
                trust.rest -= 1
            if seen.plan.nodes:
                self._account(trust, len(seen.verdict.path) - extra(seen.tree.nodes))
        while len(self._trust) > REMEMBERED:                # requests that were cancelled never finish
            self._trust.pop(next(iter(self._trust)))

    def _extra(self, step: Sequence[Observation]) -> Callable[[int], float]:
        """What verifying so many nodes of one request and drafting for it cost, in tokens of a plain step's rate.

        Mutates the mean seconds of a plain step.
        """
        rows, batch, base = step[0].rows, step[0].batch, self.price(step[0].batch)
        now = step[0].step_s / self.price(rows)
        self._unit_s = 0.9 * self._unit_s + 0.1 * now if self._unit_s else now
        asked = sum(seen.plan.nodes > 0 for seen in step)
        host = min(step[0].draft_s / self._unit_s, 1.0) / max(asked, 1) if self._unit_s else 0.0    # 1: we were paused
        node = (self.price(rows) - base) / max(rows - batch, 1)
        return lambda nodes: (host + node * nodes) * batch / base

    def _account(self, trust: Trust, gain: float) -> None:
        trust.credit = min(trust.credit + gain, CREDIT)
        if trust.credit < 0.0:
            trust.rest = max(trust.rest, self.rest << min(trust.losses, 3))
            trust.credit, trust.losses = 1.0, trust.losses + 1
        elif trust.credit == CREDIT:
            trust.losses = 0


def slopes(price: Sequence[float]) -> list[float]:
    """For each k the least mean rise of the price from there on, min over m ≥ 1 of (price[k + m] − price[k]) / m.

    >>> slopes([1.0, 3.0, 4.0])
    [1.5, 1.0, inf]
    """
    return [
        min(((p - base) / m for m, p in enumerate(price[k + 1 :], 1)), default=math.inf) for k, base in enumerate(price)
    ]
