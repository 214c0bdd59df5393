"""A recipe played under acceptance rates by rank agrees with the closed forms, in tokens and in time."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence

import pytest

from hedgerow.control.controller import Fixed as FixedSize
from hedgerow.core.errors import RecipeError, UsageError
from hedgerow.core.parts import Observation, Plan, Policy, StepShape, View
from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.record import StepRecord
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.cost.model import Roofline, Table
from hedgerow.cost.profiles import Draft, Profile
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.block import Block
from hedgerow.policy.fixed import Fixed
from hedgerow.recipes import get
from hedgerow.simulate import Positional, Report, parts, play
from hedgerow.topology.basic import chain, chains, expansion, k_ary
from hedgerow.topology.expected import Rates, chain_speedup, chain_tokens, expansion_tokens, expected_tokens
from hedgerow.topology.optimal import positional_tree, sequoia_dp
from hedgerow.verify.rejection import Rejection

GEOM = [0.6, 0.24, 0.096, 0.0384, 0.01536, 0.006144, 0.0024576, 0.00098304]
SHARP = [0.85, 0.06, 0.03, 0.015, 0.01]
STEPS = 700


def within_4_sigma(report: Report, expected: float) -> None:
    assert report.tau is not None and report.tau_error is not None
    assert abs(report.tau - expected) < 4 * report.tau_error + 1e-12, (report.tau, expected, report.tau_error)


def played(shape: TreeShape, p: Rates, **options: object) -> Report:
    options = {"steps": STEPS, "nodes": shape.nodes, **options}
    return play(parts(Fixed(shape)), Positional(p), **options)  # type: ignore[arg-type]


SHAPES: dict[str, tuple[TreeShape, Rates, float]] = {
    "chain": (chain(4), [0.7], chain_tokens(0.7, 4)),
    "chain of a rank": (chain(6), GEOM, chain_tokens(0.6, 6)),
    "vector": (expansion([3, 2, 1]), GEOM, expansion_tokens([3, 2, 1], GEOM)),
    "binary": (k_ary(2, 3), SHARP, expansion_tokens([2, 2, 2], SHARP)),
    "chains": (chains(3, 3), [0.5, 0.2, 0.1], expansion_tokens([3, 1, 1], [0.5, 0.2, 0.1])),
    "optimal": (positional_tree(GEOM, 24), GEOM, expected_tokens(positional_tree(GEOM, 24), GEOM)),
    "ranks that do not fall": (
        sequoia_dp([0.3, 0.35, 0.05, 0.2], 9)[1], [0.3, 0.35, 0.05, 0.2], sequoia_dp([0.3, 0.35, 0.05, 0.2], 9)[0],
    ),
    "by depth": (
        expansion([2, 2, 2]), [[0.6, 0.2], [0.5, 0.1], [0.4, 0.3]],
        expansion_tokens([2, 2, 2], [[0.6, 0.2], [0.5, 0.1], [0.4, 0.3]]),
    ),
    "nothing beyond the table": (chain(4), [[0.9], [0.8]], 1 + 0.9 + 0.72),
    "always right": (chain(5), [1.0], 6.0),
    "a rank that is never right": (expansion([3]), [0.5, 0.0, 0.25], 1.75),
}


@pytest.mark.parametrize("case", SHAPES)
def test_tokens_per_step_of_a_shape(case: str) -> None:
    shape, p, expected = SHAPES[case]
    report = played(shape, p)
    within_4_sigma(report, expected)
    assert sum(report.histogram) == report.steps == STEPS
    assert report.tokens == sum((k + 1) * n for k, n in enumerate(report.histogram))
    assert report.accepted == report.tokens - report.steps


def test_a_best_first_tree_is_the_optimal_shape() -> None:
    within_4_sigma(play(parts(BestFirst(), nodes=15), Positional(GEOM), steps=300), sequoia_dp(GEOM, 16)[0])


@pytest.mark.parametrize("selection", list(Selection), ids=lambda s: s.label)
def test_every_selection_draws_rank_by_rank(selection: Selection) -> None:
    """Rates are the acceptance of drafter and rule together, so how a child was selected changes nothing."""
    shape = expansion([2, 2])
    report = play(parts(Fixed(shape, selection)), Positional(GEOM), nodes=6, steps=300)
    within_4_sigma(report, expected_tokens(shape, GEOM))
    assert report.mean_nodes == 6.0


def test_the_rule_of_the_recipe_is_not_asked() -> None:
    recipe = Recipe(
        "q-aware", 1, "", "", (DraftSource("d", "autoregressive", None),),
        Fixed(chain(3), Selection.IID), Rejection(), nodes=3,
    )
    within_4_sigma(play(recipe, Positional([0.7]), steps=STEPS), chain_tokens(0.7, 3))


def test_the_same_seed_gives_the_same_play() -> None:
    first, again, other = (played(chain(4), GEOM, seed=seed, batch=2, steps=200) for seed in (3, 3, 4))
    assert first == again
    assert first.histogram != other.histogram


def test_requests_of_a_batch_are_independent() -> None:
    records: list[StepRecord] = []
    report = played(chain(1), [0.5], batch=2, steps=1600, trace=records.append)
    assert report.calls == 800 and report.steps == 1600 and report.requests == report.batch == 2
    accepted = {i: [len(r.path) for r in records if r.request == i] for i in (0, 1)}
    both = sum(a == b == 1 for a, b in zip(accepted[0], accepted[1], strict=True)) / 800
    assert abs(both - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 800)


# --------------------------------------------------------------------------------------------------------------- time

FLAT = Profile("flat", {"tree": Roofline(base_s=1.0)}, Draft(call_s=0.1))


def test_the_speedup_of_a_chain_is_leviathans() -> None:
    report = played(chain(4), [0.8], cost=FLAT)
    assert report.speedup is not None and report.tau is not None and report.seconds is not None
    assert report.speedup == pytest.approx(report.tau / (4 * 0.1 + 1.0), rel=1e-9)      # the formula, at the played τ
    error = (report.tau_error or 0.0) / 1.4
    assert abs(report.speedup - chain_speedup(0.8, 4, cost=0.1)) < 4 * error
    assert report.seconds == pytest.approx({"total": 1.4 * STEPS, "draft": 0.4 * STEPS, "verify": 1.0 * STEPS})
    assert report.plain_seconds == pytest.approx(report.tokens)


@pytest.mark.parametrize(("kind", "calls"), [("autoregressive", 3), ("block", 1), ("heads", 1), ("retrieval", 0)])
def test_a_draft_costs_what_its_kind_calls(kind: str, calls: int) -> None:
    cost = Profile("x", {"tree": Roofline(base_s=1.0)}, Draft(call_s=0.1, row_s=0.01))
    report = play(parts(Fixed(expansion([2, 2, 1])), kind=kind), Positional(GEOM), cost, nodes=10, steps=200)
    assert report.seconds is not None
    rows = {"autoregressive": 1 + 2 + 4, "block": 1, "heads": 1, "retrieval": 0}[kind]   # nodes expanded
    assert report.seconds["draft"] == pytest.approx(200 * (0.1 * calls + 0.01 * rows))
    assert report.draft_calls == [200 * calls]


def test_steps_are_priced_by_rows_context_and_form() -> None:
    cost = Profile("x", {
        "plain": Roofline(base_s=1.0), "chain": Roofline(base_s=2.0), "tree": Roofline(row_s=1.0, context_s=1e-3),
    })
    chain_, tree = (
        played(shape, GEOM, cost=cost, controller=FixedSize(2, guard=False)) for shape in (chain(2), expansion([2]))
    )
    assert chain_.seconds and tree.seconds
    assert chain_.seconds["verify"] == pytest.approx(2.0 * STEPS)
    assert tree.seconds["verify"] == pytest.approx((3.0 + 0.512) * STEPS)
    assert tree.share["tree"] == chain_.share["chain"] == 1.0
    world = Positional(GEOM, contexts=(1000, 3000))
    control = FixedSize(2, guard=False)
    both = play(parts(Fixed(expansion([2]))), world, cost, controller=control, steps=200, batch=2)
    assert both.seconds and both.seconds["verify"] == pytest.approx((6.0 + 4.0) * 100)
    assert [(s.context, s.steps) for s in both.by_context] == [(512, 100), (2048, 100)]


def knee(rows: float) -> float:
    return max(10.0, 10.0 * rows / 200) + 0.002 * rows


KNEE = Profile("knee at 200 rows", {
    "tree": Table((1, 200, 100_000), (0,), ((knee(1), knee(200), knee(100_000)),)),
})

# best rows of a request's tree (root included) by batch, and its speed-up over no speculation
COLLAPSE = {
    ("geom", 8): (25, 3.6938391630769227), ("geom", 16): (12, 3.0807050847457624),
    ("geom", 32): (6, 2.4811093990755007), ("geom", 64): (3, 1.9116795069337442),
    ("geom", 128): (2, 1.2326923076923075), ("geom", 256): (1, 1.0),
    ("sharp", 16): (12, 5.524544615055162), ("sharp", 64): (3, 2.509079352850539),
    ("sharp", 128): (2, 1.4253004807692307),
}


@pytest.mark.parametrize("case", COLLAPSE, ids=lambda c: f"{c[0]}-{c[1]}")
def test_speculation_collapses_under_load(case: tuple[str, int]) -> None:
    (vector, batch), (rows, golden) = case, COLLAPSE[case]
    p = GEOM if vector == "geom" else SHARP

    def at(nodes: int) -> Report:
        shape = sequoia_dp(p, nodes + 1)[1]
        control = FixedSize(nodes, guard=False)
        return play(parts(Fixed(shape)), Positional(p), KNEE, controller=control, batch=batch, steps=1024)

    report = at(rows - 1)
    assert report.tau and report.speedup
    assert abs(report.speedup - golden) < 4 * (report.tau_error or 0.0) * report.speedup / report.tau + 1e-9
    assert report.speedup == pytest.approx(report.tau * knee(batch) / knee(batch * rows), rel=1e-9)
    chained = batch >= (64 if vector == "geom" else 16)
    assert report.share["tree"] == (0.0 if chained else 1.0)
    if batch == 256:
        assert (at(1).speedup or 9.0) < 0.9                     # not even one draft pays


def test_a_large_tree_loses_under_load() -> None:
    """A fixed tree of 64 rows: 0.88 of plain speed at batch 16, 0.44 at 32."""
    shape = sequoia_dp(GEOM, 64)[1]
    for batch, golden in ((16, 0.8811332284615384), (32, 0.4419719303846154)):
        control = FixedSize(63, guard=False)
        report = play(parts(Fixed(shape)), Positional(GEOM), KNEE, controller=control, batch=batch, steps=640)
        assert report.tau and report.speedup
        assert abs(report.speedup - golden) < 4 * (report.tau_error or 0.0) * report.speedup / report.tau


def test_the_guard_rests_where_the_profile_says_it_does_not_pay() -> None:
    dear = Profile("dear", {"plain": Roofline(base_s=1.0), "tree": Roofline(base_s=3.0)})
    report = played(chain(4), [0.5], cost=dear)
    assert report.share["plain"] > 0.5 and report.tau is not None and report.tau < 1.5
    assert played(chain(4), [0.5]).share["plain"] == 0.0


def test_without_costs_there_is_no_speedup() -> None:
    report = played(chain(4), GEOM)
    assert report.seconds is report.plain_seconds is report.speedup is report.tok_s is report.profile is None
    assert report.to_dict()["speedup"] is None


# ------------------------------------------------------------------------------------------------------------ control

def test_caps_hold() -> None:
    tree = parts(BestFirst(), nodes=30)
    deep = play(tree, Positional(GEOM), depth=2, steps=50)
    assert len(deep.histogram) <= 3
    narrow = play(tree, Positional(GEOM), width=1, steps=50)
    assert narrow.share["chain"] == 1.0
    assert play(tree, Positional(GEOM), nodes=0, steps=50).share["plain"] == 1.0


def test_a_block_drafter_ends_with_its_block() -> None:
    report = play(parts(Block(), kind="block", nodes=40), Positional([0.99], reach=7), steps=100)
    assert len(report.histogram) == 8 and report.mean_nodes == 7.0
    shape = play(parts(Block(), kind="block", nodes=15), Positional(GEOM, reach=6), steps=300)
    within_4_sigma(shape, sequoia_dp(GEOM, 16, levels=7)[0])


class Watch:
    """A controller that keeps what it was shown and ends the play with Ctrl-C after some steps."""

    looks_ahead = False
    cuts = True

    def __init__(self, after: int) -> None:
        self.after = after
        self.seen: list[Observation] = []

    def plan(self, batch: Sequence[View]) -> list[Plan]:
        if len(self.seen) >= self.after:
            raise KeyboardInterrupt
        return [Plan(5)] * len(batch)

    def cut(self, trees: Sequence[TokenTree], batch: Sequence[View]) -> list[int]:
        return [3] * len(trees)

    def observe(self, step: Sequence[Observation]) -> None:
        self.seen += step


def test_a_controller_sees_simulated_seconds_and_ctrl_c_keeps_whole_steps() -> None:
    watch = Watch(after=100)
    cost = Profile("x", {"tree": Roofline(row_s=0.5)}, Draft(call_s=9.0))
    report = play(parts(Fixed(chain(5))), Positional(GEOM), cost, controller=watch)
    assert report.interrupted and report.steps == 100
    assert report.proposed == 500 and report.drafted == 300
    assert {seen.step_s for seen in watch.seen} == {0.5 * 4}
    assert sum(seen.committed for seen in watch.seen) == report.tokens


def test_progress_is_told() -> None:
    told: list[tuple[int, int | None]] = []
    play(get("plain"), Positional([0.5]), steps=600, on_progress=lambda done, total: told.append((done, total)))
    assert told == [(256, 600), (512, 600), (600, 600)]


def test_a_policy_that_reads_tokens_meets_match() -> None:
    class Reads(BestFirst):
        reads_tokens = True  # type: ignore[assignment]

    policy: Policy = Reads()
    assert play(parts(policy, nodes=3), Positional(GEOM), steps=10).steps == 10
    with pytest.raises(RecipeError, match="rule 'rejection'"):
        parts(policy, rule=Rejection())


@pytest.mark.parametrize(
    ("p", "options", "words"),
    [
        ([0.7, 0.4], {}, "at most 1 in all"), ([-0.1], {}, "0 or more each"), ([], {}, "at least one rate"),
        ([[0.5], []], {}, "at least one rate, at every depth"), ([0.5], {"steps": 0}, "steps is 0; allowed: 1 or more"),
        ([0.5], {"batch": 0}, "batch is 0"), ([0.5], {"nodes": -1}, "nodes is -1; allowed: 0 or more"),
        ([0.5], {"depth": 0}, "depth is 0"), ([0.5], {"nodes": 3}, "'plain' drafts nothing"),
        ([0.5], {"as_recorded": True}, "as_recorded needs a trace"),
    ],
)
def test_what_cannot_be_played_is_refused(p: Rates, options: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        play(get("plain"), Positional(p), **options)


def test_contexts_are_checked() -> None:
    with pytest.raises(UsageError, match=r"contexts are \[0\]"):
        Positional([0.5], contexts=(0,))


def test_a_rate_model_has_no_draft_rows() -> None:
    world = Positional([0.5])
    recipe = parts(Fixed(chain(1)))
    from hedgerow.core.recipe import Built

    target = world.target(recipe.rule)
    drafter = world.drafter(recipe.sources[0], Built(target.info), 0)
    with pytest.raises(UsageError, match="no draft rows"):
        drafter.row(0, 0)


@pytest.mark.slow
def test_speed() -> None:
    """2,000 steps a second and more on a quiet core; half of it is asked for, without the shape checks of tests."""
    code = (
        "import time\n"
        "from hedgerow.simulate import Positional, parts, play\n"
        "from hedgerow.policy.fixed import Fixed\n"
        "from hedgerow.topology.basic import chain, expansion\n"
        "for shape in (chain(4), expansion([2, 2, 1])):\n"
        "    start = time.process_time()\n"
        "    play(parts(Fixed(shape)), Positional([0.6, 0.2]), nodes=shape.nodes, steps=4000)\n"
        "    print(4000 / (time.process_time() - start))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(float(line) > 1000 for line in run.stdout.split()), run.stdout


def test_step_shapes_reach_the_cost_model() -> None:
    shapes: list[StepShape] = []

    class Cost:
        def step_s(self, shape: StepShape) -> float:
            shapes.append(shape)
            return 1.0

        def draft_s(self, calls: int, width: int, batch: int) -> float:
            return 0.0

        def edges(self) -> Sequence[int]:
            return ()

    played(expansion([2]), GEOM, cost=Cost(), batch=3, steps=3)
    drafted = [s for s in shapes if s.rows == [3, 3, 3]]
    assert [s.form for s in drafted] == ["tree"] and drafted[0].contexts == [512] * 3
    assert StepShape([1, 1, 1], [512] * 3, "plain") in shapes
