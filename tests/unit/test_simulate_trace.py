"""A recorded trace played back: the engine's own steps, one by one, and what other recipes would have done."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hedgerow.control.controller import Fixed as FixedSize
from hedgerow.core.errors import ModelError, UsageError
from hedgerow.core.parts import Feats, Needs, RowGroup, Sampling, Step, Target, Verdict
from hedgerow.core.probs import law
from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.record import StepRecord, read
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.cost.profiles import load
from hedgerow.policy.block import Block
from hedgerow.policy.fixed import Fixed
from hedgerow.recipes import TABLE, get
from hedgerow.simulate import Positional, Recorded, Report, parts, play
from hedgerow.simulate.recorded import Known, recordings
from hedgerow.simulate.replay import ReplayTarget, rest_logit, shown, shown_step
from hedgerow.topology.basic import chain, expansion
from hedgerow.verify.rejection import Rejection
from tests.unit.simulate_kit import Recorded as Run
from tests.unit.simulate_kit import learner, run, table, tiny

GREEDY, WARM = Sampling(), Sampling(temperature=0.8, top_p=0.95)


def same_steps(engine: list[StepRecord], again: list[StepRecord], other: int | None = None) -> None:
    """Every step alike: its place, tree, path and tokens, and the rows behind them in float32, bit for bit.

    `other` is the token that stands for the unrecorded ones; it may have pushed the last token out of a row's best.
    """
    assert len(engine) == len(again)
    for a, b in zip(engine, again, strict=True):
        assert (a.step, a.position, a.root, a.prompt) == (b.step, b.position, b.root, b.prompt)
        assert {**a.tree, "survival": 0} == {**b.tree, "survival": 0}
        # a node more or less looked up in a step that ended early shifts a mixed estimate by a rounding
        assert b.tree["survival"] == pytest.approx(a.tree["survival"], rel=1e-12, abs=0)
        assert a.path == b.path and a.token == b.token and a.stop == b.stop
        assert (a.committed, a.proposed, a.batch, a.plan_nodes) == (b.committed, b.proposed, b.batch, b.plan_nodes)
        assert a.finished == b.finished
        assert len(a.top_ids) == len(b.top_ids)
        for row in range(len(a.top_ids)):
            seen = [n for n, token in enumerate(b.top_ids[row]) if token != other]
            assert len(seen) >= min(len(a.top_ids[row]), 63)
            assert [b.top_ids[row][n] for n in seen] == a.top_ids[row][: len(seen)]
            then, now = np.float32(a.top_logits[row][: len(seen)]), np.float32(b.top_logits[row])[seen]
            assert np.array_equal(then, now)


def replayed(engine: Run, recipe: Recipe, **options: object) -> tuple[Report, list[StepRecord]]:
    again: list[StepRecord] = []
    report = play(recipe, Recorded.of(engine.path), trace=again.append, **options)  # type: ignore[arg-type]
    return report, again


TARGETS: dict[str, Callable[[], Target]] = {"tiny": tiny, "table": table}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_replay_repeats_the_engine_step_by_step(target: str, sampling: Sampling, batch: int, tmp_path: Path) -> None:
    engine = run(TARGETS[target](), learner(), tmp_path / "t", sampling, batch=batch)
    report, again = replayed(engine, learner())
    same_steps(engine.records, again, Recorded.of(engine.path).vocab - 1)
    assert report.tau == engine.tau and report.known == 1.0
    accepted = [k for r in engine.requests for k, n in enumerate(r.histogram) for _ in range(n)]
    assert report.histogram == np.bincount(accepted).tolist()
    assert max(len(r.path) for r in engine.records) > 1          # the test would pass on plain decoding too


RETRIEVAL = [n for n in sorted(TABLE) if all(s.kind == "retrieval" and s.make for s in get(n).sources)]


@pytest.mark.parametrize("name", RETRIEVAL)
def test_recipes_of_retrieval_repeat_the_engine(name: str, tmp_path: Path) -> None:
    engine = run(tiny(), get(name), tmp_path / "t", GREEDY, runs=[(60, 60), (60,)], batch=2)
    report, again = replayed(engine, get(name), as_recorded=True)  # when drafting rests is a matter of seconds
    same_steps(engine.records, again, other=48)
    assert report.tau == engine.tau


@pytest.mark.parametrize("name", RETRIEVAL)
def test_recipes_of_retrieval_bear_unknown_rows(name: str, tmp_path: Path) -> None:
    """On another recipe's trace most of their nodes have no row, and there is nothing to learn from them."""
    engine = run(table(), learner(), tmp_path / "t", Sampling(temperature=1.0), runs=[(120, 60)])
    report, _ = replayed(engine, get(name))
    assert report.tokens == sum(r.committed for r in engine.records)
    assert report.known < 1.0 or name == "plain"


