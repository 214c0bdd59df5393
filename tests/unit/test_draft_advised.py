"""A learned drafter as one more voice among memories: when it is asked, what its word does, what stays exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hedgerow.control.cost_aware import CostAware
from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Ask, Children, Feats, Frontier, Needs, Row, Sampling, Step, Verdict, View
from hedgerow.core.rng import Rng
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.draft.advised import EDGES, Advised, voice
from hedgerow.draft.blend import BlendDrafter
from hedgerow.engine.loop import Loop
from hedgerow.engine.scheduler import Scheduler
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.verify.match import Match
from tests.identity.tiny_kit import LAWS, VOCAB, requests, tiny


class Says:
    """Says for every node what a function of its token says; counts its calls and the nodes of each."""

    selections = frozenset(Selection) - {Selection.RETRIEVED}

    def __init__(self, after: Any) -> None:
        self.after, self.asked, self.needs = after, list[list[int]](), Needs(last_hidden=True)
        self.open: set[int] = set()

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        self.open.add(slot)

    def children(self, asks: Sequence[Ask]) -> Children:
        count, token, log_q = [], [], []
        for ask in asks:
            self.asked.append(list(ask.frontier.nodes))
            for node in ask.frontier.nodes:
                last = ask.view.root if node == ROOT else ask.view.growth.token[node]
                said = self.after(last)
                count.append(len(said))
                token += [t for t, _ in said]
                log_q += [q for _, q in said]
        return Children(count, token, log_q)

    def row(self, slot: int, origin: int) -> Row:
        raise UsageError("none")

    def commit(self, slot: int, step: Step) -> None:
        assert slot in self.open

    def fork(self, src: int, dst: int, length: int) -> None:
        self.open.add(dst)

    def release(self, slot: int) -> None:
        self.open.remove(slot)


def next_one(token: int) -> list[tuple[int, float]]:
    return [((token + 1) % VOCAB, -0.2), ((token + 2) % VOCAB, -2.0)]


def advised(after: Any = next_one, calls: int = 3, **options: Any) -> tuple[Advised, Says]:
    learned = Says(after)
    return Advised(BlendDrafter(more=[voice(calls)]), learned, calls, **options), learned


def view_of(slot: int, root: int) -> View:
    return View(0, slot, root, 4, 9, Sampling(), Rng(0))


def ask(view: View, *nodes: int) -> Ask:
    return Ask(view.slot, Frontier(list(nodes), [4] * len(nodes), 0, Selection.RETRIEVED), view)


def grown(drafter: Advised, view: View, *nodes: int) -> range:
    """Ask, and add the answers to the view's growth as the engine does."""
    said = drafter.children([ask(view, *nodes)])
    return view.growth.add(nodes, said.count, said.token, said.log_q)


def test_where_memories_know_nothing_the_drafter_is_heard() -> None:
    drafter, learned = advised()
    drafter.begin(0, [5, 9, 2], Feats())
    view = view_of(0, 2)
    ids = grown(drafter, view, ROOT)
    assert [view.growth.token[v] for v in ids] == [3, 4]
    assert learned.asked == [[ROOT]]
    grown(drafter, view, ids[0])
    assert learned.asked[1:] == [[ids[0]]]
    assert Needs(last_hidden=True) | drafter.memory.needs == drafter.needs


def test_calls_end_after_their_number_and_begin_anew_with_a_step() -> None:
    drafter, learned = advised(calls=2)
    drafter.begin(0, [5, 9, 2], Feats())
    view = view_of(0, 2)
    first = grown(drafter, view, ROOT)
    second = grown(drafter, view, first[0])
    assert not grown(drafter, view, second[0]) and len(learned.asked) == 2


def test_unlikely_nodes_are_not_worth_a_call() -> None:
    drafter, learned = advised(least=0.5)
    drafter.begin(0, [5, 9, 2], Feats())
    view = view_of(0, 2)
    unlikely = grown(drafter, view, ROOT)[1]
    grown(drafter, view, unlikely)
    assert learned.asked == [[ROOT]]


@pytest.mark.parametrize(("target_s", "calls"), [(1.0, 1), (100.0, 2)])
def test_a_call_below_the_root_must_pay_for_its_seconds(target_s: float, calls: int) -> None:
    now = [0.0]
    drafter, learned = advised(least=0.0, worth=10.0, clock=lambda: now[0])
    inner = learned.children

    def slowly(asks: Sequence[Ask]) -> Children:
        now[0] += 0.1 if all(ROOT not in a.frontier.nodes for a in asks) else 9.0
        return inner(asks)

    learned.children = slowly  # type: ignore[method-assign]
    drafter.begin(0, [5, 9, 2], Feats())
    for expected in (2, calls):                             # nothing is known of either at first
        learned.asked.clear()
        view = view_of(0, 2)
        grown(drafter, view, grown(drafter, view, ROOT)[0])
        assert len(learned.asked) == expected
        drafter.commit(0, Step(TokenTree.empty(), Verdict((), 2, "bonus"), Feats(), 2, 4, target_s))


def test_sure_memories_are_enough() -> None:
    drafter, learned = advised(sure=0.0)
    drafter.begin(0, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3], Feats())
    view = view_of(0, 3)
    assert view.growth.token[grown(drafter, view, ROOT)[0]] == 4
    assert not learned.asked


def test_the_mixture_learns_whom_to_trust() -> None:
    """A drafter that is always wrong at the first depth loses its say; one that is right keeps it."""
    def first_survival(after: Any) -> float:
        drafter, _ = advised(after)
        target = tiny()
        loop = Loop(target, [drafter], BestFirst(8, 4, selection=Selection.RETRIEVED), Match(), CostAware(nodes=6))
        Scheduler(loop, None, max_batch=4).run(requests("greedy", 16, max_tokens=20, ignore_eos=True))
        weights = drafter.memory._known[""].mixer
        start = drafter._first
        return max(weights.bias[start : start + len(EDGES) + 1])

    assert first_survival(lambda t: [((t * 7 + 3) % VOCAB, -0.1)]) < 3.301


@pytest.mark.parametrize("law", LAWS)
def test_texts_are_those_of_plain_decoding(law: str) -> None:
    plain = Scheduler(Loop(tiny(), [], BestFirst(), Match(), CostAware(nodes=0)), None, max_batch=4)
    wanted = [r.finish.ids for r in plain.run(requests(law))]
    drafter, learned = advised()
    loop = Loop(tiny(), [drafter], BestFirst(8, 4, selection=Selection.RETRIEVED), Match(), CostAware(nodes=6))
    states = Scheduler(loop, None, max_batch=4).run(requests(law))
    assert [r.finish.ids for r in states] == wanted
    assert learned.asked and not learned.open
