"""Recording traces with the real engine: a small target, a drafter that learns from features, a run with a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hedgerow.control.controller import Fixed
from hedgerow.core.parts import Ask, Children, Controller, Drafter, Feats, Needs, Row, Sampling, Step, Target
from hedgerow.core.recipe import Built, DraftSource, Recipe
from hedgerow.core.record import StepRecord
from hedgerow.core.tree import Selection
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request, Running
from hedgerow.engine.scheduler import Scheduler
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.target.table import TableLaw, TableTarget
from hedgerow.target.tiny import TinyTarget
from hedgerow.verify.match import Match


class Learner:
    """Proposes the best tokens the target last gave after a token, accepted or not; one memory for all requests."""

    selections = frozenset({Selection.RETRIEVED})

    def __init__(self, top: int) -> None:
        self.needs = Needs(top_k=top)
        self.after: dict[int, list[int]] = {}

    def learn(self, tokens: Sequence[int], feats: Feats) -> None:
        assert feats.top_ids is not None
        for token, row in zip(tokens, feats.top_ids.tolist(), strict=False):
            best = [x for x in row if x >= 0]
            if best:
                self.after[int(token)] = best

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        self.learn(tokens, feats)

    def children(self, asks: Sequence[Ask]) -> Children:
        count, token = [], []
        for _, frontier, view in asks:
            for node, k in zip(frontier.nodes, frontier.counts, strict=True):
                best = self.after.get(view.growth.token[node] if node >= 0 else view.root, [])[:k]
                count.append(len(best))
                token += best
        return Children(count, token, [-0.7 * (i + 1) for c in count for i in range(c)])

    def row(self, slot: int, origin: int) -> Row:
        raise NotImplementedError

    def commit(self, slot: int, step: Step) -> None:
        self.learn([step.root, *step.tree.tokens.tolist()], step.feats)

    def fork(self, src: int, dst: int, length: int) -> None:
        raise NotImplementedError

    def release(self, slot: int) -> None:
        pass


def learner(top: int = 4, nodes: int = 7) -> Recipe:
    """A recipe around `Learner`: deterministic, learning from every verified row and from the prompt's."""

    def make(built: Built) -> Drafter:
        return Learner(top)

    policy = BestFirst(fanout=3, selection=Selection.RETRIEVED)
    return Recipe("learner", 1, "", "", (DraftSource("learner", "retrieval", make),), policy, Match(), nodes)


def tiny(eos: frozenset[int] = frozenset()) -> TinyTarget:
    return TinyTarget(seed=0, vocab=48, eos=eos)


def table(vocab: int = 80, eos: Sequence[int] = ()) -> TableTarget:
    """More tokens than a trace keeps."""
    return TableTarget(TableLaw.random(vocab, 1, seed=1, temperature=0.7), eos=eos)


@dataclass
class Recorded:
    """A run of the engine and the trace it left."""

    path: Path
    records: list[StepRecord] = field(default_factory=list)
    requests: list[Running] = field(default_factory=list)

    @property
    def tau(self) -> float:
        """Σ tokens / Σ steps, the first token being the prefill's."""
        return sum(len(r.finish.ids) - 1 for r in self.requests) / sum(r.steps for r in self.requests)


def run(
    target: Target, recipe: Recipe, path: Path, sampling: Sampling, runs: Sequence[Sequence[int]] = ((24, 40, 31, 12),),
    batch: int = 1, controller: Controller | None = None,
) -> Recorded:
    """Play requests of the given lengths on the engine, run after run with the same drafters, and record a trace."""
    out = Recorded(path)
    source = np.random.default_rng(7)
    with path.open("w", encoding="utf-8") as lines:
        def trace(record: StepRecord) -> None:
            lines.write(record.to_json() + "\n")
            out.records.append(record)

        drafters = [s.make(Built(target.info, target)) for s in recipe.sources if s.make]
        control = controller or (recipe.controller or Fixed)(nodes=recipe.nodes)
        loop = Loop(target, drafters, recipe.policy, recipe.rule, control, trace=trace)
        for lengths in runs:
            prompts = [tuple(source.integers(0, target.info.vocab, 4 + i).tolist()) for i in range(len(lengths))]
            requests = [
                Request(prompt, max_tokens=n, sampling=sampling, seed=i)
                for i, (prompt, n) in enumerate(zip(prompts, lengths, strict=True))
            ]
            out.requests += Scheduler(loop, None, batch).run(requests)
    return out
