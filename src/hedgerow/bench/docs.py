"""The generated parts of README.md and docs/.

`python -m hedgerow.bench.docs` writes them; with `--check` it changes nothing and fails on a stale one. A generated
part stands between `<!-- generated: NAME -->` and `<!-- end -->`; NAME is a key of `PARTS`, or `figures NAME` for
measured figures: what a benchmark wrote to docs/figures/NAME.json, or printed to NAME.txt.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from hedgerow.bench.figures import figures
from hedgerow.core.errors import HedgerowError, UsageError
from hedgerow.core.recipe import Recipe

ROOT = Path(__file__).resolve().parents[3]

FOLDERS = {
    "core": "the vocabulary: trees, contracts, laws, randomness, recipes, records",
    "topology": "axis 1: what shapes exist",
    "policy": "axis 2: how a tree grows",
    "draft": "axis 3: who proposes",
    "verify": "axis 4: who decides",
    "target": "axis 5: the model being accelerated",
    "models": "all contact with transformers: weights, tokenizer, runner",
    "systems": "masks, attention, key-value memory",
    "cost": "axis 6: what a step costs on this machine",
    "control": "axis 7: how much is worth it now",
    "engine": "the loop: read loop.py first",
    "recipes": "one published method a file",
    "testing": "tools to prove a rule or policy of your own",
    "simulate": "play a recipe against an acceptance model or a trace",
    "server": "an OpenAI-compatible server",
    "cli": "the command line",
    "bench": "workloads, measurements, this documentation",
    "train": "train a drafter",
    "data": "prompts to measure on, with their sources and licences",
}

_BLOCK = re.compile(r"(<!-- generated: (?P<name>[^>]+?) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def first_sentence(path: Path) -> str:
    """What a source file says it is: its docstring up to the first full stop, or its first line."""
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = doc.split("\n\n")[0].replace("\n", " ")
    return re.split(r"\. (?=[A-Z`])|\.$", paragraph)[0].replace("`", "")


def tree() -> str:
    """The map of the source tree, one line a file."""
    lines = ["```", "src/hedgerow/"]
    package = ROOT / "src" / "hedgerow"

    def show(path: Path, indent: str) -> None:
        sentence = first_sentence(path)
        room = 118 - len(indent) - 22
        if len(sentence) > room:
            sentence = sentence[: room - 1].rsplit(" ", 1)[0].rstrip(",;:") + " …"
        lines.append(f"{indent}{path.name:<22}{sentence}".rstrip())

    for path in sorted(package.glob("*.py")):
        show(path, "  ")
    for name, says in FOLDERS.items():
        folder = package / name
        if not folder.is_dir():
            continue
        lines.append(f"  {name + '/':<12}{says}")
        files = [path for path in sorted(folder.rglob("*.py")) if path.name != "__init__.py"]
        if name == "recipes":
            names = ", ".join(path.stem for path in files)
            lines += textwrap.wrap(names, 118, initial_indent="    ", subsequent_indent="    ")
            continue
        for path in files:
            show(path, "    ")
    return "\n".join([*lines, "```"])


def papers() -> dict[str, dict[str, str]]:
    """docs/papers.bib as key -> fields.

    >>> papers()["sequoia2024"]["eprint"]
    '2402.12374'
    """
    text = (ROOT / "docs" / "papers.bib").read_text(encoding="utf-8")
    out = {}
    for key, body in re.findall(r"^@\w+\{([^,]+),\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        fields = re.findall(r"^\s*(\w+) = \{(.*)\},$", body, re.MULTILINE)
        out[key] = {name: value.strip("{}") for name, value in fields}
    return out


def recipe_table() -> str:
    """Every recipe, one row: exact or lossy, what it needs, what it was compared with, citation."""
    bib = papers()
    rows = ["| recipe | what | exact | needs | compared with a reference | source |", "|---|---|---|---|---|---|"]
    for recipe in _recipes():
        rows.append("| " + " | ".join([
            f"`{recipe.name}`" + (f" (= `{recipe.alias_of}`)" if recipe.alias_of else ""), recipe.title,
            "yes" if recipe.exact else "no: lossy", _needs(recipe), recipe.compared or "no", _cite(recipe, bib),
        ]) + " |")
    return "\n".join(rows)


def ready_table() -> str:
    """The recipes that run on any target without a drafter of the user's, and how many others there are."""
    bib, recipes = papers(), _recipes()
    ready = [r for r in recipes if all(source.make for source in r.sources)]
    rows = ["| recipe | what | exact | source |", "|---|---|---|---|"]
    for r in ready:
        rows.append(f"| `{r.name}` | {r.title} | {'yes' if r.exact else 'no: lossy'} | {_cite(r, bib)} |")
    others = len(recipes) - len(ready)
    rows.append(f"\n{others} more recipes need a drafter that is brought along: [docs/recipes.md](docs/recipes.md).")
    return "\n".join(rows)


def _recipes() -> list[Recipe]:
    from hedgerow.recipes import get, names

    return [get(name) for name in names()]


def _needs(recipe: Recipe) -> str:
    return "; ".join(dict.fromkeys(s.needs for s in recipe.sources if s.needs)) or "nothing"


def _cite(recipe: Recipe, bib: dict[str, dict[str, str]]) -> str:
    if not recipe.paper:
        return "this project"
    entry = bib.get(recipe.paper, {})
    return f"arXiv {entry['eprint']}" if "eprint" in entry else entry.get("title", recipe.paper)


def cli_help() -> str:
    """The help text of the command line and of each command."""
    out = [_help()]
    for command in re.findall(r"^[│ ]*([a-z][a-z-]+)  +\S", out[0].split("Commands", 1)[-1], re.MULTILINE):
        out.append(_help(command))
    return "\n\n".join(f"```\n{text}\n```" for text in out)


def _help(*command: str) -> str:
    plain = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    line = [sys.executable, "-m", "hedgerow.cli.main", *command, "--help"]
    run = subprocess.run(line, capture_output=True, text=True, env=plain, check=False)
    if run.returncode:
        raise HedgerowError(f"`hedgerow {' '.join(command)} --help` failed: {run.stderr.strip().splitlines()[-1:]}")
    return "\n".join(line.rstrip() for line in run.stdout.strip().splitlines())


PARTS: dict[str, Callable[[], str]] = {
    "tree": tree, "recipes": recipe_table, "ready": ready_table, "cli": cli_help,
}


def render(text: str) -> str:
    """`text` with every generated part made anew.

    Raises: UsageError for a part whose name is not known.
    """

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        if name.startswith("figures "):
            return f"{match[1]}{figures(ROOT / 'docs' / 'figures', name.removeprefix('figures '))}\n{match[4]}"
        if name not in PARTS:
            raise UsageError(f"unknown generated part {name!r}; known: {', '.join(PARTS)}, figures NAME")
        return f"{match[1]}{PARTS[name]()}\n{match[4]}"

    return _BLOCK.sub(fill, text)


def pages() -> Iterator[Path]:
    """Every page that may hold generated parts."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))


def main(argv: list[str] | None = None) -> int:
    """Write the generated parts, or with `--check` name the pages that are out of date and return 1."""
    parser = argparse.ArgumentParser(prog="python -m hedgerow.bench.docs", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail on a page that is out of date")
    check = parser.parse_args(argv).check
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        fresh = render(text)
        if fresh != text:
            stale.append(page.relative_to(ROOT))
            if not check:
                page.write_text(fresh, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'out of date; run `make docs`' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
