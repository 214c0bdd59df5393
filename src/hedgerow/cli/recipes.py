"""`hedgerow recipes`: every method with its paper, what it needs, whether it is exact; and which parts fit together."""

from __future__ import annotations

import importlib
import inspect
import json as jsonlib
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hedgerow.cli.render import table

if TYPE_CHECKING:
    from hedgerow.core.recipe import Recipe
    from hedgerow.core.tree import Selection

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]

app = typer.Typer(help="List every method, or show one.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def recipes(ctx: typer.Context, json: Json = False) -> None:
    """List every method: its paper, exact or lossy, what it needs, compared with the reference or not."""
    if ctx.invoked_subcommand is not None:
        return
    from hedgerow.recipes import get, names

    cards = [card(get(name)) for name in names()]
    grid = matrix()
    if json:
        print(jsonlib.dumps({"recipes": cards, "matrix": grid}))
        return
    yes = {True: "yes", False: "no"}
    print("\n".join(table(
        ["recipe", "law", "offline", "compared", "paper", "needs", "what"],
        [
            [c["name"], _law(c["exact"]), yes[c["offline"]], yes[bool(c["compared"])], c["paper"] or "-",
             c["needs"] or "nothing", c["title"]]
            for c in cards
        ],
    )))
    print("\nWhich rule may judge which children; a combination that would bias the output is refused.")
    around = {"policy_reads_tokens": "policy reads tokens", "controller_cuts": "controller cuts trees",
              "controller_looks_ahead": "controller looks ahead"}
    print("\n".join(table(
        ["rule", "law", *grid[0]["children"], *around.values()],
        [
            [row["rule"], _law(row["exact"]), *("yes" if ok else "-" for ok in row["children"].values()),
             *(_where(row[key]) for key in around)]
            for row in grid
        ],
    )))


@app.command()
def show(name: Annotated[str, typer.Argument(help="A name from `hedgerow recipes`.")], json: Json = False) -> None:
    """Show one method: its parts, and its card with the idea and what differs from the paper."""
    from hedgerow.recipes import TABLE, get

    found = card(get(name))
    text = inspect.getdoc(importlib.import_module(TABLE[name].split(":")[0])) or ""
    if json:
        print(jsonlib.dumps({**found, "card": text}))
        return
    print("\n".join(table(["recipe", name], [
        ["title", found["title"]],
        ["version", str(found["version"])],
        ["paper", found["paper"] or "our own"],
        ["law", _law(found["exact"])],
        ["offline", "yes" if found["offline"] else "no"],
        ["drafters", ", ".join(f"{s['name']} ({s['kind']})" for s in found["sources"]) or "none"],
        ["needs", found["needs"] or "nothing"],
        ["policy", found["policy"]],
        ["children", ", ".join(found["selections"]) or "none"],
        ["rule", found["rule"]],
        ["nodes", str(found["nodes"])],
        ["differs", found["differs"] or "-"],
        ["compared", found["compared"] or "not compared with a reference implementation"],
    ])))
    if text:
        print(f"\n{text}")


def card(recipe: Recipe) -> dict[str, Any]:
    """One recipe as plain data."""
    return {
        "name": recipe.name, "version": recipe.version, "title": recipe.title, "paper": recipe.paper,
        "exact": recipe.exact, "offline": recipe.offline, "alias_of": recipe.alias_of,
        "sources": [{"name": s.name, "kind": s.kind, "needs": s.needs} for s in recipe.sources],
        "needs": "; ".join(dict.fromkeys(s.needs for s in recipe.sources if s.needs)),
        "policy": type(recipe.policy).__name__, "selections": sorted(s.label for s in recipe.policy.selections),
        "rule": recipe.rule.name, "nodes": recipe.nodes, "differs": recipe.differs, "compared": recipe.compared,
    }


@dataclass(frozen=True)
class Children:
    """As much of a policy as the check of a recipe reads."""

    selections: frozenset[Selection]
    reads_tokens: bool = False


@dataclass(frozen=True)
class Control:
    """As much of a controller as the check of a recipe reads."""

    looks_ahead: bool = False
    cuts: bool = False


def rules() -> list[type]:
    """Every class of the package `verify` that keeps the contract of a rule, by name."""
    from hedgerow import verify

    found: dict[str, type] = {}
    for file in pkgutil.iter_modules(verify.__path__):
        module = importlib.import_module(f"{verify.__name__}.{file.name}")
        for part in vars(module).values():
            ours = inspect.isclass(part) and part.__module__ == module.__name__
            if ours and all(hasattr(part, key) for key in ("name", "lossless", "accepts", "needs_q", "verify")):
                found.setdefault(part.name, part)
    return [found[name] for name in sorted(found)]


def matrix() -> list[dict[str, Any]]:
    """What `core.recipe.check` says to every rule: with children of every selection, and where they fit, with a policy
    that reads tokens, a controller that cuts trees, and one that looks ahead.
    """
    from hedgerow.core.errors import RecipeError
    from hedgerow.core.recipe import check
    from hedgerow.core.tree import Selection

    def fits(rule: Any, selection: Selection, reads_tokens: bool = False, control: Control | None = None) -> bool:
        try:
            check("", Children(frozenset({selection}), reads_tokens), rule, control)  # type: ignore[arg-type]
        except RecipeError:
            return False
        return True

    out = []
    for rule in rules():
        children = {s.label: fits(rule, s) for s in Selection}
        known = [s for s in Selection if children[s.label]]
        out.append({
            "rule": rule.name, "exact": rule.lossless, "children": children,  # type: ignore[attr-defined]
            "policy_reads_tokens": {s.label: fits(rule, s, reads_tokens=True) for s in known},
            "controller_cuts": {s.label: fits(rule, s, control=Control(cuts=True)) for s in known},
            "controller_looks_ahead": {s.label: fits(rule, s, control=Control(looks_ahead=True)) for s in known},
        })
    return out


def _where(fits: dict[str, bool]) -> str:
    """`yes`, `-`, or yes with the selections that are refused."""
    refused = [name for name, ok in fits.items() if not ok]
    return "yes" if not refused else "-" if len(refused) == len(fits) else f"not {', '.join(refused)}"


def _law(exact: bool) -> str:
    return "exact" if exact else "lossy"
