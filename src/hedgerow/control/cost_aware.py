"""A cut that pays: verify the nodes whose expected tokens are worth the seconds they add, over the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hedgerow.core.parts import Observation, Plan, View
from hedgerow.core.tree import TokenTree

REMEMBERED = 4096


@dataclass
class Trust:
    """How a request's survivals have fared: accepted and predicted tokens, fading, from an even prior."""

    accepted: float = 2.0
    predicted: float = 2.0
    idle: int = 0                   # steps in a row in which nothing was worth verifying
    rest: int = 0                   # steps left without drafting

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
    steps at a time.

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

    def plan(self, batch: Sequence[View]) -> list[Plan]:
        """The same caps for all that do not rest."""
        return [self._plan(view) for view in batch]

    def _plan(self, view: View) -> Plan:
        if self.nodes <= 0:
            return Plan(0, reason="nodes is 0: plain decoding was asked for")
        trust = self._trust.get(view.request)
        if trust and trust.rest > 0:
            return Plan(0, reason="resting: drafts were not worth verifying lately")
        return Plan(self.nodes)

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
        while len(self._trust) > REMEMBERED:                # requests that were cancelled never finish
            self._trust.pop(next(iter(self._trust)))
