"""The positional acceptance model as a world: a target and drafters that know nothing but how often each rank is right.

Given that a node was accepted, its r-th child is accepted with probability p[r]; whatever mass is left belongs to a
token that nobody drafts. The rates are those of drafter *and* rule together, so the recipe's own rule is not asked: the
target draws its token and the tree is followed as far as it holds it.

Source: Sequoia (2402.12374) section 3.1.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from hedgerow.core.errors import CapacityError, UsageError
from hedgerow.core.parts import (
    Ask,
    Capacity,
    Children,
    Drafter,
    Feats,
    Needs,
    Row,
    RowGroup,
    Rule,
    Sampling,
    Step,
    TargetInfo,
)
from hedgerow.core.recipe import Built, DraftSource
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Selection
from hedgerow.engine.request import Request
from hedgerow.simulate.clock import ONE_CALL
from hedgerow.simulate.job import Inverted, Job
from hedgerow.topology.expected import Rates, by_depth, check_rates
from hedgerow.verify.match import Match

ENDLESS = 1 << 40
BLOCK = 15                                 # deepest draft of a block drafter or of heads
LEAST = 1e-300                             # a rank that is never right still has a logarithm


@dataclass(frozen=True)
class Positional:
    """A world of endless requests with acceptance rates `p[rank]`, or `p[depth][rank]` (entry 0: children of the root).

    Beyond a table's last row nothing is accepted. `contexts` are the tokens each request stands behind, dealt out in
    turn, constant while it runs: they only set the price of a step. `reach` is the deepest draft of drafters that
    answer a step from one call (block, heads).

    Raises: UsageError for rates that are no probabilities, or a context below 1.

    >>> world = Positional([0.6, 0.3])
    >>> world.laws[0].round(9).tolist()
    [0.6, 0.3, 0.1]
    """

    p: Rates
    contexts: Sequence[int] = (512,)
    reach: int = BLOCK

    def __post_init__(self) -> None:
        check_rates(self.p)
        if not len(self.p) or not all(len(row) for row in self._rows):
            raise UsageError(f"acceptance rates are {self.p}; needed: at least one rate, at every depth")
        if not self.contexts or min(self.contexts) < 1:
            raise UsageError(f"contexts are {list(self.contexts)}; allowed: whole numbers of 1 or more")

    @property
    def _rows(self) -> list[list[float]]:
        return [list(row) for row in self.p] if by_depth(self.p) else [list(self.p)]  # type: ignore[arg-type]

    @property
    def ranks(self) -> int:
        """Most ranks with a rate; token r stands for rank r, token `ranks` for what nobody drafts."""
        return max(len(row) for row in self._rows)

    @property
    def laws(self) -> list[Row]:
        """The target's law after a node at depth 0, 1, …; the last one serves all deeper nodes."""
        other = np.zeros(self.ranks + 1)
        out = []
        for row in self._rows:
            law = other.copy()
            law[: len(row)] = row
            law[-1] = max(0.0, 1.0 - math.fsum(row))
            out.append(law / law.sum())
        if by_depth(self.p):
            other[-1] = 1.0
            out.append(other)
        return out

    def rule(self, rule: Rule) -> Rule:
        """`Match`: acceptance is what the rates say."""
        return Match()

    def jobs(self, batch: int | None, seed: int, rule: Rule) -> list[list[Job]]:
        """One endless request per place in the batch (1 if not given)."""
        sampling = Sampling(temperature=1.0)
        return [[
            Job(Request((0,), max_tokens=ENDLESS, sampling=sampling), Inverted(Rng(seed, i)), context=c)
            for i, c in enumerate(islice(cycle(self.contexts), batch or 1))
        ]]

    def target(self, rule: Rule) -> RankTarget:
        """A fresh target."""
        return RankTarget(self)

    def drafter(self, source: DraftSource, built: Built, seed: int) -> Drafter:
        """Whatever the source is, its stand-in: rank by rank, as the rates say."""
        return RankDrafter(self, source.kind)


@dataclass(frozen=True)
class RankRows:
    """Rows of one call: a row's law depends on its depth below the step's root only."""

    logs: list[Row]
    groups: Sequence[RowGroup]

    def _depth(self, group: int, row: int) -> int:
        positions = self.groups[group].positions
        if self.groups[group].kind == "prefill":
            return 0
        return min(int(positions[row] - positions[0]), len(self.logs) - 1)

    def logits(self, group: int, row: int) -> Row:
        """log p after a row."""
        return self.logs[self._depth(group, row)]

    def argmax(self, group: int) -> Int[np.ndarray, " rows"]:
        """Most likely token of every row, ties to the lowest id."""
        rows = range(len(self.groups[group].tokens))
        return np.array([int(np.argmax(self.logits(group, r))) for r in rows], np.int64)