OFFLINE = ("global_resolution",)            # lists all tuples of drafts: for laws of few tokens


@pytest.mark.parametrize("name", sorted(set(TABLE) - set(OFFLINE)))
def test_every_recipe_plays_in_every_world(name: str, warm_trace: Path) -> None:
    recipe = get(name)
    needy = any(s.kind == "retrieval" and s.make is None for s in recipe.sources)
    worlds = [Positional([0.6, 0.2, 0.1]), *([] if needy else [Recorded.of(warm_trace)])]
    for world in worlds:
        report = play(recipe, world, load("a800-qwen3-8b-hf"), steps=12)
        assert report.steps >= 5 and report.tau is not None and report.speedup is not None
        assert report.tau >= 1.0 and (report.drafted > 0 or recipe.nodes == 0)


@pytest.fixture(scope="module")
def warm_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "t"
    return run(tiny(), learner(), path, Sampling(temperature=0.8), runs=[(40, 40)]).path


def test_end_of_sequence_and_runs_that_follow_each_other(tmp_path: Path) -> None:
    """A request that a stop ended, with room left; a second run whose numbers begin again; drafters that remember."""
    engine = run(tiny(eos=frozenset({5, 9})), learner(), tmp_path / "t", GREEDY, runs=[(90, 90, 90), (80, 9)], batch=2)
    assert "stop" in {r.finish.reason for r in engine.requests}
    report, again = replayed(engine, learner())
    wave = [r.wave for r in Recorded.of(engine.path).recordings]
    assert wave == sorted(wave) and wave[-1] > 0
    assert report.requests == sum(r.prompt is not None for r in engine.records) > 3
    same_steps(engine.records, again, other=48)
    assert report.tau == engine.tau


def test_a_guard_that_rested_is_repeated_on_request(tmp_path: Path) -> None:
    """The engine's guard knows the machine; a replay knows it from the recorded plans."""
    guard = FixedSize(7, price=lambda: 1.9, rest=3)
    engine = run(tiny(), learner(), tmp_path / "t", GREEDY, controller=guard)
    rests = sum(r.plan_nodes == 0 for r in engine.records)
    assert 0 < rests < len(engine.records) and Recorded.of(engine.path).rests == rests
    report, again = replayed(engine, learner(), as_recorded=True)
    same_steps(engine.records, again, other=48)
    assert report.tau == engine.tau and report.share["plain"] >= rests / len(engine.records)
    free, _ = replayed(engine, learner())
    assert free.steps != len(engine.records) and free.known < 1.0


def test_any_recipe_writes_the_recorded_text(tmp_path: Path) -> None:
    """Under a match rule the text is the recorded one, whatever is drafted; only the steps differ."""
    for sampling in (GREEDY, WARM):
        engine = run(tiny(), learner(), tmp_path / "t", sampling)
        texts = [list(r.finish.ids) for r in engine.requests]
        for recipe in (get("plain"), learner(nodes=2), parts(Fixed(chain(4))), parts(Fixed(chain(4), Selection.IID))):
            report, again = replayed(engine, recipe)
            written: dict[int, list[int]] = {}
            for r in again:
                tokens = [*(r.tree["tokens"][i] for i in r.path), r.token][: r.committed]
                written.setdefault(r.request, [r.root]).extend(tokens)
            assert [written[i] for i in sorted(written)] == texts
            assert report.tokens == sum(len(t) - 1 for t in texts)
        assert play(get("plain"), Recorded.of(engine.path)).tau == 1.0


# -------------------------------------------------------------------------------------------------- what is not known

