"""Every recipe gives exactly plain decoding's tokens on `tiny`: greedy, sampled, any batch, any arrival, cold and warm.

Recipes join by being listed. One whose rule reads q follows the target's law instead of its tokens above temperature 0
(the law tests prove that), so it is here at temperature 0 only; a lossy one is not. One that a user must bring a
drafter for gets a stand-in that answers every selection, and a shorter programme.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from hedgerow.control.controller import Fixed
from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Drafter
from hedgerow.core.recipe import Built, DraftSource, Recipe, is_match
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request
from hedgerow.recipes import get, names
from tests.identity.tiny_kit import LAWS, MAX_LEN, VOCAB, StandIn, assert_same, plain, requests, run, tiny

EXACT = [name for name in names() if get(name).exact]
OWN = [name for name in EXACT if all(source.make for source in get(name).sources)]
BROUGHT = [name for name in EXACT if name not in OWN]
ARRIVALS = ((1, tuple(range(8))), (3, (5, 2, 7, 0, 3, 6, 1, 4)), (8, (6, 1, 4, 3, 0, 7, 2, 5)))         # batch, order


def cases(listed: Sequence[str], laws: Sequence[str], slow: str = "") -> list[Any]:
    """Recipes and the laws under which they promise plain decoding's tokens; law `slow` is for the long run."""
    return [
        pytest.param(name, law, marks=[pytest.mark.slow] * (law == slow))
        for name in listed for law in laws if law == "greedy" or is_match(get(name).rule)
    ]


def made(source: DraftSource, built: Built) -> Drafter:
    """The source's drafter, or a stand-in where the user brings it or the tiny model cannot be its base."""
    with suppress(UsageError):
        if source.make:
            return source.make(built)
    return StandIn()


def loop_of(recipe: Recipe, nodes: int | None = None) -> Loop:
    """A recipe on `tiny` with its own drafters and no guard."""
    target = tiny()
    built = Built(info=target.info, target=target)
    make = recipe.controller or (lambda nodes, price: Fixed(nodes, guard=False))
    control = make(nodes=recipe.nodes if nodes is None else nodes, price=lambda rows=0: 1.0)
    return Loop(target, [made(s, built) for s in recipe.sources], deepcopy(recipe.policy), recipe.rule, control)


def accepted_in(loop: Loop, law: str, count: int, batch: int, order: Sequence[int]) -> int:
    """Run the first `count` requests in an order and compare each with plain decoding."""
    asked, order = requests(law, count=count), [i for i in order if i < count]
    done = run(loop, [asked[i] for i in order], batch)
    assert_same([done[order.index(i)] for i in range(count)], plain(law, count=count))
    return sum(r.accepted for r in done)


@pytest.mark.parametrize(("name", "law"), cases(OWN, list(LAWS)))
def test_a_recipe_gives_plain_decodings_tokens(name: str, law: str) -> None:
    loop = loop_of(get(name))                           # one loop: what a drafter learned stays, later rounds are warm
    accepted = sum(accepted_in(loop, law, 8, batch, order) for batch, order in ARRIVALS)
    assert (accepted > 0) == bool(get(name).sources), "a test in which nothing is accepted proves nothing"


@pytest.mark.parametrize(("name", "law"), cases(BROUGHT, ["greedy", "T=0.8", "T=1 filtered"], "T=0.8"))
def test_a_recipe_with_a_brought_drafter_does_too(name: str, law: str) -> None:
    loop = loop_of(get(name))
    arrivals = ARRIVALS[:2] if law == "greedy" else ARRIVALS[1:2]
    assert sum(accepted_in(loop, law, 4, batch, order) for batch, order in arrivals) > 0


@pytest.mark.parametrize("name", EXACT)
def test_a_recipe_keeps_to_its_caps(name: str) -> None:
    """A plan of 0, 1 or 5 nodes, and one whose depth the context limit cuts to 5, 4, …, 0."""
    recipe = get(name)
    for nodes in (1, 5) if name in BROUGHT else (0, 1, 5) if recipe.sources else (0,):
        done = run(loop_of(recipe, nodes), requests("greedy", count=2), batch=2)
        assert_same(done, plain("greedy", count=2))
        assert all(r.drafted <= nodes * r.steps for r in done)
    edge = Request(tuple(i * 7 % VOCAB for i in range(MAX_LEN - 6)), max_tokens=99, ignore_eos=True)
    ids = [run(loop, [edge], batch=1)[0].finish.ids for loop in (loop_of(recipe), loop_of(get("plain")))]
    assert ids[0] == ids[1] and len(ids[0]) == 6


@pytest.mark.parametrize("name", OWN)
def test_a_recipe_under_stops_and_for_two_tenants(name: str) -> None:
    options = {"min_tokens": 6, "ignore_eos": False, "stop_ids": frozenset({3, 11})}
    asked = [replace(r, tenant=str(i % 2)) for i, r in enumerate(requests("T=1", count=4, **options))]
    loop = loop_of(get(name))
    for _ in range(2):
        assert_same(run(loop, asked, batch=3), plain("T=1", count=4, **options))
