"""Retrieval with a learned drafter as one more voice: its word on a node is a vote beside what the memories recall.

The mixture learns online how far to trust each voice at each confidence, so that a drafter that knows a text badly is
outvoted and a memory that knows nothing keeps silent. Where memories are sure the drafter is not even asked.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hedgerow.core.parts import Ask, Children, Drafter, Feats, Frontier, Row, Step
from hedgerow.core.tree import ROOT, Selection
from hedgerow.draft.mixing import Prior, Vote
from hedgerow.draft.retrieval import Kind, Path, Reader, Retrieval, Taught

EDGES = (0.15, 0.3, 0.5, 0.7, 0.85, 0.95)  # of the drafter's confidence: each range has weights of its own
_LOG_EDGES = tuple(math.log(e) for e in EDGES)
LISTED = 8                                 # tokens of a drafter's row that vote


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


@dataclass
class _Asked:
    """What was asked of the drafter in the step under way."""

    calls: int = 0
    paths: set[Path] = field(default_factory=set)


class Advised:
    """`memory` drafts; for up to `calls` rounds of a step `learned` is heard on the frontier as well.

    It is asked about the root, and about nodes below such as it was asked about; not if the memories alone give a child
    of each more than `sure`, and not if the nodes together have less than `least` Σ survival: a call must pay.
    `memory` must have been made with `voice(calls)` as its last kind.

    Our own composition. Source of the idea to fill a learned tree with retrieved nodes: Graft (2605.20104), which
    merges finished trees instead.
    """

    selections = frozenset({Selection.RETRIEVED})

    def __init__(
        self, memory: Retrieval, learned: Drafter, calls: int = 3, sure: float = 0.9, least: float = 0.4
    ) -> None:
        self.memory, self.learned, self.calls = memory, learned, calls
        self.sure, self.least = sure, least
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
                frontier = Frontier(nodes, [LISTED] * len(nodes), ask.frontier.source, Selection.TOP_K)
                wanted.append(Ask(ask.slot, frontier, ask.view))
        if wanted:
            self._hear(wanted, self.learned.children(wanted))
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
        if sum(math.exp(growth.score[n]) if n != ROOT else 1.0 for n in nodes) < self.least:
            return []
        if all(self.memory.surest(ask.slot, growth.tokens_to(n)) > self.sure for n in nodes):
            return []
        return nodes

    def _hear(self, wanted: Sequence[Ask], said: Children) -> None:
        """Hand the drafter's rows to the mixture as votes."""
        at = row = 0
        for ask in wanted:
            asked, growth = self._asked[ask.slot], ask.view.growth
            asked.calls += 1
            for node in ask.frontier.nodes:
                n, path = said.count[row], growth.tokens_to(node)
                row += 1
                asked.paths.add(path)
                if not n:
                    continue
                tokens, log_q = said.token[at : at + n], said.log_q[at : at + n]
                at += n
                bucket = self._first + len(path) * (len(EDGES) + 1) + bisect(_LOG_EDGES, log_q[0])
                self.memory.advise(ask.slot, path, (bucket, tokens, log_q))

    def row(self, slot: int, origin: int) -> Row:
        """A mixture has no rows. Raises UsageError."""
        return self.memory.row(slot, origin)

    def commit(self, slot: int, step: Step) -> None:
        """Record a step in both."""
        self.memory.commit(slot, step)
        self.learned.commit(slot, step)
        self._asked[slot] = _Asked()

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