def test_unknown_rows_accept_nothing_and_show_nothing(tmp_path: Path) -> None:
    engine = run(table(), learner(), tmp_path / "t", GREEDY, runs=[(20,)])
    world = Recorded.of(engine.path)
    recording = world.recordings[0]
    target = ReplayTarget(world.vocab)
    slot = target.acquire()
    target.bind(slot, recording)
    root = len(recording.prompt)
    right, wrong = recording.text[root + 1], next(t for t in range(80) if recording.row(root, (t,)) is None)
    tree = TokenTree.of(tokens=[right, wrong], parent=[-1, -1])
    group = RowGroup("tree", slot, np.array([recording.text[root], right, wrong]), tree.positions(root), tree.mask)
    rows, feats = target.collect(target.submit([group], Needs(top_k=70)))
    other = world.vocab - 1
    assert rows.argmax(0).tolist() == [right, recording.text[root + 2], other]
    assert law(rows.logits(0, 2), Sampling(temperature=1.0))[other] == 1.0
    ids = feats[0].top_ids
    assert ids is not None and ids[2].tolist() == [-1] * 70
    assert ids[0, :64].tolist() == engine.records[0].top_ids[0] and ids[0, 64:].tolist() == [-1] * 6
    assert (target.rows, target.unknown) == (3, 1)
    with pytest.raises(UsageError, match="no hidden states"):
        target.submit([group], Needs(taps=(1,)))


def test_rows_off_the_text_are_found_by_what_was_drafted(tmp_path: Path) -> None:
    engine = run(table(), learner(), tmp_path / "t", GREEDY, runs=[(80,)])
    recording = Recorded.of(engine.path).recordings[0]
    found = 0
    for r in engine.records:
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(r.tree["tokens"], r.tree["parent"], strict=True):
            paths.append((*paths[parent + 1], token))
        for path, ids in zip(paths, r.top_ids, strict=True):
            known = recording.row(r.position, path)
            assert known is not None and known.ids.tolist() == ids
            found += bool(recording.place(r.position, path)[1])
    assert found > 10


def test_the_last_token_stands_for_what_was_not_recorded() -> None:
    """At temperature 1 its mass is exactly what is missing; a filter that is sure to drop it drops it."""
    logits = np.sort(np.random.default_rng(2).normal(0.0, 2.0, 300))[::-1]
    lse = float(np.log(np.exp(logits).sum()))
    known = Known(np.arange(64), logits[:64].astype(np.float32), lse)
    p = np.exp(logits - lse)

    def share(sampling: Sampling) -> float:
        row = np.append(logits[:64], rest_logit(known, sampling))
        return float(law(row, Sampling(temperature=sampling.temperature))[-1])

    assert share(Sampling(temperature=1.0)) == pytest.approx(p[64:].sum(), rel=1e-4)
    cold = np.exp(logits / 0.5) / np.exp(logits / 0.5).sum()
    assert cold[64:].sum() < share(Sampling(temperature=0.5)) < p[64:].sum()
    for dropped in (
        Sampling(), Sampling(temperature=1.0, top_k=64), Sampling(temperature=1.0, top_p=0.5),
        Sampling(temperature=1.0, min_p=0.9),
    ):
        assert rest_logit(known, dropped) == -math.inf
    for kept in (Sampling(1.0, top_k=65), Sampling(1.0, top_p=0.9999999), Sampling(1.0, min_p=1e-9)):
        assert rest_logit(known, kept) > -math.inf
    assert rest_logit(Known(np.arange(300), logits.astype(np.float32), lse), Sampling(temperature=1.0)) == -math.inf


def test_a_drafter_is_shown_what_is_known() -> None:
    tree = TokenTree.of(tokens=[5, 6, 7, 8], parent=[-1, -1, 0, 1], survival=[0.9, 0.8, 0.7, 0.6])
    ids = np.array([[1, 2], [3, 4], [-1, -1], [5, 6], [-1, -1]])
    feats = Feats(top_ids=ids, top_logits=np.zeros((5, 2), np.float32))
    step = Step(tree, Verdict((0, 2), 9, "bonus"), feats, root=4, position=3, seconds=0.0)
    got = shown_step(step)
    assert got.tree.tokens.tolist() == [5, 7] and got.tree.parent.tolist() == [-1, 0]
    assert got.tree.survival.tolist() == [0.9, 0.7]
    assert got.verdict == Verdict((0, 1), 9, "bonus")
    assert got.feats.top_ids is not None and got.feats.top_ids.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert shown_step(replace(step, verdict=Verdict((1,), 9, "bonus"))).feats.top_ids is None
    whole = replace(step, feats=replace(feats, top_ids=np.abs(ids)))
    assert shown_step(whole) is whole
    assert shown(whole.feats) is whole.feats and shown(feats).top_ids is None


