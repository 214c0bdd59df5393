"""Every recipe's file: its card, its citation, its line in the table; listing imports none, no recipe imports torch."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hedgerow.recipes as recipes
from hedgerow.bench import docs
from hedgerow.core.recipe import check, is_match
from hedgerow.recipes import TABLE, get, names
from hedgerow.recipes import __file__ as table_file

FIELDS = ("Title", "Idea", "Symbols", "Differs", "Compared")
LOSSY = {"adaptivespec_lossy", "cactus", "mars", "medusa_typical"}
KINDS = {"retrieval", "autoregressive", "block", "heads", "none"}


def card(name: str) -> dict[str, str]:
    """The fields of a recipe's card, and its first line under the empty name."""
    text = inspect.getdoc(importlib.import_module(TABLE[name].split(":")[0])) or ""
    first, _, rest = text.partition("\n\n")
    fields = {"": first}
    for line in rest.splitlines():
        label = re.match(r"(\w+): +(.+)", line)
        if label:
            fields[label[1]] = label[2]
        else:
            fields[list(fields)[-1]] += " " + line.strip()
    return fields


def test_the_table_is_sorted_literal_and_whole() -> None:
    assert list(TABLE) == sorted(TABLE) == names()
    assert set(TABLE.values()) == {f"hedgerow.recipes.{name}:RECIPE" for name in names()}
    files = {path.stem for path in Path(table_file).parent.glob("*.py")} - {"__init__"}
    assert files == set(names())


@pytest.mark.parametrize("name", names())
def test_a_recipe_says_what_it_is(name: str) -> None:
    recipe, fields = get(name), card(name)
    assert recipe.name == name and recipe.version >= 1 and recipe.title
    assert fields[""].startswith(f"{name}: ") or name == "plain"
    wanted = FIELDS if recipe.paper else ("Title", "Idea", "Compared")
    assert [f for f in wanted if not fields.get(f)] == [], f"{name}: the card lacks fields"
    assert list(fields)[1:] == [f for f in FIELDS if f in fields], f"{name}: fields of the card in another order"
    for source in recipe.sources:
        assert source.kind in KINDS
        assert source.make is not None or source.needs, f"{name}: {source.name} is the user's to bring; say what"
        assert (source.make is not None) == (source.kind == "retrieval") or name in ("selfdraft", "auto_learned")
    lines = Path(importlib.import_module(f"hedgerow.recipes.{name}").__file__ or "").read_text(encoding="utf-8")
    assert len(lines.splitlines()) <= 60


@pytest.mark.parametrize("name", names())
def test_the_card_cites_the_paper_of_the_recipe(name: str) -> None:
    recipe, title = get(name), card(name)["Title"]
    if not recipe.paper:
        assert title.startswith("none")
        return
    paper = docs.papers()[recipe.paper]
    plain = re.sub(r"[{}]", "", paper["title"])
    assert title == f"{plain} ({paper['eprint']})" if "eprint" in paper else title.startswith(plain)


@pytest.mark.parametrize("name", names())
def test_exact_recipes_pass_the_check_and_lossy_ones_say_so(name: str) -> None:
    recipe = get(name)
    check(name, recipe.policy, recipe.rule)
    assert recipe.exact is (name not in LOSSY)
    assert ("lossy" in recipe.differs) is (name in LOSSY)
    drawn = [s for s in recipe.policy.selections if s.drawn]
    assert is_match(recipe.rule) or drawn or not recipe.exact


@pytest.mark.parametrize("name", [n for n in names() if get(n).alias_of])
def test_an_alias_has_the_parts_of_its_original(name: str) -> None:
    recipe = get(name)
    original = get(recipe.alias_of)
    assert not original.alias_of
    assert (recipe.nodes, recipe.rule, recipe.exact) == (original.nodes, original.rule, original.exact)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_listing_imports_no_recipe() -> None:
    """The table is text: reading it imports neither a recipe nor anything a recipe is made of."""
    loaded = python(
        "import sys\nfrom hedgerow.recipes import TABLE, names\nassert names() == sorted(TABLE)\n"
        "print([m for m in sys.modules if m.startswith(('hedgerow.recipes.', 'hedgerow.policy', 'numpy', 'torch'))])"
    )
    assert loaded == "[]"


def test_no_recipe_imports_torch() -> None:
    """All of them together; transformers neither. What a drafter needs is imported when it is made."""
    loaded = python(
        "import sys\nfrom hedgerow.recipes import get, names\nprint(len([get(n) for n in names()]))\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    assert loaded.splitlines() == [str(len(recipes.TABLE)), "[]"]
