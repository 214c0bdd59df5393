"""A tiny transformer, requests for it, and drafters that stand in for those a user brings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hedgerow.control.controller import Fixed
from hedgerow.core.parts import Ask, Children, Feats, Needs, Row, Sampling, Step
from hedgerow.core.probs import entropy
from hedgerow.core.select import pick
from hedgerow.core.tree import Selection
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request, Running
from hedgerow.engine.scheduler import Scheduler
from hedgerow.target.table import TableLaw
from hedgerow.target.tiny import TinyTarget
from hedgerow.verify.match import Match
from tests.unit.engine_kit import Levels

VOCAB, EOS, MAX_LEN, SLOTS = 20, 7, 40, 8

LAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "T=0.8": {"temperature": 0.8},
    "T=1": {"temperature": 1.0},
    "T=1 filtered": {"temperature": 1.0, "top_k": 8, "top_p": 0.9, "min_p": 0.05},
}


def tiny(**options: Any) -> TinyTarget:
    """fp32, clear margins, small enough for thousands of steps."""
    return TinyTarget(seed=0, vocab=VOCAB, max_len=MAX_LEN, slots=SLOTS, eos=frozenset({EOS}), **options)


def requests(law: str, count: int = 8, **options: Any) -> list[Request]:
    """Prompts of 1 to 15 tokens, some of which repeat themselves; end-of-sequence ends every other one."""
    out = []
    for i in range(count):
        rng = np.random.default_rng(i)
        piece = rng.integers(0, VOCAB, 1 + i % 5).tolist()
        out.append(Request(
            prompt=tuple(piece * (1 + i % 3)), seed=i % 3, sampling=Sampling(**LAWS[law]),
            **{"max_tokens": 10 + i, "ignore_eos": i % 2 == 0, "logprobs": True, **options},
        ))
    return out


class Text(NamedTuple):
    """What must be the same with any tree."""

    ids: list[int]
    reason: str | None
    logprobs: list[float]


def texts(done: Sequence[Running]) -> list[Text]:
    return [Text(r.finish.ids, r.finish.reason, r.logprobs) for r in done]


def run(loop: Loop, asked: Sequence[Request], batch: int) -> list[Running]:
    """All requests to their end, every slot free again."""
    slots = loop.target.capacity().slots
    done = Scheduler(loop, max_batch=batch).run(asked)
    assert loop.target.capacity().slots == slots
    return done


@cache
def plain(law: str, **options: Any) -> tuple[Text, ...]:
    """Plain decoding, one request at a time."""
    loop = Loop(tiny(), [], Levels(), Match(), Fixed(0))
    return tuple(texts(run(loop, requests(law, **options), batch=1)))


def assert_same(done: Sequence[Running], expected: Sequence[Text]) -> None:
    """Tokens and reasons equal, log-probabilities within 1e-5, one each."""
    for got, want in zip(texts(done), expected, strict=True):
        assert got.ids == want.ids and got.reason == want.reason
        assert len(got.logprobs) == len(got.ids)
        np.testing.assert_allclose(got.logprobs, want.logprobs, rtol=0, atol=1e-5)


@cache
def pairs() -> TableLaw:
    """The tiny model's habits, counted over pairs of its own tokens: a drafter's law, right about one time in three."""
    rows = {(t,): np.full(VOCAB, 0.02) for t in range(VOCAB)}
    for law in ("greedy", "T=1"):
        for request, text in zip(requests(law), plain(law), strict=True):
            whole = [*request.prompt, *text.ids]
            for a, b in pairwise(whole):
                rows[a,][b] += 1
    return TableLaw.of({(): np.ones(VOCAB), **rows})


class StandIn:
    """A drafter of any kind: every selection, rows, aux, `needs` if they are told; drafts from a table."""

    selections = frozenset(Selection)

    def __init__(self, law: TableLaw | None = None, needs: Needs | None = None) -> None:
        self.law, self.needs = law or pairs(), needs or Needs()
        self.text: dict[int, list[int]] = {}
        self.rows: dict[int, list[Row]] = {}

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        self.text[slot], self.rows[slot] = list(tokens), []

    def children(self, asks: Sequence[Ask]) -> Children:
        count: list[int] = []
        token: list[int] = []
        log_q: list[float] = []
        origin: list[int] = []
        mult: list[int] = []
        aux: dict[str, list[float]] = {"entropy": [], "margin": [], "confidence": []}
        for slot, frontier, view in asks:
            how = Selection.TOP_K if frontier.selection is Selection.RETRIEVED else frontier.selection
            for node, k in zip(frontier.nodes, frontier.counts, strict=True):
                path = view.growth.tokens_to(node)
                q = view.draw(np.log(self.law([*self.text[slot], *path])), len(path) + 1)
                got = pick(q, k, how, view.rng, view.position + len(path) + 1, node + 1, frontier.source)
                best = np.sort(q)[::-1]
                aux["entropy"].append(entropy(q))
                aux["margin"].append(float(np.log(best[0]) - np.log(max(best[1], 1e-300))))
                aux["confidence"].append(float(best[0]))
                count.append(len(got.token))
                token += got.token
                log_q += got.log_q
                mult += got.mult
                origin += [len(self.rows[slot])] * len(got.token)
                self.rows[slot].append(q)
        return Children(count, token, log_q, origin, mult, aux)

    def row(self, slot: int, origin: int) -> Row:
        return self.rows[slot][origin]

    def commit(self, slot: int, step: Step) -> None:
        assert self.text[slot][-1] == step.root and len(self.text[slot]) == step.position + 1
        self.text[slot] += step.verdict.committed(step.tree)
        self.rows[slot] = []

    def fork(self, src: int, dst: int, length: int) -> None:
        self.text[dst], self.rows[dst] = self.text[src][:length], []

    def release(self, slot: int) -> None:
        del self.text[slot], self.rows[slot]