# ---------------------------------------------------------------------------------------------------------- stand-ins

def test_a_perfect_stand_in_is_always_right(tmp_path: Path) -> None:
    engine = run(table(), learner(), tmp_path / "t", GREEDY, runs=[(41, 61)])
    for kind in ("autoregressive", "block", "heads"):
        report = play(parts(Fixed(chain(4)), kind=kind, nodes=4), Recorded.of(engine.path, quality=1.0))
        assert report.histogram == [0, 0, 0, 0, report.steps] and report.tau == 5.0
    again = play(parts(Block(), kind="block"), Recorded.of(engine.path, quality=1.0, reach=3))
    assert again.mean_nodes == 15.0 and len(again.histogram) == 4          # the tree of a block is wide but 3 deep


def test_the_favourite_of_a_stand_in_is_a_draw_at_its_temperature(tmp_path: Path) -> None:
    """At quality 0.5 (σ = 1) it meets the target's best token with the probability the target gives that token."""
    engine = run(table(), learner(), tmp_path / "t", GREEDY, runs=[(200, 200, 200)])
    world = Recorded.of(engine.path, quality=0.5)
    rows = [r.row(i, ()) for r in world.recordings for i in range(len(r.prompt), len(r.text) - 1)]
    sure = np.array([float(np.exp(k.logits[0]) / np.exp(k.logits).sum()) for k in rows if k is not None])
    agreed = []
    for seed in range(3):
        records: list[StepRecord] = []
        play(parts(Fixed(chain(1)), nodes=1), world, seed=seed, trace=records.append)
        agreed += [len(r.path) for r in records if r.tree["tokens"]]
    assert abs(np.mean(agreed) - sure.mean()) < 4 * math.sqrt(0.25 / len(agreed)) + 0.02


def test_quality_pays(tmp_path: Path) -> None:
    engine = run(tiny(), learner(), tmp_path / "t", GREEDY, runs=[(100, 100)])
    recipe = parts(Fixed(expansion([2, 2, 1])), nodes=10)
    taus = [play(recipe, Recorded.of(engine.path, quality=q)).tau or 0.0 for q in (0.2, 0.5, 0.7, 1.0)]
    assert taus == sorted(taus) and taus[0] < 1.6 and taus[-1] == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize("selection", [Selection.IID, Selection.WITHOUT_REPLACEMENT], ids=lambda s: s.label)
def test_a_q_aware_rule_accepts_all_of_a_perfect_drafter(selection: Selection, tmp_path: Path) -> None:
    """q = p: every draw is accepted, though few of them are the recorded token; the assumed rows make that visible."""
    warm = Sampling(temperature=1.0)
    engine = run(tiny(), learner(), tmp_path / "t", warm, runs=[(80, 80)])
    recipe = parts(Fixed(chain(3), selection), Rejection(), nodes=3)
    full = play(recipe, Recorded.of(engine.path, quality=1.0))
    assert sum(full.histogram[:3]) <= 4                                # the last steps of a request, cut by its end
    assert full.known < 0.9
    refused = play(recipe, Recorded.of(engine.path, quality=1.0, assume=False))
    assert refused.tau is not None and full.tau is not None and refused.tau < full.tau - 0.5
    worse = play(recipe, Recorded.of(engine.path, quality=0.5))
    assert worse.tau is not None and 1.0 < worse.tau < full.tau


def test_coupled_children_meet_the_recorded_draw(tmp_path: Path) -> None:
    """A perfect drafter that races on the target's own noise proposes the token that the target drew."""
    engine = run(tiny(), learner(), tmp_path / "t", Sampling(temperature=1.0), runs=[(80, 80)])
    report = play(parts(Fixed(chain(3), Selection.COUPLED), nodes=3), Recorded.of(engine.path, quality=1.0))
    assert sum(report.histogram[:3]) <= 4
    top = play(parts(Fixed(chain(3)), nodes=3), Recorded.of(engine.path, quality=1.0))
    assert top.tau is not None and report.tau is not None and top.tau < report.tau


def test_two_stand_ins_differ(tmp_path: Path) -> None:
    engine = run(table(), learner(), tmp_path / "t", GREEDY, runs=[(60,)])
    recipe = parts(Fixed(chain(2)), nodes=2)
    two = replace(recipe, sources=(recipe.sources[0], DraftSource("other", "autoregressive", None)))
    records: dict[int, list[list[int]]] = {}
    for source in (0, 1):
        seen = records[source] = []
        control = FixedSize(2, source=source)
        world = Recorded.of(engine.path, quality=0.4)
        play(two, world, controller=control, trace=lambda r, s=seen: s.append(r.tree["tokens"]))
    assert records[0] != records[1]


