"""τ of every verification rule at equal node budgets, on contexts the target wrote, with drafters made of itself.

    python -m hedgerow.bench.rules --out docs/figures/rules.json

Per context, drafter, selection and budget one tree is drafted; the target's rows after its nodes judge it under every
rule that accepts the selection, and E[accepted] given the tree is computed exactly (`bench.expected`), not sampled.
q follows the target's temperature; at temperature 0 children are drawn at 1, since a one-hot q has no siblings. At the
root of each context the rules are compared with the optimum α* of one node, and on laws of three tokens with the best
that any rule could do on whole trees.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from hedgerow.bench.contexts import Context, Journal, bar, contexts, described, summarised, write
from hedgerow.bench.gaps import joint_gaps, root_gaps
from hedgerow.bench.judging import Folds, accepted, inner_paths, matched
from hedgerow.bench.paths import Job, PathDrafter, PathRows, TargetLaws, together
from hedgerow.core.parts import Plan, Rule, Sampling, View
from hedgerow.core.rng import Rng
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import Selection
from hedgerow.draft.independent import Change, perturbed
from hedgerow.models.runner import Runner
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.topology.optimal import positional_tree
from hedgerow.verify.joint import Block, Traversal
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection
from hedgerow.verify.transport import GreedyPlusOne, KSeq, SpecHub

BUDGETS = (7, 15, 63)
TEMPERATURES = (0.0, 0.6, 1.0)
RATES = (0.6, 0.16, 0.07, 0.04, 0.03, 0.02, 0.015, 0.01)   # by rank: what the tree shape assumes
COUPLED_DRAWS = 3                         # trees of a coupled drafter: it shares its noise, no average is exact
LONGEST_CHAIN = 31                        # what a chain might gain beyond is not measured
S = Selection


@dataclass(frozen=True)
class Case:
    """A rule on trees of one selection and shape."""

    rule: Rule
    selection: Selection
    shape: str                            # tree, chain or pairs

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{self.rule.name} · {self.selection.label} · {self.shape}"


CASES = (
    Case(Match(), S.TOP_K, "tree"), Case(Match(), S.COUPLED, "tree"), Case(Match(), S.IID, "tree"),
    Case(Match(), S.WITHOUT_REPLACEMENT, "tree"), Case(Rejection(), S.IID, "tree"),
    Case(Rejection(), S.WITHOUT_REPLACEMENT, "tree"), Case(KSeq(), S.IID, "tree"), Case(SpecHub(), S.HUB, "pairs"),
    Case(GreedyPlusOne(), S.GREEDY_PLUS_ONE, "tree"), Case(Traversal(), S.IID, "tree"),
    Case(Traversal(), S.WITHOUT_REPLACEMENT, "tree"), Case(Match(), S.TOP_K, "chain"),
    Case(Rejection(), S.IID, "chain"), Case(Block(), S.IID, "chain"),
)


@cache
def shape_of(kind: str, nodes: int) -> TreeShape:
    """A shape of (at most) `nodes` nodes: a chain, the best tree under `RATES`, or the best tree of pairs.

    >>> shape_of("tree", 7).nodes, shape_of("pairs", 7).nodes, shape_of("chain", 7).max_depth
    (7, 6, 7)
    """
    if kind == "chain":
        return chain(min(nodes, LONGEST_CHAIN))
    if kind == "tree":
        return positional_tree(RATES, nodes)
    paths: list[tuple[int, ...]] = []
    heap: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    while len(paths) + 2 <= nodes:
        worth, path = heapq.heappop(heap)
        for rank in (0, 1):
            paths.append((*path, rank))
            heapq.heappush(heap, (worth * RATES[rank], (*path, rank)))
    return TreeShape.from_paths(paths)


def job(drafter: PathDrafter, text: Sequence[int], selection: Selection, shape: TreeShape, rng: Rng) -> Job:
    """One tree of a shape below a text."""
    position = len(text) - 1
    view = View(0, 0, text[-1], position, 1 << 30, drafter.sampling, rng.at(position))
    return Job(Fixed(shape, selection), [drafter], view, Plan(shape.nodes))


def measure(
    context: Context, number: int, target: TargetLaws, make: Callable[[Sampling], PathDrafter],
    budgets: Sequence[int], temperatures: Sequence[float],
) -> Iterator[dict[str, Any]]:
    """Every case at every budget and temperature on one context with one drafter."""
    drafters = {q: make(Sampling(q)) for q in {t or 1.0 for t in temperatures}}
    jobs: dict[tuple[Any, ...], Job] = {}
    for temperature, budget, case in product(temperatures, budgets, CASES):
        if case.selection is S.COUPLED and temperature == 0.0:
            continue                                      # no noise to share: the same children as top_k
        for draw in range(COUPLED_DRAWS if case.selection is S.COUPLED else 1):
            key = (temperature or 1.0, budget, case.selection, case.shape, draw)
            if key not in jobs:
                shape = shape_of(case.shape, budget)
                jobs[key] = job(drafters[key[0]], context.text, case.selection, shape, Rng(number, draw))
    trees = dict(zip(jobs, together(list(jobs.values())), strict=True))
    target.rows.want(path for tree in trees.values() for path in inner_paths(tree))
    position = len(context.text) - 1
    for temperature in temperatures:
        folds = Folds(target, drafters[temperature or 1.0], temperature)
        for budget, case in product(budgets, CASES):
            which = (temperature or 1.0, budget, case.selection, case.shape)
            if case.selection is not S.COUPLED:
                tree = trees[*which, 0]
                value, nodes = accepted(tree, case.rule, folds, Rng(number, 1)), float(tree.nodes)
            elif temperature == 0.0:
                continue
            else:
                several = [trees[*which, draw] for draw in range(COUPLED_DRAWS)]
                value = float(np.mean([
                    matched(t, target, temperature, Rng(number, i), position) for i, t in enumerate(several)
                ]))
                nodes = float(np.mean([t.nodes for t in several]))
            at = {"case": case.name, "budget": budget, "temperature": temperature}
            yield at | {"accepted": value, "nodes": nodes}


@dataclass(frozen=True)
class Drafting:
    """A drafter of the table: the first `layers` layers (0: all), its logits changed by `change`."""

    name: str
    layers: int
    change: Change | None = None


def draftings(layers: Sequence[int], dials: Sequence[float]) -> list[Drafting]:
    """The drafters of the table."""
    return [Drafting(f"first {k} layers", k) for k in layers] + [
        Drafting(f"target + {d:g} × Gumbel", 0, perturbed(d, seed=1)) for d in dials
    ]


def run(
    target: Any, all_: Sequence[Context], drafters: Sequence[Drafting], budgets: Sequence[int],
    temperatures: Sequence[float], journal: Journal, console: Console, gaps: str = "",
) -> None:
    """Measure what the journal lacks, context by context; `gaps` names the drafter whose optimality gaps are taken."""
    from hedgerow.models.truncate import first_layers

    runner = target.runner
    cut = {
        d.layers: Runner(first_layers(runner.net, d.layers), 1, runner.kv.max_len, runner.kv.max_rows)
        for d in drafters if d.layers
    }
    with bar(console) as progress:
        task = progress.add_task("contexts", total=len(all_))
        for number, context in enumerate(all_):
            progress.update(task, completed=number, description=context.prompt)
            todo = [d for d in drafters if not journal.done(context=number, drafter=d.name)]
            if not todo:
                continue
            rows = PathRows(runner, context.text)
            laws = TargetLaws(rows)
            for drafting in todo:
                own = PathRows(cut[drafting.layers], context.text) if drafting.layers else rows

                def make(sampling: Sampling, own: PathRows = own, d: Drafting = drafting) -> PathDrafter:
                    return PathDrafter(own, sampling, d.change)

                key = {"context": number, "drafter": drafting.name}
                found = [key | row for row in measure(context, number, laws, make, budgets, temperatures)]
                for temperature in temperatures:
                    if drafting.name == gaps and temperature > 0.0:
                        drafter = make(Sampling(temperature))
                        p, q = laws.row((), temperature), drafter.law(()).astype(np.float64)
                        found.append(key | {
                            "temperature": temperature, "root": root_gaps(p, q, Rng(number)),
                            "joint": joint_gaps(laws, drafter, temperature),
                        })
                journal.add(found)
                if own is not rows:
                    own.close()
            rows.close()


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over contexts with bootstrap intervals; τ = 1 + E[accepted]."""
    tau: dict[tuple[str, str, int, float], list[float]] = {}
    gaps: dict[tuple[str, float, str], list[float]] = {}
    nodes: dict[tuple[str, str, int, float], list[float]] = {}
    for row in rows:
        if "case" in row:
            key = (row["drafter"], row["case"], row["budget"], row["temperature"])
            tau.setdefault(key, []).append(1.0 + row["accepted"])
            nodes.setdefault(key, []).append(row["nodes"])
        for kind in ("root", "joint"):
            for name, value in row.get(kind, {}).items():
                gaps.setdefault((kind, row["temperature"], name), []).append(value)
    return {
        "tau": [
            {"drafter": d, "case": c, "budget": b, "temperature": t, "nodes": float(np.mean(nodes[d, c, b, t]))}
            | summarised(values) for (d, c, b, t), values in tau.items()
        ],
        "gaps": [
            {"kind": kind, "temperature": t, "what": name} | summarised(values)
            for (kind, t, name), values in gaps.items()
        ],
    }


