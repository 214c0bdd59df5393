"""core.recipe, core.record, core.errors and the small parts of core.parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from hedgerow.core import record
from hedgerow.core.errors import HedgerowError, ModelError, RecipeError, UnknownName, UsageError
from hedgerow.core.parts import Children, Needs, Packed, Plan, RowGroup, Sampling, Verdict, View
from hedgerow.core.recipe import Built, DraftSource, Recipe, check, is_match
from hedgerow.core.record import StepRecord, read
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.testing.law import Edited, Grown
from hedgerow.verify.lossy import Cactus, Typical
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection
from tests.law.cases import Controlled

DRAWN = Grown.levels(2, selection=Selection.WITHOUT_REPLACEMENT)
FIXED = Grown.levels(2, selection=Selection.TOP_K)


def controller(**flags: bool) -> Controlled:
    return replace(Controlled(8, lambda trees: [t.nodes for t in trees], cuts=False), **flags)


def test_match_fits_everything() -> None:
    for policy in (DRAWN, FIXED, Edited(DRAWN, lambda t: t)):
        check("any", policy, Match(), controller(looks_ahead=True, cuts=True))
    assert is_match(Match()) and is_match(Typical()) and not is_match(Rejection())


@pytest.mark.parametrize("policy, flags, words", [
    (FIXED, {}, "rule 'rejection' judges children of selection iid, without_replacement, but the policy selects top_k"),
    (Edited(DRAWN, lambda t: t), {}, "drops or ranks drawn children"),
    (DRAWN, {"looks_ahead": True}, "decides how much to verify after it has seen"),
    (Grown.levels(2, selection=Selection.IID), {"cuts": True}, "which draws repeat"),
])
def test_what_is_refused(policy: Grown, flags: dict[str, bool], words: str) -> None:
    with pytest.raises(RecipeError, match=words) as e:
        check("mine", policy, Rejection(), controller(**flags))
    assert "\n" not in str(e.value) and "recipe 'mine'" in str(e.value) and e.value.exit_code == 2


def test_what_fits() -> None:
    check("mine", DRAWN, Rejection())
    check("mine", DRAWN, Rejection(), controller(cuts=True))
    check("mine", Grown.levels(2, selection=Selection.IID), Rejection(), controller())


def test_lossy_rules_are_not_held_to_it() -> None:
    check("mine", Edited(DRAWN, lambda t: t), Cactus(), controller(looks_ahead=True, cuts=True))
    with pytest.raises(RecipeError, match="judges children"):
        check("mine", FIXED, Cactus())


def recipe(**changes: object) -> Recipe:
    given: dict[str, object] = {
        "name": "mine", "version": 1, "title": "Mine", "paper": "", "policy": DRAWN, "rule": Rejection(),
        "sources": (DraftSource("small", "autoregressive", None),), **changes,
    }
    return Recipe(**given)  # type: ignore[arg-type]


def test_a_recipe_checks_itself() -> None:
    assert recipe().exact and not recipe(rule=Cactus()).exact
    with pytest.raises(RecipeError):
        recipe(policy=FIXED)


def test_built_is_plain_data() -> None:
    from hedgerow.target.table import TableLaw, TableTarget

    assert Built(TableTarget(TableLaw.of({(): [1, 1]})).info).target is None


# ------------------------------------------------------------------------------------------------ records

def step(**changes: object) -> StepRecord:
    given: dict[str, object] = {
        "request": 1, "step": 2, "position": 9, "root": 4, "proposed": 1, "tree": {"tokens": [3]}, "path": [0],
        "token": 5, "stop": "bonus", "committed": 2, "seconds": {"draft": 0.1}, "batch": 1, "rows": 2,
        "plan_nodes": 1, **changes,
    }
    return StepRecord(**given)  # type: ignore[arg-type]


def test_records_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    later = step(step=3, reason="guard").to_json().replace('"rows"', '"new":1,"rows"')
    path.write_text(step().to_json() + "\n\n" + later)
    first, second = read(path)
    assert first == step() and second == step(step=3, reason="guard"), "keys of a later version are skipped"


@pytest.mark.parametrize("line", [
    "{", "[1]", '{"schema": 1}', step().to_json().replace(f'"schema":{record.SCHEMA}', '"schema":99'),
])
def test_what_is_no_record_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(step().to_json() + "\n" + line)
    with pytest.raises(ModelError, match="line 2 is no step record"):
        list(read(path))


# ------------------------------------------------------------------------------------------------ errors and parts

def test_unknown_names() -> None:
    assert str(UnknownName("recipe", "sufix", ["suffix", "ngram"])) == "unknown recipe 'sufix'. Did you mean 'suffix'?"
    far = str(UnknownName("recipe", "zzz", ["b", "a"], "look here."))
    assert far == "unknown recipe 'zzz'. Known: a, b. look here."
    assert HedgerowError.exit_code == 1 and UnknownName.exit_code == UsageError.exit_code == 2


@pytest.mark.parametrize("bad", [
    {"temperature": -0.1}, {"temperature": 101.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"min_p": -0.1},
    {"min_p": 1.5},
])
def test_sampling_out_of_range(bad: dict[str, float]) -> None:
    name, value = next(iter(bad.items()))
    with pytest.raises(UsageError, match=f"{name} is {value}; allowed"):
        Sampling(**bad)  # type: ignore[arg-type]


def test_sampling_knows_whether_it_filters() -> None:
    assert not Sampling(temperature=1.0).filtered
    assert all(Sampling(**one).filtered for one in ({"top_k": 1}, {"top_p": 0.9}, {"min_p": 0.1}))  # type: ignore[arg-type]


def test_needs_add_up() -> None:
    both = Needs((3, 1), top_k=2) | Needs((1, 7), last_hidden=True)
    assert both == Needs((1, 3, 7), True, 2)


def test_answers_are_split_per_request() -> None:
    answer = Children([2, 0, 1], [5, 6, 7], [-1.0, -2.0, -3.0], [0, 0, 2], [1, 2, 1], {"entropy": [0.1, 0.2, 0.3]})
    one, none, rest = answer.split([1, 0, 2])
    assert (one.token, one.origin, one.mult, one.aux) == ([5, 6], [0, 0], [1, 2], {"entropy": [0.1]})
    assert none.token == [] and (rest.count, rest.token, rest.aux["entropy"]) == ([0, 1], [7], [0.2, 0.3])
    bare = Children([1], [5], [-1.0]).split([1])[0]
    assert bare.origin is None and bare.mult is None


def test_verdicts_commit_their_path_and_one_more() -> None:
    tree = TokenTree.of([4, 5, 6], [-1, 0, 0])
    assert Verdict((0, 2), 9, "bonus").committed(tree) == [4, 6, 9]
    assert Verdict((), 9, "residual").committed(tree) == [9]


def test_a_view_starts_with_nothing() -> None:
    @dataclass
    class Twice:
        views: list[View] = field(default_factory=lambda: [
            View(i, i, 0, 3, 8, Sampling(), Rng(i)) for i in range(2)
        ])

    one, two = Twice().views
    one.growth.add([-1], [1], [5], [-0.1])
    assert len(two.growth) == 0, "no shared state"
    assert Plan(0).width > 1000


def test_row_groups_say_what_their_rows_see() -> None:
    one = np.ones(2, np.int64)
    tree = RowGroup("tree", 0, one, one, np.eye(2, dtype=np.bool_))
    assert tree.sees is tree.ancestors
    prefill = RowGroup("prefill", 0, np.arange(3), np.arange(3), np.ones((3, 0), np.bool_))
    assert prefill.sees.astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]], "a prefill is causal"
    assert Packed([], [], [], [], [tree, prefill]).rows == 5
