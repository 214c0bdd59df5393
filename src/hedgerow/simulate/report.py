"""What a play found: tokens per step, seconds, speed-up, and how they spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hedgerow.core.parts import Controller, Observation, Plan, View
from hedgerow.core.tree import TokenTree
from hedgerow.simulate.clock import Clock
from hedgerow.simulate.replay import ReplayTarget

LEAST_CONTEXT = 128                        # contexts are gathered by doubling sizes from here


@dataclass(frozen=True)
class Slice:
    """The steps of one range of contexts: `tau`, and `speedup` where a cost model was given."""

    context: int                          # from here to its double
    steps: int
    tokens: int
    tau: float
    speedup: float | None


@dataclass(frozen=True)
class Report:
    """The result of a play.

    `tau` is Σ tokens / Σ steps of the requests, `tau_error` its standard error were the steps independent. `calls` are
    target calls, `steps` requests' steps: a call of a batch of b is b steps. `seconds` is the simulated decode time
    (prefill left out) in its parts, `plain_seconds` what plain decoding would have taken for the same tokens at the
    same batch and contexts, `speedup` their ratio; all None without a cost model. `histogram[k]` counts steps that
    accepted k. `known` is the share of verified rows that the trace had; 1 in a positional world.
    """

    recipe: str
    recipe_version: int
    world: str
    tau: float | None
    tau_error: float | None
    requests: int
    calls: int
    steps: int
    tokens: int
    proposed: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_nodes: float | None
    histogram: list[int]
    share: dict[str, float]
    by_context: list[Slice]
    draft_calls: list[int]
    batch: int
    nodes: int
    seed: int
    seconds: dict[str, float] | None = None
    plain_seconds: float | None = None
    speedup: float | None = None
    tok_s: float | None = None
    profile: str | None = None
    known: float = 1.0
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data, every key present, null where not applicable."""
        return asdict(self)


@dataclass
class Tally:
    """Sums over steps."""

    steps: int = 0
    tokens: int = 0
    squares: int = 0
    seconds: float = 0.0
    plain_s: float = 0.0

    def add(self, tokens: int, seconds: float, plain_s: float) -> None:
        """Count one request's step and its share of the batch's time."""
        self.steps += 1
        self.tokens += tokens
        self.squares += tokens * tokens
        self.seconds += seconds
        self.plain_s += plain_s

    @property
    def tau(self) -> float | None:
        """Tokens per step."""
        return self.tokens / self.steps if self.steps else None

    @property
    def error(self) -> float | None:
        """Standard error of τ."""
        if self.steps < 2:
            return None
        mean = self.tokens / self.steps
        return math.sqrt(max(0.0, self.squares / self.steps - mean * mean) / (self.steps - 1))

    @property
    def speedup(self) -> float | None:
        """Plain seconds over seconds."""
        return self.plain_s / self.seconds if self.seconds > 0.0 else None


@dataclass
class Meter:
    """A controller that passes everything on and counts what it sees; `depth` and `width` cap every plan besides.

    A step's time, drafting included, is shared by its requests alike. Plain decoding gains a token a request in
    `clock.plain_s`, so what a request gained is worth tokens × plain_s / batch.
    """

    inner: Controller
    clock: Clock
    context: Callable[[View], int]
    depth: int = 1 << 30
    width: int = 1 << 30
    calls: int = 0
    total: Tally = field(default_factory=Tally)
    slices: dict[int, Tally] = field(default_factory=dict)
    histogram: list[int] = field(default_factory=list)
    forms: dict[str, int] = field(default_factory=lambda: {"plain": 0, "chain": 0, "tree": 0})
    drafted: int = 0
    proposed: int = 0
    accepted: int = 0
    _since: float = 0.0
    _contexts: list[int] = field(default_factory=list)

    @property
    def looks_ahead(self) -> bool:
        """The inner controller's."""
        return self.inner.looks_ahead

    @property
    def cuts(self) -> bool:
        """The inner controller's."""
        return self.inner.cuts

    def plan(self, batch: Sequence[View]) -> list[Plan]:
        """The inner controller's plans under our caps."""
        self._since = self.clock.now
        self._contexts = [self.context(view) for view in batch]
        plans = self.inner.plan(batch)
        return [
            replace(p, depth=min(p.depth, self.depth), width=min(p.width, self.width))
            if p.depth > self.depth or p.width > self.width else p
            for p in plans
        ]

    def cut(self, trees: Sequence[TokenTree], batch: Sequence[View]) -> list[int]:
        """The inner controller's."""
        self.proposed += sum(tree.nodes for tree in trees)
        return self.inner.cut(trees, batch)

    def observe(self, step: Sequence[Observation]) -> None:
        """Count the step and pass it on. Mutates the sums."""
        share = len(step)
        seconds, plain_s = (self.clock.now - self._since) / share, self.clock.plain_s / share
        self.calls += 1
        for seen, context in zip(step, self._contexts, strict=True):
            nodes, accepted = seen.tree.nodes, min(len(seen.verdict.path), seen.committed)
            self.drafted += nodes
            self.accepted += accepted
            self.histogram += [0] * (accepted + 1 - len(self.histogram))
            self.histogram[accepted] += 1
            self.forms[seen.tree.form] += 1
            worth = plain_s * seen.committed
            self.total.add(seen.committed, seconds, worth)
            self.slices.setdefault(_least(context), Tally()).add(seen.committed, seconds, worth)
        self.inner.observe(step)

    def by_context(self) -> list[Slice]:
        """The sums by context, short ones first."""
        return [
            Slice(least, t.steps, t.tokens, t.tokens / t.steps, t.speedup) for least, t in sorted(self.slices.items())
        ]


def _least(context: int) -> int:
    """Where a context's range begins: 0, 128, 256, 512, …"""
    return LEAST_CONTEXT << (context // LEAST_CONTEXT).bit_length() - 1 if context >= LEAST_CONTEXT else 0


@dataclass
class AsRecorded:
    """A controller that plans as many nodes as were planned when the trace was recorded, at steps that the trace has.

    At other steps, and for everything else, the inner controller decides.
    """

    inner: Controller
    target: ReplayTarget

    @property
    def looks_ahead(self) -> bool:
        """The inner controller's."""
        return self.inner.looks_ahead

    @property
    def cuts(self) -> bool:
        """The inner controller's."""
        return self.inner.cuts

    def plan(self, batch: Sequence[View]) -> list[Plan]:
        """The recorded number of nodes, or the inner controller's plan."""
        own = self.inner.plan(batch)
        return [self._as_then(plan, view) for plan, view in zip(own, batch, strict=True)]

    def _as_then(self, plan: Plan, view: View) -> Plan:
        recording = self.target.recording(view.slot)
        nodes, grown = recording.plans.get(view.position), recording.grown.get(view.position, 0)
        if nodes is None:
            return plan
        if not nodes:
            return Plan(0, reason=plan.reason or "rested when recorded")
        kept = replace(plan, nodes=nodes, reason="") if plan.nodes else Plan(nodes)
        return replace(kept, worth=None if grown >= nodes else lambda survival, count, total: count < grown)

    def cut(self, trees: Sequence[TokenTree], batch: Sequence[View]) -> list[int]:
        """The recorded number of nodes, or the inner controller's cut."""
        own = self.inner.cut(trees, batch)
        then = [self.target.recording(view.slot).sizes.get(view.position) for view in batch]
        return [n if size is None else size for n, size in zip(own, then, strict=True)]

    def observe(self, step: Sequence[Observation]) -> None:
        """Passed on."""
        self.inner.observe(step)
