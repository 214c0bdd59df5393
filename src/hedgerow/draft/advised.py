"""Retrieval with a learned drafter as one more voice: its word on a node is a vote beside what the memories recall.

The mixture learns online how far to trust each voice at each confidence, so that a drafter that knows a text badly is
outvoted and a memory that knows nothing keeps silent. Where memories are sure the drafter is not even asked.
"""

from __future__ import annotations

import math
import time
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hedgerow.core.parts import Ask, Children, Drafter, Feats, Frontier, Row, Sampling, Step
from hedgerow.core.probs import filtered_ids
from hedgerow.core.tree import ROOT, Selection
from hedgerow.draft.luck import Luck
from hedgerow.draft.mixing import Prior, Vote
from hedgerow.draft.retrieval import Kind, Path, Reader, Retrieval, Taught

EDGES = (0.15, 0.3, 0.5, 0.7, 0.85, 0.95)  # of the drafter's confidence: each range has weights of its own
_LOG_EDGES = tuple(math.log(e) for e in EDGES)
LISTED = 8                                 # tokens of a drafter's row that vote
FADES = 0.999                              # a step, of what a call took: one slow call is not held against it for ever
LUCKY = 64                                 # and among how many these are sought, where the target's noise is known


class _Silent:
    """The reader of a memory that recalls nothing: the drafter's votes come another way."""

    def start(self) -> Any:
        return None

    def follow(self, state: Any, token: int) -> Any:
        return None

    def votes(self, state: Any) -> list[Vote]:
        return []

    def prefill(self, tokens: Sequence[int], rows: Sequence[Taught]) -> None:
        pass

    def learn(self, rows: Sequence[Taught], committed: Sequence[int]) -> None:
        pass

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def finish(self) -> None:
        pass


class _NoMemory:
    def reader(self, tokens: Sequence[int]) -> Reader:
        return _Silent()


def voice(depths: int) -> Kind:
    """The buckets of a learned drafter in a mixture: one for each range of confidence at each of `depths` depths."""
    return Kind(lambda first: _NoMemory(), [Prior(0.8, 3.3)] * (depths * (len(EDGES) + 1)))


def _smoothed(before: float, seconds: float) -> float:
    return seconds if before == 0.0 else before + 0.1 * (seconds - before)


Line = tuple[Path, Sequence[int], Sequence[float]]
"""What a drafter says of the children of a path: tokens, likeliest first, with log q."""


def luckiest(lines: Sequence[Line], luck: Luck, sampling: Sampling) -> list[Line]:
    """Of every line the tokens that the target would draw if its law were the line's, likeliest first."""
    size = max(len(tokens) for _, tokens, _ in lines)
    value = np.full((len(lines), size), -np.inf)
    token = np.zeros((len(lines), size), np.int64)
    for i, (_, tokens, log_q) in enumerate(lines):
        n = len(tokens)
        if sampling.filtered:              # what the target may not draw has no luck
            n = len(filtered_ids(np.array(log_q) - log_q[0], sampling))
        value[i, :n], token[i, :n] = log_q[:n], tokens[:n]
    value += luck.rows([len(path) + 1 for path, _, _ in lines], token)
    best = np.argsort(-value, 1)[:, :LISTED]
    out: list[Line] = []
    for (path, tokens, log_q), row, order in zip(lines, value, best, strict=True):
        kept = order[row[order] > -np.inf].tolist()
        out.append((path, [tokens[i] for i in kept], [log_q[i] for i in kept]))
    return out


@dataclass
class _Asked:
    """What was asked of the drafter in the step under way."""

    calls: int = 0
    paths: set[Path] = field(default_factory=set)


