"""Scripted parts for engine tests: a drafter that proposes the tree we dictate, laws we dictate, small tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hedgerow.control.controller import Fixed
from hedgerow.core.parts import (
    Ask,
    Children,
    Controller,
    Feats,
    Frontier,
    Grow,
    GrowSpec,
    Needs,
    Plan,
    Policy,
    Row,
    RowGroup,
    Sampling,
    Step,
    View,
)
from hedgerow.core.tree import ROOT, Selection
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request, Running
from hedgerow.engine.scheduler import Scheduler
from hedgerow.target.table import TableLaw, TableTarget, TableTicket
from hedgerow.verify.match import Match

Dictated = dict[int, Any]                              # token -> what hangs below it, in draw order
Script = Callable[[Sequence[int]], Dictated]           # all tokens so far, the root last -> the tree below it


def chain(tokens: Sequence[int]) -> Dictated:
    """A tree of width 1."""
    out: Dictated = {}
    for t in reversed(tokens):
        out = {t: out}
    return out


@dataclass
class Scripted:
    """A drafter that answers with the tree a script dictates, and logs every call it gets.

    `text[slot]` is what it was told: prompt, first token, committed tokens.
    """

    script: Script
    needs: Needs = field(default_factory=Needs)
    selections: frozenset[Selection] = frozenset(Selection)
    fail: Callable[[str, int], None] = lambda what, slot: None    # called first in every method; may raise
    text: dict[int, list[int]] = field(default_factory=dict)
    tenants: dict[int, str] = field(default_factory=dict)
    calls: list[list[int]] = field(default_factory=list)          # slots of every `children` call
    steps: list[tuple[int, Step]] = field(default_factory=list)

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        self.fail("begin", slot)
        assert slot not in self.text, "begun twice without a release"
        self.text[slot], self.tenants[slot] = list(tokens), tenant

    def children(self, asks: Sequence[Ask]) -> Children:
        self.calls.append([a.slot for a in asks])
        count: list[int] = []
        token: list[int] = []
        for slot, frontier, view in asks:
            self.fail("children", slot)
            assert self.text[slot][-1] == view.root and len(self.text[slot]) == view.position + 1
            tree = self.script(self.text[slot])
            for node, asked in zip(frontier.nodes, frontier.counts, strict=True):
                below = tree
                for t in view.growth.tokens_to(node):
                    below = below[t]
                children = list(below)[:asked]
                count.append(len(children))
                token += children
        return Children(count, token, [-1.0] * len(token))

    def row(self, slot: int, origin: int) -> Row:
        raise AssertionError("match rules need no q")

    def commit(self, slot: int, step: Step) -> None:
        self.fail("commit", slot)
        self.steps.append((slot, step))
        assert self.text[slot][-1] == step.root and len(self.text[slot]) == step.position + 1
        self.text[slot] += step.verdict.committed(step.tree)

    def fork(self, src: int, dst: int, length: int) -> None:
        self.text[dst] = self.text[src][:length]

    def release(self, slot: int) -> None:
        self.fail("release", slot)
        del self.text[slot], self.tenants[slot]


@dataclass(frozen=True)
class Levels:
    """A policy that takes all a drafter has, level by level, up to the plan's caps."""

    fanout: int = 64
    source: int = 0
    selection: Selection = Selection.RETRIEVED
    selections: frozenset[Selection] = frozenset(Selection)
    reads_tokens = False

    def grow(self, view: View, plan: Plan) -> Grow:
        nodes: list[int] = []
        level, depth = [ROOT], 0
        while level and depth < plan.depth and len(nodes) < plan.nodes:
            width = min(plan.width, plan.nodes - len(nodes))
            got = yield Frontier(level, [min(self.fanout, width)] * len(level), self.source, self.selection)
            level, depth = list(got.ids)[:width], depth + 1
            nodes += level
        return view.growth.tree(nodes, [1.0 / (1 + v) for v in nodes])

    def spec(self) -> GrowSpec | None:
        return None


@dataclass
class Counted(TableTarget):
    """A table target that checks the engine: calls, rows, positions, nothing pending twice."""

    def __init__(self, law: TableLaw, **options: Any) -> None:
        super().__init__(law, **options)
        self.groups: list[list[RowGroup]] = []

    def submit(self, groups: Sequence[RowGroup], needs: Needs) -> TableTicket:
        self.groups.append(list(groups))
        return super().submit(groups, needs)

    @property
    def step_calls(self) -> int:
        """Calls after prefill."""
        return sum(all(g.kind == "tree" for g in call) for call in self.groups)