class RankTarget:
    """The target of a positional world: no text, no memory, a law by depth.

    >>> target = RankTarget(Positional([0.75]))
    >>> slot = target.acquire(); target.commit(slot, [0]); target.info.vocab
    2
    """

    def __init__(self, world: Positional, slots: int = 1 << 12) -> None:
        with np.errstate(divide="ignore"):
            self.logs = [np.log(law) for law in world.laws]
        self.info = TargetInfo(
            name="positional", vocab=world.ranks + 1, max_len=ENDLESS, device="cpu", dtype="float64",
            backend="simulated",
        )
        self._free = deque(range(slots))

    def capacity(self) -> Capacity:
        """Free slots; any number of rows."""
        return Capacity(len(self._free), ENDLESS, self.info.max_len)

    def acquire(self) -> int:
        """A free slot. Raises CapacityError when there is none."""
        if not self._free:
            raise CapacityError("all slots of the simulated target are taken; use a smaller batch")
        return self._free.popleft()

    def reuse(self, slot: int, tokens: Sequence[int], needs: Needs, tenant: str = "") -> int:
        """0: rows cost nothing here."""
        return 0

    def submit(self, groups: Sequence[RowGroup], needs: Needs) -> RankRows:
        """All rows at once."""
        return RankRows(self.logs, groups)

    def collect(self, ticket: Any) -> tuple[RankRows, list[Feats]]:
        """Rows; there are no features."""
        return ticket, [Feats()] * len(ticket.groups)

    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """Nothing is kept."""

    def fork(self, src: int, dst: int, length: int) -> None:
        """Nothing to copy."""

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._free.append(slot)


class RankDrafter:
    """Proposes token r as a node's r-th child with log q = log p[r], whatever selection is asked for.

    `aux` has the entropy, margin and confidence of the rates at that depth; a block drafter adds its table.
    """

    needs = Needs()
    selections = frozenset(Selection)

    def __init__(self, world: Positional, kind: str) -> None:
        rows = [[max(x, LEAST) for x in row] for row in world._rows]
        self._ranks = [list(range(len(row))) for row in rows]
        self._logs = [[math.log(x) for x in row] for row in rows]
        self._repeats = not by_depth(world.p)
        self._reach = world.reach if kind in ONE_CALL else ENDLESS
        self._aux = [_signals(law[:-1]) for law in world.laws]
        self._table = [self._at(d)[1] for d in range(self._reach) if self._at(d)[1]] if kind == "block" else []

    def _at(self, depth: int) -> tuple[list[int], list[float]]:
        """Tokens and log q of the children of a node at a depth."""
        if depth >= self._reach or (not self._repeats and depth >= len(self._logs)):
            return [], []
        at = 0 if self._repeats else depth
        return self._ranks[at], self._logs[at]

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """There is nothing to learn."""

    def children(self, asks: Sequence[Ask]) -> Children:
        """Rank by rank."""
        count: list[int] = []
        token: list[int] = []
        log_q: list[float] = []
        signals: list[tuple[float, float, float]] = []
        table: list[list[list[float]]] = []
        for _, frontier, view in asks:
            depth = view.growth.depth
            for node, k in zip(frontier.nodes, frontier.counts, strict=True):
                at = depth[node] if node >= 0 else 0
                ranks, logs = self._at(at)
                token += ranks[:k]
                log_q += logs[:k]
                count.append(min(k, len(ranks)))
                signals.append(self._aux[min(at, len(self._aux) - 1)])
                table.append(self._table if node < 0 else [])
        entropy, margin, confidence = zip(*signals, strict=True) if signals else ((), (), ())
        aux: dict[str, Any] = {"entropy": entropy, "margin": margin, "confidence": confidence}
        return Children(count, token, log_q, aux=aux | {"block": table} if self._table else aux)

    def row(self, slot: int, origin: int) -> Row:
        """There is none. Raises UsageError."""
        raise UsageError("a positional acceptance model has no draft rows; play a recorded trace to ask a q-aware rule")

    def commit(self, slot: int, step: Step) -> None:
        """There is nothing to learn."""

    def fork(self, src: int, dst: int, length: int) -> None:
        """Nothing to copy."""

    def release(self, slot: int) -> None:
        """Nothing to forget."""


def _signals(p: Float[np.ndarray, " ranks"]) -> tuple[float, float, float]:
    """Entropy (nats), log margin of the best two, and the best, of rates taken as they are."""
    mass = np.sort(p[p > 0.0])[::-1]
    if not len(mass):
        return 0.0, math.inf, 0.0
    entropy = float(-(mass * np.log(mass)).sum())
    return entropy, float(np.log(mass[0] / mass[1])) if len(mass) > 1 else math.inf, float(mass[0])
