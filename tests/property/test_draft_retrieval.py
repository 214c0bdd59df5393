"""Any history of requests: answers stay lawful, twins agree, tenants stay apart, memory stays bounded."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core.parts import Ask, Frontier
from hedgerow.core.tree import Selection
from hedgerow.draft.blend import BlendDrafter
from hedgerow.draft.ngram import NgramDrafter
from hedgerow.draft.recycle import recycle_kind
from hedgerow.draft.retrieval import Retrieval
from hedgerow.draft.suffix import suffix_kind
from tests.unit.draft_kit import Said, chain, feats, step, view

TOKENS = st.integers(0, 5)
SAID = st.dictionaries(TOKENS, st.floats(0.01, 1.0), min_size=1, max_size=4)
MAKERS = {
    "ngram": lambda: NgramDrafter(window=12, matches=3),
    "blend": lambda: Retrieval([suffix_kind(limit=20, window=12), recycle_kind(limit=10)], base=2.0, tenants=2),
    "default": BlendDrafter,
}


@st.composite
def histories(draw: st.DrawFn) -> list[tuple]:
    """Operations on slots 0 to 2 of tenants "a" and "b", each valid where it stands."""
    out: list[tuple] = []
    text: dict[int, list[int]] = {}
    for _ in range(draw(st.integers(1, 12))):
        slot = draw(st.integers(0, 2))
        kind = draw(st.sampled_from(["begin", "step", "step", "step", "ask", "fork", "release"]))
        if kind == "begin" or slot not in text:
            tokens = draw(st.lists(TOKENS, min_size=1, max_size=20))
            rows = draw(st.lists(SAID, min_size=len(tokens) - 1, max_size=len(tokens) - 1))
            text[slot] = list(tokens)
            out.append(("begin", slot, tokens, rows, draw(st.sampled_from("ab"))))
        elif kind == "step":
            committed = draw(st.lists(TOKENS, min_size=1, max_size=3))
            paths = {tuple(committed[:d]) for d in range(1, len(committed))}
            for other in draw(st.lists(st.lists(TOKENS, min_size=1, max_size=3), max_size=2)):
                paths |= {tuple(other[:d]) for d in range(1, len(other) + 1)}
            ordered = sorted(paths, key=lambda p: (len(p), p))
            rows = draw(st.lists(SAID, min_size=len(ordered) + 1, max_size=len(ordered) + 1))
            out.append(("step", slot, text[slot][-1], committed, ordered, rows))
            text[slot] += committed
        elif kind == "ask":
            out.append(("ask", slot, draw(st.lists(TOKENS, max_size=4))))
        elif kind == "fork":
            length = draw(st.integers(1, len(text[slot])))
            dst = (slot + draw(st.integers(1, 2))) % 3
            text[dst] = text[slot][:length]
            out.append(("fork", slot, dst, length))
        else:
            del text[slot]
            out.append(("release", slot))
    return out


def play(drafter: Retrieval, history: list[tuple]) -> list[tuple]:
    """Apply a history and return every answer, root children after each operation included."""
    answers: list[tuple] = []
    live: set[int] = set()

    def ask(slot: int, path: list[int]) -> None:
        growth, node = chain(path)
        frontier = Frontier([node], [4], selection=Selection.RETRIEVED)
        got = drafter.children([Ask(slot, frontier, view(0, slot=slot, growth=growth))])
        answers.append((slot, tuple(path), tuple(got.token), tuple(got.log_q)))

    for kind, slot, *rest in history:
        if kind == "begin":
            tokens, rows, tenant = rest
            drafter.begin(slot, tokens, feats(_laws(rows)), tenant)
            live.add(slot)
        elif kind == "step":
            root, committed, paths, rows = rest
            ask(slot, committed[:1])
            drafter.commit(slot, step(root, committed, paths, _laws(rows)))
        elif kind == "ask":
            ask(slot, rest[0])
        elif kind == "fork":
            drafter.fork(slot, rest[0], rest[1])
            live.add(rest[0])
        else:
            drafter.release(slot)
            live.discard(slot)
        for open_ in sorted(live):
            ask(open_, [])
    return answers


def _laws(rows: list[Said]) -> list[Said]:
    return [{t: w / sum(said.values()) for t, w in said.items()} for said in rows]


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=40, deadline=None)
@given(history=histories())
def test_answers_are_lawful_and_repeatable(name: str, history: list[tuple]) -> None:
    answers = play(MAKERS[name](), history)
    assert answers == play(MAKERS[name](), history)
    for _, _, tokens, log_q in answers:
        assert len(set(tokens)) == len(tokens) <= 4 and all(0 <= t <= 5 for t in tokens)
        assert sum(math.exp(v) for v in log_q) <= 1.0 + 1e-9 and list(log_q) == sorted(log_q, reverse=True)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=40, deadline=None)
@given(history=histories())
def test_no_tenant_sees_what_another_did(name: str, history: list[tuple]) -> None:
    """Playing one tenant's requests alone gives the same answers as playing them among the other's."""
    tenant: dict[int, str] = {}
    owner: list[str] = []
    for kind, slot, *rest in history:
        if kind == "begin":
            tenant[slot] = rest[2]
        if kind == "fork":
            tenant[rest[0]] = tenant[slot]
        owner.append(tenant[slot])
    mixed, alone = MAKERS[name](), {who: MAKERS[name]() for who in "ab"}
    for (kind, slot, *rest), who in zip(history, owner, strict=True):
        _apply(mixed, kind, slot, rest)
        _apply(alone[who], kind, slot, rest)
    for who in "ab":
        probe = [("begin", 9, [0, 1, 2, 3, 0, 1], [{1: 1.0}] * 5, who)]
        probe += [("ask", 9, path) for path in ([], [2], [5, 0])]
        assert play(mixed, probe) == play(alone[who], probe)


def _apply(drafter: Retrieval, kind: str, slot: int, rest: list) -> None:
    if kind == "begin":
        drafter.begin(slot, rest[0], feats(_laws(rest[1])), rest[2])
    elif kind == "step":
        drafter.commit(slot, step(rest[0], rest[1], rest[2], _laws(rest[3])))
    elif kind == "fork":
        drafter.fork(slot, rest[0], rest[1])
    elif kind == "release":
        drafter.release(slot)