def one_hot(rows: dict[tuple[int, ...], int], vocab: int, rest: int = 0) -> TableLaw:
    """A law that is certain of its next token: `rows` maps contexts to it, any other context leads to `rest`."""
    eye = np.eye(vocab)
    return TableLaw.of({(): eye[rest], **{c: eye[t] for c, t in rows.items()}})


def continuation(law: TableLaw, text: Sequence[int], depth: int) -> list[int]:
    """The `depth` most likely tokens after a text, one after the other."""
    out: list[int] = []
    for _ in range(depth):
        out.append(int(np.argmax(law([*text, *out]))))
    return out


def top_tree(law: TableLaw, text: Sequence[int], counts: Sequence[int], skip: int = 0) -> Dictated:
    """The `counts[0]` most likely tokens after a text (but the first `skip`), below each `counts[1]`, and so on."""
    if not counts:
        return {}
    best = np.argsort(-law(text), kind="stable")[skip : skip + counts[0]]
    return {int(t): top_tree(law, [*text, int(t)], counts[1:], skip) for t in best}


def guess(law: TableLaw, counts: Sequence[int] = (2, 1, 1), skip: int = 0) -> Script:
    """A script that drafts the law's own favourites."""
    return lambda text: top_tree(law, text, counts, skip)


def engine(
    target: TableTarget, script: Script | None = None, nodes: int = 15, *, policy: Policy | None = None,
    controller: Controller | None = None, drafters: Sequence[Any] | None = None, **options: Any,
) -> Loop:
    """A loop over a scripted drafter (or none) and the match rule."""
    if drafters is None:
        drafters = [Scripted(script)] if script else []
    nodes = nodes if drafters else 0
    return Loop(target, drafters, policy or Levels(), Match(), controller or Fixed(nodes, guard=False), **options)


def run(loop: Loop, requests: Sequence[Request], batch: int = 8, tokenizer: Any = None) -> list[Running]:
    """Every request to its end; nothing may be left behind."""
    scheduler = Scheduler(loop, tokenizer, batch)
    done = scheduler.run(requests)
    assert_clean(loop, scheduler)
    return done


def assert_clean(loop: Loop, scheduler: Scheduler | None = None) -> None:
    """No slot, text or pending row is left in any part."""
    target = loop.target
    assert isinstance(target, TableTarget)
    assert not target._text and not target._pending and sorted(target._free) == list(range(len(target._free)))
    assert all(not d.text for d in loop.drafters if isinstance(d, Scripted))
    assert scheduler is None or not (scheduler.running or scheduler.waiting)


def ids(done: Sequence[Running]) -> list[list[int]]:
    """Token ids of every request."""
    return [r.finish.ids for r in done]


def ask(*prompt: int, temperature: float = 0.0, **options: Any) -> Request:
    """A request on a table: end-of-sequence ids count unless they are ignored."""
    law = {k: options.pop(k) for k in ("top_k", "top_p", "min_p") if k in options}
    return Request(prompt=prompt, sampling=Sampling(temperature, **law), **options)


@dataclass(frozen=True)
class Pieces:
    """A byte-level tokenizer: token i is `pieces[i]`; a special token has none. Text is decoded as real ones do."""

    pieces: tuple[bytes, ...]
    eos: frozenset[int] = frozenset()

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")

    def encode(self, text: str) -> list[int]:
        """Greedy, longest piece first."""
        data, out = text.encode(), []
        while data:
            fits = [i for i, p in enumerate(self.pieces) if p and data.startswith(p)]
            if not fits:
                raise ValueError(f"no piece begins {data!r}")
            out.append(max(fits, key=lambda i: len(self.pieces[i])))
            data = data[len(self.pieces[out[-1]]) :]
        return out

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.encode("".join(m["content"] for m in messages))


def letters(text: str, special: int = 0) -> Pieces:
    """One token a character, then `special` tokens without text, which end a text."""
    n = len(text)
    return Pieces((*(c.encode() for c in text), *[b""] * special), frozenset(range(n, n + special)))


@dataclass
class Peeking(Fixed):
    """A `Fixed` controller that keeps what it was shown."""

    seen: list[Any] = field(default_factory=list)

    def observe(self, step: Sequence[Any]) -> None:
        self.seen.append(list(step))
        super().observe(step)