def test_a_source_that_lacks_something_says_so(tmp_path: Path) -> None:
    engine = run(table(), learner(), tmp_path / "t", GREEDY, runs=[(9,)])
    recipe = replace(learner(), sources=(DraftSource("store", "retrieval", None, "a datastore"),))
    with pytest.raises(UsageError, match="source 'store' needs a datastore"):
        play(recipe, Recorded.of(engine.path))


# -------------------------------------------------------------------------------------------------------------- files

def test_a_trace_that_was_cut_is_played_to_its_end(tmp_path: Path) -> None:
    engine = run(table(), learner(), tmp_path / "t", GREEDY, runs=[(40,)])
    lines = engine.path.read_text().splitlines()
    engine.path.write_text("\n".join(lines[:6]) + "\n")
    report, again = replayed(engine, learner())
    for a, b in zip(engine.records[:6], again, strict=True):
        assert (a.position, a.tree, a.path, a.token, a.committed) == (b.position, b.tree, b.path, b.token, b.committed)
    assert report.tau == sum(r.committed for r in engine.records[:6]) / 6


def test_a_trace_with_a_hole_is_refused(tmp_path: Path) -> None:
    engine = run(table(), learner(), tmp_path / "t", GREEDY, runs=[(40,)])
    lines = engine.path.read_text().splitlines()
    engine.path.write_text("\n".join([*lines[:3], *lines[4:]]) + "\n")
    with pytest.raises(ModelError, match="does not follow the step before"):
        Recorded.of(engine.path)
    engine.path.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(ModelError, match="but not its first"):
        Recorded.of(engine.path)
    engine.path.write_text("")
    with pytest.raises(UsageError, match="the trace has no steps"):
        Recorded.of(engine.path)
    with pytest.raises(UsageError, match="quality is 0"):
        Recorded(recordings(iter(engine.records)), quality=0.0)


def test_the_limit_of_a_stopped_request_is_taken_from_the_trace_where_it_is(tmp_path: Path) -> None:
    engine = run(tiny(eos=frozenset({5, 9})), learner(), tmp_path / "t", GREEDY, runs=[(90, 90, 90)])
    records = list(read(engine.path))
    stopped = next(i for i, r in enumerate(recordings(records)) if r.reason == "stop")
    assert recordings(records)[stopped].max_tokens == engine_limit(records, stopped)
    law = ("temperature", "top_k", "top_p", "min_p", "seed")
    untold = [replace(r, sampling={k: r.sampling[k] for k in law}) if r.sampling else r for r in records]
    assert recordings(untold)[stopped].max_tokens > 1000


def engine_limit(records: list[StepRecord], number: int) -> int:
    """What the number-th request of a trace was asked for."""
    first = [r.sampling for r in records if r.sampling]
    limit = first[number]["max_tokens"]
    assert isinstance(limit, int)
    return limit


def test_a_batch_of_ones_own(tmp_path: Path) -> None:
    """All requests in one queue: the same texts, fewer calls, a later request no longer waits for its run."""
    engine = run(tiny(), learner(), tmp_path / "t", GREEDY, runs=[(30, 30), (30, 30)], batch=1)
    one, four = (play(learner(), Recorded.of(engine.path), batch=batch) for batch in (1, 4))
    assert four.calls < one.calls / 2 and four.tokens == one.tokens and four.batch == 4
    priced = play(learner(), Recorded.of(engine.path), load("m3pro-q8-tiles"), batch=4)
    assert priced.seconds and priced.plain_seconds and priced.seconds["draft"] == 0.0
    assert priced.speedup == pytest.approx(priced.plain_seconds / priced.seconds["total"])


def test_a_report_is_plain_data(tmp_path: Path) -> None:
    engine = run(table(), learner(), tmp_path / "t", GREEDY, runs=[(30,)])
    report, _ = replayed(engine, learner(), cost=load("a800-qwen3-8b-hf"), steps=5)
    assert report.steps == 5
    assert json.loads(json.dumps(report.to_dict()))["profile"] == "a800-qwen3-8b-hf"