def main(
    out: Annotated[Path, typer.Option(help="Where the results go (JSON).")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    count: Annotated[int, typer.Option("--contexts", help="Contexts to measure on.")] = 24,
    layers: Annotated[str, typer.Option(help="First layers of the target that draft.")] = "20,27",
    dials: Annotated[str, typer.Option(help="Strengths of the perturbed target.")] = "0.5,1,1.5",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
) -> None:
    """Measure every rule and write τ with intervals; an interrupted run goes on where it stopped."""
    from hedgerow.target.lm import load_target

    console = Console(stderr=True)
    setup = {
        "model": model, "contexts": count, "layers": layers, "dials": dials, "budgets": list(BUDGETS),
        "temperatures": list(TEMPERATURES), "rates": list(RATES), "coupled_draws": COUPLED_DRAWS,
        "longest_chain": LONGEST_CHAIN,
    }
    journal = Journal(out.with_suffix(".partial.jsonl"), setup)
    target, tokenizer = load_target(model, threads=threads, max_len=4096, report=console.print)
    all_ = contexts(target, tokenizer, count)
    drafters = draftings([int(k) for k in layers.split(",") if k], [float(d) for d in dials.split(",") if d])
    stopped = False
    try:
        run(target, all_, drafters, BUDGETS, TEMPERATURES, journal, console, f"first {layers.split(',')[-1]} layers")
    except KeyboardInterrupt:
        stopped = True
        console.print("interrupted; the same command goes on from there")
    if journal.rows:
        write(out, "rules", setup, {"contexts": described(all_, journal.rows), **summary(journal.rows)})
    if stopped:
        raise typer.Exit(130)
    journal.path.unlink(missing_ok=True)


if __name__ == "__main__":
    typer.run(main)
