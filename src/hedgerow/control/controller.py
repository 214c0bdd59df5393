"""How much is worth it now: fixed sizes with a guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hedgerow.core.parts import Observation, Plan, View
from hedgerow.core.tree import TokenTree

REMEMBERED = 4096  # requests with a history


@dataclass
class History:
    """What a guard remembers of one request."""

    tokens_per_step: float          # running mean over drafted steps
    rest: int = 0                   # plain steps left before the next probe
    backoff: int = 0                # how often in a row probing has failed


@dataclass
class Fixed:
    """The same caps at every step, and a guard: no drafting while a request's recent τ is below what it costs.

    A drafted step pays when τ > T(rows) / T(plain). `price()` returns that ratio for the rows of a full tree (seconds
    over seconds; 1 where nothing is known yet). A request whose running τ falls below `price() × margin` rests for
    `rest` plain steps, then probes; each failed probe doubles the rest, up to `rest × 8`.

    `plan` and `cut` never read what this step's drafting produced, so any rule is exact under it.
    """

    nodes: int
    depth: int = 1 << 30
    width: int = 1 << 30
    source: int | None = None
    guard: bool = True
    price: Callable[[], float] = lambda: 1.0
    margin: float = 1.0
    memory: float = 0.85            # weight of the past in the running τ
    rest: int = 8
    looks_ahead: bool = False
    cuts: bool = False
    reason_off: str = "nodes is 0: plain decoding was asked for"
    _seen: dict[int, History] = field(default_factory=dict)

    @property
    def steady(self) -> bool:
        """Whether plans do not depend on measured seconds: then a seed repeats a text under q-aware rules too."""
        return not self.guard

    def plan(self, batch: Sequence[View]) -> list[Plan]:
        """The fixed caps, or none for requests whose drafts have not paid lately."""
        return [self._plan(view) for view in batch]

    def _plan(self, view: View) -> Plan:
        if self.nodes <= 0:
            return Plan(0, reason=self.reason_off)
        past = self._seen.get(view.request)
        if self.guard and past and past.rest > 0:
            needed = f"{self.price() * self.margin:.2f} needed to pay"
            return Plan(0, reason=f"guard: {past.tokens_per_step:.2f} tokens per step lately, {needed}")
        return Plan(self.nodes, self.depth, self.width, self.source, probe=bool(past and past.backoff))

    def cut(self, trees: Sequence[TokenTree], batch: Sequence[View]) -> list[int]:
        """Everything that was drafted."""
        return [tree.nodes for tree in trees]

    def observe(self, step: Sequence[Observation]) -> None:
        """Update each request's running τ and decide who rests. Mutates the history only.

        A step whose tree was empty cost what a plain one does and is not counted, even if it was meant to be drafted.
        """
        if not self.guard:
            return
        for seen in step:
            if seen.finished:
                self._seen.pop(seen.request, None)
                continue
            needed = self.price() * self.margin
            past = self._seen.setdefault(seen.request, History(2.0 * self.price()))
            if past.rest > 0:
                past.rest -= 1
                if not past.rest:
                    past.tokens_per_step = needed       # a probe that pays once brings drafting back
                continue
            if not seen.tree.nodes:
                continue
            past.tokens_per_step = self.memory * past.tokens_per_step + (1 - self.memory) * seen.committed
            if past.tokens_per_step < needed:
                past.rest = self.rest * 2 ** min(past.backoff, 3)
                past.backoff += 1
            elif past.tokens_per_step > 1.1 * needed:
                past.backoff = 0
        while len(self._seen) > REMEMBERED:             # requests that were cancelled never finish
            self._seen.pop(next(iter(self._seen)))
