"""Everything about a step at random: requests, trees, cuts; for runs in which no step is like the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hedgerow.core.parts import (
    Ask,
    Children,
    Feats,
    Frontier,
    Grow,
    GrowSpec,
    Needs,
    Observation,
    Plan,
    Row,
    Sampling,
    Step,
    View,
)
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.engine.request import Request

ROUNDS = 8


@dataclass
class Wild:
    """A policy that expands random nodes, asks a random source for a random count, and ranks nodes at random."""

    rng: np.random.Generator
    selection: Selection
    sources: int
    reads_tokens: bool = False

    @property
    def selections(self) -> frozenset[Selection]:
        """The one selection of its nodes."""
        return frozenset({self.selection})

    def grow(self, view: View, plan: Plan) -> Grow:
        """Up to `ROUNDS` frontiers of up to four nodes."""
        growth, rng = view.growth, self.rng
        asked: set[tuple[int, int]] = set()
        for _ in range(ROUNDS):
            source, left = int(rng.integers(self.sources)), plan.nodes - len(growth)
            open_ = [
                v for v in range(ROOT, len(growth))
                if (source, v) not in asked and (v == ROOT or growth.depth[v] < plan.depth)
            ]
            nodes, counts = list[int](), list[int]()
            for v in rng.permutation(open_)[:4].tolist() if open_ else []:
                counts.append(min(int(rng.integers(1, 5)), left))
                nodes.append(v)
                left -= counts[-1]
                if not left:
                    break
            if nodes and counts[0]:
                asked.update((source, v) for v in nodes)
                yield Frontier(nodes, counts, source, self.selection)
        return growth.tree(range(len(growth)), rng.random(len(growth)).tolist())

    def spec(self) -> GrowSpec | None:
        """None."""
        return None


@dataclass
class Noise:
    """A drafter that answers with random tokens."""

    rng: np.random.Generator
    vocab: int
    needs: Needs = field(default_factory=Needs)
    selections: frozenset[Selection] = frozenset(Selection)

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Nothing to remember."""

    def children(self, asks: Sequence[Ask]) -> Children:
        """As many as were asked for."""
        counts = [c for ask in asks for c in ask.frontier.counts]
        tokens = self.rng.integers(0, self.vocab, sum(counts)).tolist()
        return Children(counts, tokens, [-5.0] * len(tokens))

    def row(self, slot: int, origin: int) -> Row:
        """Every token alike."""
        return np.full(self.vocab, 1.0 / self.vocab)

    def commit(self, slot: int, step: Step) -> None:
        """Nothing to record."""

    def fork(self, src: int, dst: int, length: int) -> None:
        """Nothing to copy."""

    def release(self, slot: int) -> None:
        """Nothing to forget."""


@dataclass
class Varied:
    """A controller that plans and cuts at random, and keeps what the steps were."""

    rng: np.random.Generator
    nodes: int
    looks_ahead: bool = False
    cuts: bool = True
    seen: list[tuple[int, int, int]] = field(default_factory=list)  # batch, rows, committed of every step

    def plan(self, batch: Sequence[View]) -> list[Plan]:
        """0 to `nodes` nodes, depth 1 to 8."""
        return [Plan(int(self.rng.integers(self.nodes + 1)), depth=int(self.rng.integers(1, 9))) for _ in batch]

    def cut(self, trees: Sequence[TokenTree], batch: Sequence[View]) -> list[int]:
        """All of most trees, a random part of the others."""
        return [int(self.rng.integers(t.nodes + 1)) if self.rng.random() < 0.3 else t.nodes for t in trees]

    def observe(self, records: Sequence[Observation]) -> None:
        """Note a step."""
        self.seen.append((len(records), records[0].rows, sum(r.committed for r in records)))


def requests(rng: np.random.Generator, vocab: int, longest: int, most_tokens: int = 64) -> Iterator[Request]:
    """Requests without end: the first `longest`, so that memory is touched early; half of them begin alike."""
    common = rng.integers(0, vocab, longest)
    while True:
        length = int(np.exp(rng.uniform(np.log(4), np.log(longest)))) if rng.random() < 0.97 else longest
        shared = int(rng.integers(length)) if rng.random() < 0.5 else 0
        prompt = [*common[:shared].tolist(), *rng.integers(0, vocab, length - shared).tolist()]
        yield Request(
            tuple(prompt), max_tokens=int(rng.integers(1, most_tokens + 1)), ignore_eos=True,
            sampling=Sampling(float(rng.choice([0.0, 0.8]))), seed=int(rng.integers(1 << 30)),
        )
