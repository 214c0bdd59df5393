"""What every retrieval drafter owes the engine, and that mixing memories pays."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np
import pytest

from hedgerow.core.errors import InvariantError, UsageError
from hedgerow.core.parts import Ask, Feats, Frontier
from hedgerow.core.tree import Selection
from hedgerow.draft.blend import BlendDrafter
from hedgerow.draft.ngram import NgramDrafter
from hedgerow.draft.recycle import RecycleDrafter
from hedgerow.draft.retrieval import Retrieval
from hedgerow.draft.suffix import SuffixDrafter
from tests.unit.draft_kit import Said, ask, chain, feats, generate, step, view

Make = Callable[..., Retrieval]
MAKERS = [NgramDrafter, SuffixDrafter, RecycleDrafter, BlendDrafter]
every = pytest.mark.parametrize("make", MAKERS, ids=lambda m: m.__name__)

PROMPT = [1, 2, 3, 4, 1, 2, 5, 4, 1, 2]
ROWS: list[Said] = [{2: 0.9, 3: 0.1}, {3: 0.5, 5: 0.5}, {4: 1.0}, {1: 1.0}] * 2 + [{2: 1.0}]


def begun(make: Make, tenant: str = "", slot: int = 0) -> Retrieval:
    drafter = make()
    drafter.begin(slot, PROMPT, feats(ROWS), tenant)
    return drafter


def says(text: tuple[int, ...]) -> Said:
    """A target with habits and moods: a token has three successors; which is likeliest varies."""
    mood = crc32(bytes([text[0], len(text), *text[-2:]])) % 20
    order = (0, 1, 2) if mood < 11 else (1, 0, 2) if mood < 17 else (2, 0, 1)
    after = [(text[-1] * 7 + 3 + 5 * i) % 60 for i in range(3)]
    return dict(zip([after[i] for i in order], (0.6, 0.25, 0.15), strict=True))


@every
def test_children_are_retrieved_with_probabilities(make: Make) -> None:
    drafter = begun(make)
    assert drafter.selections == {Selection.RETRIEVED, Selection.COUPLED}
    for path in ((), (3,), (3, 4), (5, 4, 1)):
        got = ask(drafter, path)
        assert got and all(0.0 < p < 1.0 for p in got.values()) and sum(got.values()) < 1.0
        assert list(got.values()) == sorted(got.values(), reverse=True)
        best = list(got)[:1]
        assert list(ask(drafter, path, k=1)) == best and ask(drafter, path, k=0) == {}


@every
def test_asking_changes_nothing(make: Make) -> None:
    drafter, fresh = begun(make), begun(make)
    for path in ((), (3,), (3, 4), (9,), (3, 4)):
        ask(drafter, path)
    assert all(ask(drafter, path) == ask(fresh, path) for path in ((3, 4), (), (5,)))


@every
def test_one_call_answers_many_nodes_of_many_requests(make: Make) -> None:
    drafter = begun(make)
    drafter.begin(7, [4, 1, 2, 3, 4, 1], feats([{1: 1.0}, {2: 1.0}, {3: 1.0}, {4: 1.0}, {1: 1.0}]))
    (one, node), (two, other) = chain([3]), chain([2, 3])
    got = drafter.children([
        Ask(0, Frontier([-1, node], [4, 2], selection=Selection.RETRIEVED), view(2, growth=one)),
        Ask(7, Frontier([other], [3], selection=Selection.RETRIEVED), view(1, slot=7, growth=two)),
    ])
    alone = [ask(drafter, (), 4), ask(drafter, (3,), 2), ask(drafter, (2, 3), 3, slot=7)]
    assert list(got.count) == [len(a) for a in alone]
    assert list(got.token) == [t for a in alone for t in a]
    assert np.exp(got.log_q) == pytest.approx([p for a in alone for p in a.values()])
    assert got.origin is None and got.mult is None


@every
@pytest.mark.parametrize("selection", [s for s in Selection if s not in Retrieval.selections])
def test_other_selections_are_refused(make: Make, selection: Selection) -> None:
    with pytest.raises(UsageError, match="it answers 'retrieved'"):
        begun(make).children([Ask(0, Frontier([-1], [2], selection=selection), view(2))])


@every
def test_there_are_no_rows(make: Make) -> None:
    with pytest.raises(UsageError, match="no draft rows"):
        begun(make).row(0, 0)


@every
def test_broken_calls_are_named(make: Make) -> None:
    drafter = begun(make)
    with pytest.raises(InvariantError, match="slot 3 was not begun"):
        ask(drafter, slot=3)
    with pytest.raises(InvariantError, match="starts at token 9, but the last one committed was 2"):
        drafter.commit(0, step(9, [1]))
    with pytest.raises(InvariantError, match="fork of 11 tokens of slot 0, which has 10"):
        drafter.fork(0, 1, 11)
    with pytest.raises(InvariantError, match="begins without a token"):
        drafter.begin(1, [], Feats())
    with pytest.raises(InvariantError, match="3 prompt rows came with 2 tokens"):
        drafter.begin(1, [1, 2], feats([{1: 1.0}] * 3))
    with pytest.raises(InvariantError, match="2 feature rows came for 1 rows"):
        drafter.commit(0, step(2, [3], [], [{3: 1.0}, {4: 1.0}]))
    drafter.release(99)
    with pytest.raises(UsageError, match="tenants is 0"):
        make(tenants=0)


@every
def test_a_fork_is_the_same_request_so_far(make: Make) -> None:
    drafter = begun(make)
    drafter.fork(0, 1, len(PROMPT))
    drafter.fork(0, 2, 6)
    drafter.begin(3, PROMPT[:6], Feats())
    paths = ((), (3,), (5, 4))
    for slot, twin in ((1, 0), (2, 3)):
        assert [ask(drafter, p, slot=slot) for p in paths] == [ask(drafter, p, slot=twin) for p in paths]
    drafter.commit(0, step(2, [5, 4], [(5,)], [{5: 1.0}, {4: 1.0}]))
    drafter.commit(1, step(2, [3]))                                     # they part
    drafter.commit(1, step(3, [4], [], [{4: 1.0}]))
    drafter.release(1)
    assert ask(drafter)


@every
def test_tenants_share_nothing(make: Make) -> None:
    drafter, fresh = make(), make()
    for _ in range(3):
        generate(drafter, [1, 2, 3, 4], says, tenant="a")
    drafter.begin(0, PROMPT, feats(ROWS), "b")
    fresh.begin(0, PROMPT, feats(ROWS), "b")
    for path in ((), (3,), (10,), (24,), (10, 33)):
        assert ask(drafter, path) == ask(fresh, path)


@every
def test_few_tenants_are_kept_and_a_request_under_way_loses_nothing(make: Make) -> None:
    drafter = make(tenants=2)
    drafter.begin(0, PROMPT, feats(ROWS), "a")
    before = ask(drafter)
    for tenant in "bcde":
        drafter.begin(1, PROMPT, feats(ROWS), tenant)
    assert list(drafter._known) == ["d", "e"]
    assert ask(drafter) == before
    drafter.commit(0, step(2, [3], [], [{3: 1.0}]))
    assert ask(drafter)
    drafter.release(0)


@every
def test_equal_histories_give_equal_drafts(make: Make) -> None:
    one, two = make(), make()
    for drafter in (one, two):
        for start in range(3):
            generate(drafter, [start, 2, 3], says)
        drafter.begin(0, PROMPT, feats(ROWS))
    assert all(ask(one, path) == ask(two, path) for path in ((), (3,), (10,), (24, 11)))


@every
def test_steps_without_a_tree_teach_too(make: Make) -> None:
    drafter = make()
    text = [1, 2]
    drafter.begin(0, text, feats([{2: 1.0}]))
    for token in (3, 4, 1, 2):
        drafter.commit(0, step(text[-1], [token], [], [{token: 1.0}]))
        text.append(token)
    assert next(iter(ask(drafter))) == 3 and next(iter(ask(drafter, [3]))) == 4


@every
def test_it_works_without_rows(make: Make) -> None:
    drafter = make()
    drafter.begin(0, [1, 2, 3, 1, 2], Feats())
    drafter.commit(0, step(2, [3]))
    assert make is RecycleDrafter or list(ask(drafter)) == [1]


@every
def test_weights_move_only_for_nodes_that_were_asked_for(make: Make) -> None:
    drafter = begun(make)
    mixer = drafter._known[""].mixer
    start = mixer.base
    drafter.commit(0, step(2, [3]))
    assert mixer.base == start
    ask(drafter)
    drafter.commit(0, step(3, [4]))
    assert mixer.base < start                                           # it was listed: "none" loses


@every
def test_drafting_pays_and_a_tree_more_than_a_chain(make: Make) -> None:
    def tau(width: int) -> float:
        drafter = make()
        return float(np.mean([generate(drafter, [s, 2, 3], says, tokens=40, nodes=8, width=width) for s in range(8)]))

    tree, chain_ = tau(1 << 30), tau(1)
    assert tree > chain_ > 1.1


def test_the_blend_joins_what_its_parts_propose() -> None:
    drafter, rows = BlendDrafter(), [{2: 1.0}, {3: 0.9, 7: 0.1}, {1: 1.0}, {2: 1.0}]
    drafter.begin(0, [1, 2, 3, 1, 2], feats(rows))
    both, alone = ask(drafter), SuffixDrafter()
    alone.begin(0, [1, 2, 3, 1, 2], Feats())
    assert list(both) == [3, 7]                                         # 3 of the text and the row, 7 of the row
    assert list(ask(alone)) == [3] and both[3] > ask(alone)[3]


def test_needs_are_those_of_the_memories() -> None:
    assert (NgramDrafter().needs.top_k, SuffixDrafter().needs.top_k, BlendDrafter().needs.top_k) == (0, 0, 8)
