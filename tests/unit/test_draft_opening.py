"""Whose drafter a directory holds: one for another tokenizer or another model is refused, or left out where unasked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hedgerow.core.errors import ModelError
from hedgerow.core.recipe import Built
from hedgerow.draft.advised import Advised
from hedgerow.draft.blend import BlendDrafter
from hedgerow.draft.formats import OtherTarget, TargetFacts, fingerprint, save_own
from hedgerow.draft.opening import open_drafter
from hedgerow.draft.shipped import shipped
from hedgerow.models.weights import DEMO_NAME
from hedgerow.recipes.auto import mixed
from hedgerow.target.tiny import TinyTarget
from tests.unit.eagle_kit import random_head

WORDS = {f"t{i}": i for i in range(64)}
SWAPPED = {**WORDS, "t1": 2, "t2": 1}


@pytest.fixture(scope="module")
def target() -> TinyTarget:
    return TinyTarget(seed=0, slots=2)


@pytest.fixture
def path(target: TinyTarget, tmp_path: Path) -> str:
    """A drafter whose card says which tokenizer its target has."""
    facts = TargetFacts(64, 64, target.runner.net.layers, tokenizer=fingerprint(WORDS))
    return str(save_own(random_head(), tmp_path / "drafter", target=facts))


def built(target: TinyTarget, path: str | None, words: dict[str, int] | None, name: str = "tiny") -> Built:
    tokenizer: Any = None if words is None else SimpleNamespace(vocabulary=lambda: words)
    return Built(replace(target.info, name=name), target, path, (), tokenizer)


def test_a_drafter_for_another_tokenizer_is_refused(target: TinyTarget, path: str) -> None:
    assert open_drafter(built(target, path, WORDS)).needs.taps == (0, 1, 2)
    assert open_drafter(built(target, path, None)).needs.taps == (0, 1, 2)      # nothing is known, nothing compared
    with pytest.raises(OtherTarget) as error:
        open_drafter(built(target, path, SWAPPED))
    said = str(error.value)
    assert path in said and "made for the tokenizer" in said and "the target tiny has" in said
    assert fingerprint(WORDS) in said and fingerprint(SWAPPED) in said


def test_a_tokenizer_in_the_drafters_directory_counts(target: TinyTarget, tmp_path: Path) -> None:
    made = save_own(random_head(), tmp_path / "drafter")
    (made / "tokenizer.json").write_text(json.dumps({"model": {"vocab": WORDS}, "added_tokens": []}), encoding="utf-8")
    assert open_drafter(built(target, str(made), WORDS))
    with pytest.raises(ModelError, match="made for the tokenizer"):
        open_drafter(built(target, str(made), SWAPPED))


def test_auto_asks_the_drafter_it_was_given(target: TinyTarget, path: str) -> None:
    assert isinstance(mixed(built(target, path, WORDS)), Advised)
    with pytest.raises(OtherTarget, match="made for the tokenizer"):
        mixed(built(target, path, SWAPPED))


def test_auto_leaves_out_what_is_shipped_for_another_model_of_that_name(target: TinyTarget) -> None:
    assert shipped(DEMO_NAME) is not None
    with pytest.raises(OtherTarget, match="576 wide"):
        open_drafter(built(target, str(shipped(DEMO_NAME)), None, DEMO_NAME))
    assert isinstance(mixed(built(target, None, None, DEMO_NAME)), BlendDrafter)


@pytest.mark.model
def test_the_shipped_drafter_is_for_the_demos_tokenizer(demo: Path) -> None:
    from hedgerow.models.convert import read_tokenizer
    from hedgerow.models.tokenizer import HFTokenizer

    place = shipped(DEMO_NAME)
    assert place is not None
    card = json.loads((place / "model_card.json").read_text(encoding="utf-8"))
    assert card["target"]["tokenizer"] == fingerprint(HFTokenizer(*read_tokenizer(demo), DEMO_NAME).vocabulary())
