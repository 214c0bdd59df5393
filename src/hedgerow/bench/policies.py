"""τ of every recipe's tree at equal node budgets, on contexts the target wrote, next to what the tree promised.

    python -m hedgerow.bench.policies --out docs/figures/policies.json

The drafter's q stays at temperature 1, so one growth and one target pass per recipe, budget and context serve all
temperatures of the target. Trees that a match rule judges are valued exactly, Σ over nodes of Π p; drawn trees by their
recipe's rule, exactly given the tree. The promise is E(A) = Σ survival, what the drafter's own q says; its calibration
error is the mean of survival − accepted. Heads and block drafters are stood in for by the marginals of the drafter's
own greedy chain: the row at a depth is the same for all parents. Retrieval drafters have read the context's text and
rows and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from hedgerow.bench.contexts import Context, Journal, bar, contexts, described, summarised, write
from hedgerow.bench.judging import Folds, accepted, inner_paths, matched
from hedgerow.bench.paths import Job, PathDrafter, PathRows, TargetLaws, together
from hedgerow.bench.rules import BUDGETS, TEMPERATURES
from hedgerow.core.parts import Drafter, Feats, Needs, Plan, Sampling, View
from hedgerow.core.probs import entropy, law
from hedgerow.core.recipe import Built, Recipe
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Selection
from hedgerow.models.runner import Runner
from hedgerow.recipes import get, names

DEPTH, REACH = 31, 15                     # deepest draft; of heads and block drafters
COUPLED_DRAWS = 3
ONE_CALL = ("heads", "block")


def measurable() -> list[Recipe]:
    """The recipes that count: exact, no alias, not offline, with something to draft."""
    found = (get(name) for name in names())
    return [r for r in found if r.exact and not r.alias_of and not r.offline and r.sources]


def drafters_of(
    recipe: Recipe, built: Built, rows: PathRows, strong: PathDrafter, heads: PathDrafter, weak: PathDrafter
) -> list[Drafter]:
    """Who drafts for each source: a retrieval drafter as it is, stand-ins made of the target for the others."""
    out: list[Drafter] = []
    for source in recipe.sources:
        if source.kind == "retrieval" and source.make is not None:
            made = source.make(built)
            k, feats = made.needs.top_k, rows.feats
            some = Feats() if not k or feats.top_ids is None or feats.top_logits is None else Feats(
                top_ids=feats.top_ids[:, :k], top_logits=feats.top_logits[:, :k]
            )
            made.begin(0, rows.text, some)
            out.append(made)
        else:
            out.append(heads if source.kind in ONE_CALL else weak if source.name == "weak" else strong)
    return out


def needs_of(recipes: Sequence[Recipe], built: Built) -> Needs:
    """What the retrieval drafters want of the text's rows, together."""
    out = Needs()
    for recipe in recipes:
        for source in recipe.sources:
            if source.kind == "retrieval" and source.make is not None:
                out |= source.make(built).needs
    return Needs(top_k=out.top_k)


def measure(
    number: int, recipes: Sequence[Recipe], built: Built, rows: PathRows, strong: PathRows, weak: PathRows,
    budgets: Sequence[int] = BUDGETS, temperatures: Sequence[float] = TEMPERATURES,
) -> list[dict[str, Any]]:
    """Every recipe at every budget and temperature on one context."""
    q = Sampling(1.0)
    main, heads, low = PathDrafter(strong, q), PathDrafter(strong, q, marginal=True), PathDrafter(weak, q)
    position = len(rows.text) - 1
    known = None if rows.before is None else entropy(law(rows.before, q))
    jobs: dict[tuple[str, int, int], Job] = {}
    for recipe in recipes:
        made = drafters_of(recipe, built, rows, main, heads, low)
        coupled = Selection.COUPLED in recipe.policy.selections
        deepest = REACH if any(s.kind in ONE_CALL for s in recipe.sources) else DEPTH
        for budget, draw in product(budgets, range(COUPLED_DRAWS if coupled else 1)):
            view = View(
                0, 0, rows.text[-1], position, 1 << 30, q, Rng(number, draw).at(position), entropy=known,
            )
            plan = Plan(budget, depth=deepest)
            jobs[recipe.name, budget, draw] = Job(copy.deepcopy(recipe.policy), made, view, plan)
    trees = dict(zip(jobs, together(list(jobs.values())), strict=True))
    target = TargetLaws(rows)
    rows.want(path for tree in trees.values() for path in inner_paths(tree))
    folds = {t: Folds(target, main, t) for t in temperatures}
    out = []
    for recipe, budget in product(recipes, budgets):
        drawn = [trees[recipe.name, budget, d] for d in range(COUPLED_DRAWS) if (recipe.name, budget, d) in trees]
        for temperature in temperatures:
            if len(drawn) > 1 and temperature > 0.0:
                value = float(np.mean([
                    matched(t, target, temperature, Rng(number, i), position) for i, t in enumerate(drawn)
                ]))
            else:                                         # a greedy target has no noise to share
                value = float(np.mean([accepted(t, recipe.rule, folds[temperature], Rng(number, 1)) for t in drawn]))
            out.append({
                "recipe": recipe.name, "budget": budget, "temperature": temperature, "accepted": value,
                "survival": float(np.mean([t.survival.sum() for t in drawn])),
                "nodes": float(np.mean([t.nodes for t in drawn])),
                "depth": float(np.mean([t.max_depth for t in drawn])),
            })
    return out


