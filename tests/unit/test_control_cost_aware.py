"""CostAware: no other cut is better, trust follows what was accepted, and drafting rests where nothing pays."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hedgerow.control.cost_aware import REMEMBERED, CostAware, slopes
from hedgerow.core.errors import RecipeError
from hedgerow.core.parts import Observation, Plan, Sampling, Verdict, View
from hedgerow.core.recipe import check
from hedgerow.core.rng import Rng
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.cost.measure import Prices, step_seconds
from hedgerow.policy.fixed import Fixed as Shape
from hedgerow.target.table import TableLaw, TableTarget
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection


def view(request: int = 0) -> View:
    return View(request=request, slot=request, root=0, position=4, room=9, sampling=Sampling(), rng=Rng(0))


def tree(*survival: float) -> TokenTree:
    n = len(survival)
    return TokenTree.of(tokens=range(n), parent=[-1] * n, survival=survival)


def stairs(rows: int = 1) -> float:
    """A price with steps and one inversion."""
    return (1.0, 1.0, 1.5, 1.5, 2.2, 2.0, 3.0, 3.0, 4.0, 4.0)[rows - 1]


@pytest.mark.parametrize("seed", range(40))
def test_no_other_cut_gives_more_tokens_per_second(seed: int) -> None:
    source = np.random.default_rng(seed)
    trees = [tree(*sorted(source.random(4).tolist(), reverse=True)) for _ in range(2)]
    cut = CostAware(4, stairs).cut(trees, [view(0), view(1)])

    def rate(sizes: tuple[int, ...]) -> float:
        gained = 2 + sum(float(t.survival[:n].sum()) for t, n in zip(trees, sizes, strict=True))
        return gained / stairs(2 + sum(sizes))

    assert rate(tuple(cut)) == pytest.approx(max(rate(s) for s in product(range(5), repeat=2)))


def test_nothing_is_verified_where_nothing_pays() -> None:
    control = CostAware(3, lambda rows=1: float(rows))
    assert control.cut([tree(0.9, 0.5)], [view()]) == [0]
    assert CostAware(3).cut([tree(0.01)], [view()]) == [1]      # without a price every node is free


def seen(survival: float, accepted: int, request: int = 0, finished: bool = False, drafted: int = 1) -> Observation:
    verified = tree(*[survival] * drafted)
    verdict = Verdict(tuple(range(accepted)), 0, "bonus")
    return Observation(request, Plan(3), verified, verdict, accepted + 1, finished, 0.1, 1 + drafted, 1)


def test_trust_follows_what_was_accepted_and_is_bounded() -> None:
    control, price = CostAware(1, lambda rows=1: 1.0 + 0.4 * (rows - 1)), [tree(0.5)]
    assert control.cut(price, [view()]) == [1]
    for _ in range(40):
        control.observe([seen(0.5, 0)])
    assert control.cut(price, [view()]) == [0]
    assert control.cut(price, [view(1)]) == [1]                 # another request is judged by its own record
    for _ in range(80):
        control.observe([seen(0.5, 1)])
    assert control.cut(price, [view()]) == [1]


def test_drafting_rests_and_comes_back() -> None:
    control = CostAware(3, rest=2)
    plans = []
    for _ in range(20):
        plan = control.plan([view()])[0]
        plans.append(plan.nodes)
        control.observe([Observation(0, plan, tree(), Verdict((), 0, "bonus"), 1, False, 0.1, 1, 1)])
    assert plans[:4] == [3, 3, 3, 3] and plans[4] == 0
    assert 3 in plans[5:] and max(len(run) for run in "".join("x" if n else "." for n in plans).split("x")) <= 2
    control.observe([seen(0.5, 1)])
    assert control.plan([view(9)])[0].nodes == 3


def test_growth_ends_only_where_no_cut_would_go_on() -> None:
    spared = cut_off = 0
    for seed in range(100):
        source = np.random.default_rng(seed)
        price = np.cumsum([1.0, *source.uniform(-0.02, 0.2, 8)]).tolist()
        control = CostAware(8, lambda rows=1, price=price: price[rows - 1])  # type: ignore[misc]
        control.observe([seen(0.5, int(source.integers(2)), drafted=2)])
        worth = control.plan([view()])[0].worth
        assert worth is not None
        survival = np.sort(source.random(8) ** 2)[::-1].tolist()
        [kept] = control.cut([tree(*survival)], [view()])
        end = next((n for n, s in enumerate(survival) if not worth(s, n, sum(survival[:n]))), 8)
        assert kept <= end
        spared, cut_off = spared + 8 - end, cut_off + 8 - kept
    assert spared > 0.3 * cut_off                               # and it does end where a cut is short


def test_only_a_request_that_runs_alone_is_told_where_to_end() -> None:
    assert all(p.worth is None for p in CostAware(3).plan([view(0), view(1)]))


def losing(draft_s: float) -> Observation:
    return Observation(0, Plan(3), tree(0.5), Verdict((), 0, "bonus"), 1, False, 0.1, 2, 1, draft_s)


def test_seconds_of_drafting_count_against_it() -> None:
    for draft_s, patience in ((0.0, 41), (0.04, 6)):            # 0.1 s a step: 0.4 tokens a drafted step; 5 use 2 up
        control = CostAware(3)
        drafted = 0
        while drafted < 41 and control.plan([view()])[0].nodes:
            control.observe([losing(draft_s)])
            drafted += 1
        assert drafted == patience


def test_rests_double_while_drafting_loses_and_a_gain_ends_them() -> None:
    control, runs = CostAware(3, rest=2), [0]
    for _ in range(120):
        plan = control.plan([view()])[0]
        if plan.nodes:
            control.observe([losing(0.05)])
            if runs[-1]:
                runs.append(0)
        else:
            runs[-1] += 1
            control.observe([Observation(0, plan, tree(), Verdict((), 0, "bonus"), 1, False, 0.1, 1, 1)])
    assert runs[:5] == [2, 4, 8, 16, 16]
    for _ in range(20):
        control.observe([seen(0.5, 1)])
    assert control._trust[0].losses == 0


@pytest.mark.parametrize("price", [[1.0, 3.0, 4.0], [1.0, 0.9, 2.0, 1.1, 5.0]])
def test_slopes_are_the_least_mean_rise(price: list[float]) -> None:
    for k, least in enumerate(slopes(price)[:-1]):
        assert least == min((price[j] - price[k]) / (j - k) for j in range(k + 1, len(price)))


def test_finished_and_cancelled_requests_are_forgotten() -> None:
    control = CostAware(3)
    control.observe([seen(0.5, 1, request=7)])
    control.observe([seen(0.5, 1, request=7, finished=True)])
    assert not control._trust
    for number in range(REMEMBERED + 5):
        control.observe([seen(0.5, 1, request=number)])
    assert len(control._trust) == REMEMBERED


def test_nodes_zero_is_plain_decoding() -> None:
    plan = CostAware(0).plan([view()])[0]
    assert plan.nodes == 0 and "plain decoding was asked for" in plan.reason


def test_it_is_refused_under_rules_that_it_would_bias() -> None:
    drawn = Shape(TreeShape.from_paths([(0,), (1,)]), Selection.WITHOUT_REPLACEMENT)
    check("mine", drawn, Match(), CostAware(2))
    with pytest.raises(RecipeError, match="after it has seen the drawn tokens"):
        check("mine", drawn, Rejection(), CostAware(2))


class Ticking(TableTarget):
    """A table whose calls take as many ticks as they have rows."""

    now = 0.0

    def submit(self, groups, needs):  # type: ignore[no-untyped-def]
        self.now += sum(len(g.tokens) for g in groups)
        return super().submit(groups, needs)


def test_step_times_are_measured_and_lines_drawn_between(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Ticking(TableLaw.random(4, 1, 0), slots=1)
    assert step_seconds(target, (1, 3), clock=lambda: target.now) == {1: 1.0, 3: 3.0}
    assert target.capacity().slots == 1
    monkeypatch.setattr("hedgerow.cost.measure.step_seconds", lambda t, rows: {n: float(n) for n in rows})
    prices = Prices(target)
    assert prices.ratio(1) == 1.0 and prices.ratio(16) == 16.0 and prices.ratio(6) == 6.0
    assert set(prices.seconds) == {1, 4, 8, 16}
    price = prices.pricer(8)
    assert price() == 8.0 and price(3) == 3.0


def test_a_price_is_one_while_all_slots_are_taken() -> None:
    target = TableTarget(TableLaw.random(4, 1, 0), slots=1)
    target.acquire()
    assert Prices(target).ratio(8) == 1.0
