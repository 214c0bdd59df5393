"""Pages that cannot go stale: generated parts are fresh, citations resolve, the code in them runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hedgerow.bench import docs
from hedgerow.recipes import get, names
from tests.architecture.source import PACKAGE, ROOT

TREE = re.compile(r"<!-- generated: tree -->\n(.*?)<!-- end -->", re.DOTALL)


def test_the_readme_shows_the_real_tree() -> None:
    shown = TREE.search((ROOT / "README.md").read_text(encoding="utf-8"))
    real = shown is not None and shown[1].strip() == docs.tree()
    assert real, "README.md: run `make docs`"
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert folders <= set(docs.FOLDERS), "bench/docs.py does not describe every folder"


@pytest.mark.parametrize("page", list(docs.pages()), ids=lambda p: p.name)
def test_generated_parts_are_fresh(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    fresh = docs.render(text) == text     # a page's whole text is no help in the message
    assert fresh, f"{page.name}: run `make docs`"


@pytest.mark.parametrize("name", names())
def test_recipes_cite_a_known_paper(name: str) -> None:
    recipe = get(name)
    assert recipe.name == name
    assert recipe.version >= 1 and recipe.title
    assert not recipe.paper or recipe.paper in docs.papers(), f"{name} cites {recipe.paper!r}, not in docs/papers.bib"
    assert not recipe.alias_of or recipe.alias_of in names()


def test_papers_are_whole_and_single() -> None:
    text = (ROOT / "docs" / "papers.bib").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{([^,]+),", text, re.MULTILINE)
    bib = docs.papers()
    assert len(keys) == len(set(keys)) == len(bib)
    numbers = [entry["eprint"] for entry in bib.values() if "eprint" in entry]
    assert len(numbers) == len(set(numbers))
    for key, entry in bib.items():
        assert entry["title"] and key.endswith(entry["year"]), key
        assert re.fullmatch(r"\d{4}\.\d{5}", entry.get("eprint", "0000.00000")), key


def test_source_cites_known_numbers() -> None:
    """Every arXiv number in the source is one of papers.bib: a mistyped one is caught here."""
    known = {entry.get("eprint") for entry in docs.papers().values()}
    for path in PACKAGE.rglob("*.py"):
        for number in re.findall(r"\b(2[0-9]{3}\.\d{5})\b", path.read_text(encoding="utf-8")):
            assert number in known, f"{path.relative_to(PACKAGE)} cites {number}"


def blocks(page: str) -> list[str]:
    """Python code blocks of a page, in order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ["adding-a-method.md", "losslessness.md"])
def test_code_on_the_pages_runs(page: str) -> None:
    """The blocks of a page are one program: what a reader types in order."""
    scope: dict[str, object] = {}
    found = blocks(page)
    assert found
    for i, block in enumerate(found):
        exec(compile(block, f"{page}, block {i + 1}", "exec"), scope)


def test_links_lead_somewhere() -> None:
    for page in docs.pages():
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
