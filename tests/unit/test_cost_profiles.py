"""Profiles: shipped ones say where they come from, files are read strictly, forms have their own cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hedgerow.core.errors import ModelError, UnknownName, UsageError
from hedgerow.core.parts import StepShape
from hedgerow.cost.model import Roofline, Table
from hedgerow.cost.profiles import Draft, Profile, load, names, parse, save


@pytest.mark.parametrize("name", names())
def test_shipped_profiles_name_their_source(name: str) -> None:
    profile = load(name)
    assert profile.name == name
    assert profile.source.startswith("github.com/") and profile.licence and profile.title and profile.note
    assert "engine" in profile.key
    for rows in (1, 2, 4, 16, 64, 128, 512):
        for context in (0, 1000, 20000):
            assert 0.005 < profile.step_s(StepShape([rows], [context])) < 5.0      # seconds, not milliseconds
    assert 0.0 <= profile.draft_s(1, 1, 1) < 0.1


# (profile, form, rows, context) -> seconds, as published
PUBLISHED = {
    ("a800-qwen3-8b-hf", "tree", 512, 8000): 0.1172744,
    ("a800-qwen3-8b-hf", "plain", 1, 1): 0.03479,
    ("a800-qwen3-4b-hf", "tree", 64, 4000): 0.0347123,
    ("h100-sxm-qwen3-8b-hf", "plain", 1, 16384): 0.02368819,
    ("h100-sxm-qwen3-8b-hf", "tree", 4, 16384): 0.05525742,
    ("h100-sxm-qwen3-8b-hf", "chain", 128, 8192): 0.03788628,
    ("rtxpro6000-qwen3-8b-hf", "tree", 128, 1024): 0.0302501,
    ("m3pro-q8-tiles", "tree", 40, 8444): 0.0851,
    ("specexec-offload", "tree", 256, 0): 1.6232,
}


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda c: "-".join(map(str, c)))
def test_shipped_figures_are_the_published_ones(case: tuple[str, str, int, int]) -> None:
    name, form, rows, context = case
    assert load(name).step_s(StepShape([rows], [context], form)) == pytest.approx(PUBLISHED[case], rel=1e-9)  # type: ignore[arg-type]


def test_leaving_the_causal_path_has_its_price() -> None:
    profile = load("h100-sxm-qwen3-8b-hf")
    plain, tree = (profile.step_s(StepShape([1], [8192], form)) for form in ("plain", "tree"))
    assert tree / plain == pytest.approx(34.3683 / 22.86972, rel=1e-6)


def test_a_form_beyond_its_rows_grows_as_the_tree_does() -> None:
    plain = Table((1,), (0,), ((1.0,),))
    tree = Table((1, 100), (0,), ((3.0, 4.98),))
    profile = Profile("x", {"plain": plain, "tree": tree})
    assert profile.step_s(StepShape([1], [0], "plain")) == 1.0
    assert profile.step_s(StepShape([1] * 51, [0] * 51, "plain")) == pytest.approx(2.0)
    assert profile.step_s(StepShape([51], [0], "tree")) == pytest.approx(4.0)
    assert profile.step_s(StepShape([51], [0], "chain")) == pytest.approx(4.0)         # not measured: the tree's
    only = Profile("x", {"plain": Roofline(row_s=1.0)})
    assert only.step_s(StepShape([3], [0], "tree")) == 3.0


def test_profiles_survive_their_file(tmp_path: Path) -> None:
    curves = {
        "plain": Roofline(floor_s=0.1, sharpness=5.0), "chain": Roofline(base_s=0.1, row_context_s=1e-9),
        "tree": Table((8, 16), (0, 9), ((1.0, 2.0), (1.5, 2.5)), steps=True),
    }
    profile = Profile("mine", curves, Draft(0.1, 0.2), {"device": "cpu"}, "t", "s", "l", "ä")
    save(profile, tmp_path / "p.json")
    assert load(tmp_path / "p.json") == profile
    for name in names():
        assert parse(load(name).to_json(), name) == load(name)


def edited(**changes: object) -> str:
    """The text of a small profile with some keys changed; None drops a key."""
    data = json.loads(Profile("x", {"tree": Roofline(base_s=1.0)}).to_json())
    data.update(changes)
    return json.dumps({k: v for k, v in data.items() if v is not None})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (edited(schema=2), "its schema is 2, this version reads 1"),
        (edited(schema=None), "its schema is None"),
        (edited(gpu="A100"), "a profile has the unknown key 'gpu'; known: "),
        (edited(draft={"call_ms": 3.0}), "draft has the unknown key 'call_ms'; known: call_s, row_s"),
        (edited(curves={"tree": {"base_ms": 3.0}}), "a roofline has the unknown key 'base_ms'"),
        (edited(curves={"tree": {"rows": [1], "ms": [[3.0]]}}), "a table has the unknown key 'ms'"),
        (edited(curves={"tree": {"rows": [1], "contexts": [0]}}), "'step_s' is missing"),
        (edited(curves={"tree": {"rows": [1], "contexts": [0], "step_s": [[1]], "between": "curve"}}), "line, step"),
        (edited(curves={"tree": {"rows": [1], "contexts": [0], "step_s": [[0]]}}), "positive seconds"),
        (edited(curves={"forest": {}}), "has curves for .'forest'."),
        (edited(curves={}), "at least one of"),
        ("[1]", "it is no JSON object"),
        ("{", "cannot be used"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_in_words(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_another_machine_is_refused() -> None:
    profile = load("a800-qwen3-8b-hf")
    profile.require(device="A800", model="Qwen3-8B", driver="any")
    with pytest.raises(UsageError, match="was measured with model 'Qwen3-8B', this is 'Qwen3-4B'"):
        profile.require(device="A800", model="Qwen3-4B")


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'm3pro-q8-tiles'"):
        load("m3pro-q8-tile")
