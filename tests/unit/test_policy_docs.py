"""docs/trees.md: its examples run, and every entry point it names exists."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trees.md"


def test_the_examples_run() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted >= 10 and not result.failed


@pytest.mark.parametrize("dotted", sorted(set(re.findall(
    r"`((?:topology|policy|control|cost)\.\w+\.\w+)\(", PAGE.read_text(encoding="utf-8")
))))
def test_named_entry_points_exist(dotted: str) -> None:
    module, function = dotted.rsplit(".", 1)
    assert callable(getattr(importlib.import_module(f"hedgerow.{module}"), function))


def test_the_published_builders_of_the_page_exist() -> None:
    from hedgerow.testing import trees

    named = set(re.findall(r"`trees\.(\w+)\(", PAGE.read_text(encoding="utf-8")))
    assert len(named) >= 10 and all(callable(getattr(trees, n)) for n in named)


def test_constructors_of_the_page_are_classes_of_the_package() -> None:
    known = set()
    for path in (PAGE.parents[1] / "src" / "hedgerow" / "policy").glob("*.py"):
        known |= set(re.findall(r"^(?:class|def) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    table = PAGE.read_text(encoding="utf-8").split("| method | constructor |")[1].split("*Deterministic*")[0]
    named = set(re.findall(r"\b([A-Z][a-zA-Z]+)\(", table))
    assert len(named) > 25 and named <= known, named - known