def run(
    target: Any, all_: Sequence[Context], recipes: Sequence[Recipe], layers: tuple[int, int], journal: Journal,
    console: Console, budgets: Sequence[int] = BUDGETS, temperatures: Sequence[float] = TEMPERATURES,
) -> None:
    """Measure the contexts the journal lacks. `layers` are the drafter's and the weak drafter's; 0: all of them."""
    from hedgerow.models.truncate import first_layers

    runner, built = target.runner, Built(target.info)
    needs = needs_of(recipes, built)
    cut = [
        Runner(first_layers(runner.net, k) if k else runner.net, 1, runner.kv.max_len, runner.kv.max_rows)
        for k in layers
    ]
    with bar(console) as progress:
        task = progress.add_task("contexts", total=len(all_))
        for number, context in enumerate(all_):
            progress.update(task, completed=number, description=context.prompt)
            if journal.done(context=number):
                continue
            rows = PathRows(runner, context.text, needs)
            strong, weak = (PathRows(r, context.text) for r in cut)
            found = measure(number, recipes, built, rows, strong, weak, budgets, temperatures)
            journal.add([{"context": number} | row for row in found])
            for each in (rows, strong, weak):
                each.close()


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per recipe, budget and temperature: τ = 1 + E[accepted], E(A), calibration error, nodes, depth."""
    groups: dict[tuple[str, int, float], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["recipe"], row["budget"], row["temperature"]), []).append(row)
    return [
        {
            "recipe": name, "budget": budget, "temperature": temperature,
            "expected": float(np.mean([r["survival"] for r in found])),
            "error": float(np.mean([r["survival"] - r["accepted"] for r in found])),
            "nodes": float(np.mean([r["nodes"] for r in found])), "depth": float(np.mean([r["depth"] for r in found])),
        } | summarised([1.0 + r["accepted"] for r in found])
        for (name, budget, temperature), found in groups.items()
    ]


def main(
    out: Annotated[Path, typer.Option(help="Where the results go (JSON).")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    count: Annotated[int, typer.Option("--contexts", help="Contexts to measure on.")] = 24,
    layers: Annotated[int, typer.Option(help="First layers of the target that draft.")] = 27,
    weak: Annotated[int, typer.Option(help="First layers that draft where a recipe asks for a weak drafter.")] = 20,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
) -> None:
    """Measure every recipe and write τ with intervals; an interrupted run goes on where it stopped."""
    from hedgerow.target.lm import load_target

    console = Console(stderr=True)
    recipes = measurable()
    setup = {
        "model": model, "contexts": count, "layers": layers, "weak": weak, "budgets": list(BUDGETS),
        "temperatures": list(TEMPERATURES), "depth": DEPTH, "reach": REACH, "coupled_draws": COUPLED_DRAWS,
        "recipes": [f"{r.name} {r.version}" for r in recipes],
    }
    journal = Journal(out.with_suffix(".partial.jsonl"), setup)
    target, tokenizer = load_target(model, threads=threads, max_len=4096, report=console.print)
    all_ = contexts(target, tokenizer, count)
    stopped = False
    try:
        run(target, all_, recipes, (layers, weak), journal, console)
    except KeyboardInterrupt:
        stopped = True
        console.print("interrupted; the same command goes on from there")
    if journal.rows:
        about = [
            {"recipe": r.name, "rule": r.rule.name, "sources": ", ".join(dict.fromkeys(s.kind for s in r.sources))}
            for r in recipes
        ]
        body = {"contexts": described(all_, journal.rows), "recipes": about, "tau": summary(journal.rows)}
        write(out, "policies", setup, body)
    if stopped:
        raise typer.Exit(130)
    journal.path.unlink(missing_ok=True)


if __name__ == "__main__":
    typer.run(main)
