"""Simulated time: the loop's clock, moved on by what a cost model says every drafter and target call takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hedgerow.core.parts import (
    Ask,
    Capacity,
    Children,
    CostModel,
    Drafter,
    Feats,
    Needs,
    Row,
    RowGroup,
    Step,
    StepShape,
    Target,
    TargetInfo,
    TargetRows,
    Ticket,
)
from hedgerow.core.tree import Selection
from hedgerow.simulate.replay import shown, shown_step

FREE = ("retrieval", "none")               # kinds that look tokens up instead of computing them
ONE_CALL = ("block", "heads")              # kinds that answer every round of a step from one call


@dataclass
class Clock:
    """Seconds since the start of the play; `plain_s` is what the last target call would have taken without drafts.

    Without a cost model it stands still.
    """

    cost: CostModel | None = None
    now: float = 0.0
    plain_s: float = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now

    def ratio(self, rows: int, context: int) -> float:
        """T(rows) / T(1) of one request, at least 1: what a guard asks for."""
        if self.cost is None:
            return 1.0
        tree, plain = StepShape([rows], [context]), StepShape([1], [context], "plain")
        return max(1.0, self.cost.step_s(tree) / self.cost.step_s(plain))


def form_of(groups: Sequence[RowGroup]) -> Literal["plain", "chain", "tree"]:
    """What a batch's step is: a tree if any request's is, a chain if any has drafts, else plain."""
    deepest = [int(g.positions[-1] - g.positions[0]) for g in groups]
    if any(d != len(g.tokens) - 1 for d, g in zip(deepest, groups, strict=True)):
        return "tree"
    return "chain" if any(deepest) else "plain"


@dataclass
class TimedTarget:
    """A target whose decode calls take the time of the cost model; prefill is not timed.

    `context` gives the tokens a group's rows stand behind.
    """

    inner: Target
    clock: Clock
    context: Callable[[RowGroup], int]
    info: TargetInfo = field(init=False)

    def __post_init__(self) -> None:
        self.info = self.inner.info

    def capacity(self) -> Capacity:
        """The inner target's."""
        return self.inner.capacity()

    def acquire(self) -> int:
        """The inner target's."""
        return self.inner.acquire()

    def reuse(self, slot: int, tokens: Sequence[int], needs: Needs, tenant: str = "") -> int:
        """The inner target's."""
        return self.inner.reuse(slot, tokens, needs, tenant)

    def submit(self, groups: Sequence[RowGroup], needs: Needs) -> Ticket:
        """Pass the call on and move the clock. Mutates the clock."""
        cost = self.clock.cost
        if cost is not None and groups[0].kind != "prefill":
            rows, contexts = [len(g.tokens) for g in groups], [self.context(g) for g in groups]
            self.clock.now += cost.step_s(StepShape(rows, contexts, form_of(groups)))
            self.clock.plain_s = cost.step_s(StepShape([1] * len(groups), contexts, "plain"))
        return self.inner.submit(groups, needs)

    def collect(self, ticket: Ticket) -> tuple[TargetRows, list[Feats]]:
        """The inner target's."""
        return self.inner.collect(ticket)

    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """The inner target's."""
        self.inner.commit(slot, rows)

    def fork(self, src: int, dst: int, length: int) -> None:
        """The inner target's."""
        self.inner.fork(src, dst, length)

    def release(self, slot: int) -> None:
        """The inner target's."""
        self.inner.release(slot)


@dataclass
class TimedDrafter:
    """A drafter whose calls take the time of the cost model, by what kind it is.

    Retrieval is free. An autoregressive drafter pays every round, for the nodes it expands. Heads and block drafters
    pay the first round of a step: later ones are answered from it. `calls` counts the paid ones. The drafter is shown
    the features that are known, no others.
    """

    inner: Drafter
    clock: Clock
    kind: str
    calls: int = 0
    needs: Needs = field(init=False)
    selections: frozenset[Selection] = field(init=False)
    _paid: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.needs, self.selections = self.inner.needs, self.inner.selections

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Start a request, with the features that are known."""
        self.inner.begin(slot, tokens, shown(feats), tenant)

    def children(self, asks: Sequence[Ask]) -> Children:
        """Pass the round on and move the clock. Mutates the clock."""
        if self.kind not in FREE:
            charged = [a for a in asks if a.slot not in self._paid]
            if self.kind in ONE_CALL:
                self._paid.update(a.slot for a in charged)
            if charged:
                self.calls += 1
                widest = 1 if self.kind in ONE_CALL else max(len(a.frontier.nodes) for a in charged)
                if self.clock.cost is not None:
                    self.clock.now += self.clock.cost.draft_s(1, widest, len(charged))
        return self.inner.children(asks)

    def row(self, slot: int, origin: int) -> Row:
        """The inner drafter's."""
        return self.inner.row(slot, origin)

    def commit(self, slot: int, step: Step) -> None:
        """Record a step, with the features that are known; the next one pays anew."""
        self._paid.discard(slot)
        self.inner.commit(slot, shown_step(step))

    def fork(self, src: int, dst: int, length: int) -> None:
        """The inner drafter's."""
        self.inner.fork(src, dst, length)

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._paid.discard(slot)
        self.inner.release(slot)
