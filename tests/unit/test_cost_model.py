"""Cost curves: tables keep what was measured, rooflines fit what is smooth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import StepShape
from hedgerow.cost.model import Roofline, Table, errors, fit
from hedgerow.cost.profiles import load

LINE = Table(rows=(1, 8, 16), contexts=(0, 1000), cells_s=((1.0, 1.0, 2.0), (2.0, 2.0, 4.0)))


def test_a_line_is_exact_at_its_points_and_straight_between() -> None:
    for i, c in enumerate(LINE.contexts):
        for j, r in enumerate(LINE.rows):
            assert LINE.seconds(r, c) == LINE.cells_s[i][j]
    assert LINE.seconds(12, 0) == 1.5
    assert LINE.seconds(12, 500) == pytest.approx(2.25, abs=1e-12)
    assert LINE.edges() == ()


def test_beyond_its_points_a_line_never_falls() -> None:
    assert LINE.seconds(24, 0) == 3.0                          # goes on as between 8 and 16
    assert LINE.seconds(1, 3000) == 4.0                        # and with the context
    assert LINE.seconds(1, -5) == LINE.seconds(1, 0)
    falling = Table(rows=(1, 4, 8), contexts=(0, 10), cells_s=((1.0, 3.0, 2.0), (0.5, 1.0, 1.0)))
    assert falling.seconds(15, 0) == 3.0                       # the last piece falls: as steep as the whole, 1/7
    assert falling.seconds(8, 100) == 1.0
    assert Table(rows=(4,), contexts=(7,), cells_s=((0.5,),)).seconds(400, 900) == 0.5


def test_steps_keep_their_inversion() -> None:
    table = load("m3pro-q8-tiles").curve("tree")
    assert isinstance(table, Table) and table.steps
    cost = {rows: table.seconds(rows, 1596) for rows in range(1, 65)}
    assert cost[8] == cost[1] == 0.0292 and cost[9] == cost[16] == 0.0329
    assert cost[40] == 0.0801 > cost[48] == cost[64] == 0.0691
    assert table.edges() == (8, 16, 32, 47, 64)
    assert table.seconds(65, 1596) == 0.0691 + 0.0292          # a second pass, of one row
    assert table.seconds(128, 1596) == 2 * 0.0691


def test_the_classes_of_the_tiles_are_affine_in_context() -> None:
    """Published slopes per class: .263, .398, .771, .710, .847 ms per 1k tokens; a line through them errs by 0.25 %."""
    table = load("m3pro-q8-tiles").curve("tree")
    assert isinstance(table, Table)
    contexts = np.array(table.contexts)
    for j, slope in enumerate((0.263e-6, 0.398e-6, 0.771e-6, 0.710e-6, 0.847e-6)):
        seconds = np.array([row[j] for row in table.cells_s])
        found, start = np.polyfit(contexts, seconds, 1)
        assert found == pytest.approx(slope, rel=0.02)
        assert np.max(np.abs((start + found * contexts) / seconds - 1.0)) < 0.0026


def test_a_batch_is_charged_like_a_roofline_where_the_table_is_affine() -> None:
    """b·C and g·Σ rows·context are recovered from a table of single requests, up to g·C of the extra requests."""
    truth = Roofline(base_s=1.0, row_s=0.01, context_s=1e-3, row_context_s=1e-6)
    rows, contexts = (1, 50, 100), (0, 1000, 2000)
    table = Table(rows, contexts, tuple(tuple(truth.seconds(r, c) for r in rows) for c in contexts))
    shape = StepShape([4, 30, 10], [500, 1500, 900])
    extra = 1e-6 * (sum(shape.contexts) - sum(r * c for r, c in zip(shape.rows, shape.contexts, strict=True)) / 44)
    assert table.step_s(shape) == pytest.approx(truth.step_s(shape) + extra, abs=1e-9)
    assert table.step_s(StepShape([7], [300])) == pytest.approx(truth.step_s(StepShape([7], [300])), abs=1e-12)


def test_a_roofline_counts_rows_context_and_their_product() -> None:
    curve = Roofline(floor_s=1.0, base_s=0.1, row_s=0.01, context_s=1e-4, row_context_s=1e-6, row2_s=1e-5)
    shape = StepShape([10, 20], [100, 300])
    work = 0.1 + 0.01 * 30 + 1e-4 * 400 + 1e-6 * (10 * 100 + 20 * 300) + 1e-5 * 900
    assert work < 1.0 and curve.step_s(shape) == 1.0
    assert Roofline(**{**vars(curve), "floor_s": 0.0}).step_s(shape) == pytest.approx(work, abs=1e-12)
    assert curve.edges() == ()


def test_a_rounded_corner_lies_above_the_sharp_one_and_tends_to_it() -> None:
    sharp = Roofline(floor_s=1.0, row_s=0.01)
    for rows in (1, 50, 100, 150, 1000):
        rounded = Roofline(floor_s=1.0, row_s=0.01, sharpness=6.0).seconds(rows, 0)
        assert sharp.seconds(rows, 0) <= rounded <= sharp.seconds(rows, 0) * 2 ** (1 / 6) + 1e-12
        very = Roofline(floor_s=1.0, row_s=0.01, sharpness=500.0).seconds(rows, 0)
        assert very == pytest.approx(sharp.seconds(rows, 0), rel=2e-3)
    assert Roofline(row_s=0.01, sharpness=6.0).seconds(10, 0) == pytest.approx(0.1)


def points(name: str) -> tuple[list[int], list[float], list[float]]:
    """The measured points of a shipped table."""
    table = load(name).curve("tree")
    assert isinstance(table, Table)
    rows = [r for _ in table.contexts for r in table.rows]
    contexts = [float(c) for c in table.contexts for _ in table.rows]
    return rows, contexts, [s for line in table.cells_s for s in line]


# Mean and largest error in per cent over the published tables (A800, transformers, 1 to 512 rows, 0 to 8k tokens).
FORMS = {
    "affine": ({"floor": False, "product": False}, (8.8, 37.0), (7.8, 33.0)),
    "bilinear": ({"floor": False}, (5.9, 19.0), (5.9, 17.0)),
    "floor": ({}, (2.4, 15.0), (2.5, 13.0)),
    "rounded floor": ({"rounded": True}, (2.0, 10.0), (2.1, 9.0)),
    "floor and square": ({"square": True}, (1.4, 15.0), (1.5, 12.0)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [0, 1], ids=["4b", "8b"])
def test_fits_of_the_published_curves(form: str, size: int) -> None:
    terms, *bounds = FORMS[form]
    rows, contexts, seconds = points(("a800-qwen3-4b-hf", "a800-qwen3-8b-hf")[size])
    curve = fit(rows, contexts, seconds, **terms)
    found = errors(curve, rows, contexts, seconds)
    mean, worst = bounds[size]
    assert mean - 0.8 < 100 * found.mean < mean + 0.1
    assert 100 * found.worst < worst
    if form == "floor":
        assert curve.floor_s == pytest.approx((0.03425, 0.03478)[size], rel=0.005)


@pytest.mark.parametrize(("name", "mean", "worst"), [("a800-qwen3-4b-hf", 3.2, 16.0), ("a800-qwen3-8b-hf", 4.3, 17.0)])
def test_nine_probes_are_nearly_enough(name: str, mean: float, worst: float) -> None:
    table = load(name).curve("tree")
    rows, contexts, seconds = points(name)
    probes = [(r, c) for r in (16, 128, 512) for c in (0, 4000, 8000)]
    curve = fit([r for r, _ in probes], [c for _, c in probes], [table.seconds(r, c) for r, c in probes])
    found = errors(curve, rows, contexts, seconds)
    assert 100 * found.mean < mean and 100 * found.worst < worst


def test_parameters_come_back_from_noisy_steps() -> None:
    """Three per cent of noise, with one step in 24 disturbed by 40 %."""
    truth = Roofline(floor_s=0.010, base_s=0.004, row_s=8e-5, context_s=1.5e-6, row_context_s=2e-9)
    source = np.random.default_rng(5)
    grid = [(r, c) for r in (2, 8, 32, 64, 128, 256, 384, 512) for c in (0, 2000, 8000)] * 4
    noise = 1.0 + 0.03 * source.standard_normal(len(grid)) + 0.4 * (source.random(len(grid)) < 1 / 24)
    measured = [truth.seconds(*g) * n for g, n in zip(grid, noise, strict=True)]
    curve = fit([r for r, _ in grid], [c for _, c in grid], measured)
    for name in ("floor_s", "row_s", "context_s"):
        assert getattr(curve, name) == pytest.approx(getattr(truth, name), rel=0.10), name
    assert errors(curve, [g[0] for g in grid], [g[1] for g in grid], [truth.seconds(*g) for g in grid]).worst < 0.10


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(UsageError, match="needed: at least 5"):
        fit([1, 2], [0, 0], [1.0, 1.0])
    with pytest.raises(UsageError, match=r"the least 0\.0 s"):
        fit([1, 2, 3, 4, 5, 6], [0] * 6, [1.0] * 5 + [0.0])


@pytest.mark.parametrize(
    ("rows", "contexts", "cells", "words"),
    [
        ((8, 4), (0,), ((1.0, 1.0),), "rows are"), ((0, 4), (0,), ((1.0, 1.0),), "rows are"),
        ((), (0,), ((),), "rows are"), ((4,), (9, 9), ((1.0,), (1.0,)), "contexts are"),
        ((4, 8), (0,), ((1.0,),), "entries by context"), ((4,), (0, 1), ((1.0,),), "entries by context"),
        ((4,), (0,), ((-1.0,),), "positive seconds"), ((4,), (0,), ((math.nan,),), "positive seconds"),
    ],
)
def test_what_is_no_table_is_refused(rows: tuple, contexts: tuple, cells: tuple, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Table(rows, contexts, cells)


def test_a_negative_roofline_is_refused() -> None:
    with pytest.raises(UsageError, match=r"row_s is -0\.1"):
        Roofline(row_s=-0.1)