class Advised:
    """`memory` drafts; for up to `calls` rounds of a step `learned` is heard on the frontier as well.

    It is asked about the root, and about nodes below such as it was asked about; not if the memories alone give a child
    of each more than `sure`. A call below the root must pay: its nodes together have at least `least` Σ survival, and
    at least `worth` times what share of a target call such a call takes, as timed here — a call that takes a tenth of
    the target's must find its nodes alive. `memory` must have been made with `voice(calls)` as its last kind.

    Our own composition. Source of the idea to fill a learned tree with retrieved nodes: Graft (2605.20104), which
    merges finished trees instead.
    """

    selections = frozenset({Selection.RETRIEVED, Selection.COUPLED})

    def __init__(
        self, memory: Retrieval, learned: Drafter, calls: int = 3, sure: float = 0.9, least: float = 0.4,
        worth: float = 12.0, clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.memory, self.learned, self.calls = memory, learned, calls
        self.sure, self.least, self.worth, self.clock = sure, least, worth, clock
        self._call_s = self._step_s = 0.0              # a call below the root, a call of the target; 0: not known
        self.needs = memory.needs | learned.needs
        self._first = sum(len(kind.priors) for kind in memory.kinds[:-1])
        self._asked: dict[int, _Asked] = {}

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Start a request in both."""
        self.memory.begin(slot, tokens, feats, tenant)
        self.learned.begin(slot, tokens, feats, tenant)
        self._asked[slot] = _Asked()

    def children(self, asks: Sequence[Ask]) -> Children:
        """One call of the learned drafter for what is unsure in any request; then the mixture answers."""
        wanted: list[Ask] = []
        for ask in asks:
            nodes = self._unsure(ask)
            if nodes:
                listed = LUCKY if self.memory.luck(ask) else LISTED
                frontier = Frontier(nodes, [listed] * len(nodes), ask.frontier.source, Selection.TOP_K)
                wanted.append(Ask(ask.slot, frontier, ask.view))
        if wanted:
            begin = self.clock()
            self._hear(wanted, self.learned.children(wanted))
            if all(ROOT not in ask.frontier.nodes for ask in wanted):
                self._call_s = _smoothed(self._call_s, self.clock() - begin)
        return self.memory.children(asks)

    def _unsure(self, ask: Ask) -> list[int]:
        """Frontier nodes the drafter can say something about; none if the memories are sure of all of them."""
        asked = self._asked[ask.slot]
        if asked.calls >= self.calls:
            return []
        growth = ask.view.growth
        nodes = [
            n for n in ask.frontier.nodes
            if n == ROOT or (growth.tokens_to(n)[:-1] in asked.paths and growth.depth[n] < self.calls)
        ]
        if ROOT not in nodes:
            price = self.worth * self._call_s / self._step_s if self._step_s else 0.0
            if sum([math.exp(growth.score[n]) for n in nodes]) < max(self.least, price):
                return []
        if all(self.memory.surest(ask, growth.tokens_to(n)) > self.sure for n in nodes):
            return []
        return nodes

    def _hear(self, wanted: Sequence[Ask], said: Children) -> None:
        """Hand the drafter's rows to the mixture as votes."""
        at = row = 0
        for ask in wanted:
            asked, growth = self._asked[ask.slot], ask.view.growth
            asked.calls += 1
            luck = self.memory.luck(ask)
            lines: list[tuple[Path, Sequence[int], Sequence[float]]] = []
            for node in ask.frontier.nodes:
                n, path = said.count[row], growth.tokens_to(node)
                row += 1
                asked.paths.add(path)
                if n:
                    lines.append((path, said.token[at : at + n], said.log_q[at : at + n]))
                    at += n
            sure = [log_q[0] for _, _, log_q in lines]
            if luck:
                lines = luckiest(lines, luck, ask.view.sampling)
            for (path, tokens, log_q), top in zip(lines, sure, strict=True):
                bucket = self._first + len(path) * (len(EDGES) + 1) + bisect(_LOG_EDGES, top)
                self.memory.advise(ask.slot, path, (bucket, tokens, log_q))

    def row(self, slot: int, origin: int) -> Row:
        """A mixture has no rows. Raises UsageError."""
        return self.memory.row(slot, origin)

    def commit(self, slot: int, step: Step) -> None:
        """Record a step in both."""
        self.memory.commit(slot, step)
        self.learned.commit(slot, step)
        self._asked[slot] = _Asked()
        self._step_s = _smoothed(self._step_s, step.seconds)
        self._call_s *= FADES

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` tokens of `src` in both."""
        self.memory.fork(src, dst, length)
        self.learned.fork(src, dst, length)
        self._asked[dst] = _Asked()

    def release(self, slot: int) -> None:
        """Forget a slot in both."""
        self.memory.release(slot)
        self.learned.release(slot)
        self._asked.pop(slot, None)
