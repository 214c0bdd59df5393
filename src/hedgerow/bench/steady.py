"""A long run whose every step is of another shape: is anything compiled again, does memory grow, are all seconds told?

    python -m hedgerow.bench.steady --out docs/figures/steady.json

Requests of random length, temperature and end come and go, the batch shrinks and grows, half of the prompts begin
alike, every tree is random in shape and size. Some nodes come from the recipe's own drafters, so that paths of any
length are accepted, the others are noise. The seconds of a step are told by the same clocks as in `hedgerow
profile-step`; what they leave of the wall time is the scheduler's.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from hedgerow.bench.run import provenance
from hedgerow.bench.steps import TimedRule
from hedgerow.bench.wild import Noise, Varied, Wild, requests
from hedgerow.core.parts import Drafter, Needs, RowGroup, Target, Tokenizer
from hedgerow.core.tree import Selection
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request
from hedgerow.engine.scheduler import Scheduler
from hedgerow.verify.match import Match

PARTS = ("matmul", "attention", "head", "norms and rounding")  # as the compiled pass times them


# --------------------------------------------------------------------------------------------------- what is watched


class Clocked:
    """A target whose compiled passes count their seconds, those of prefills and those of steps apart."""

    def __init__(self, target: Any) -> None:
        self._target, self._net = target, target.runner.net
        self.compiled = hasattr(self._net, "decoder")
        self.seconds = np.zeros(len(PARTS))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def submit(self, groups: Sequence[RowGroup], needs: Needs) -> Any:
        """As the target's."""
        if self.compiled:
            self._net.seconds = None if groups[0].kind == "prefill" else self.seconds
        return self._target.submit(groups, needs)


def resident() -> int:
    """Bytes of memory the process holds now; where the system does not say, the most it has held."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def compiled_graphs() -> int:
    """Graphs dynamo has compiled in this process; not asking it where nobody uses it."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def libraries() -> set[str]:
    """Shared libraries mapped into the process, those compiled for a model among them."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    return {path for line in lines if ".so" in (path := line.split(maxsplit=5)[-1])}


# --------------------------------------------------------------------------------------------------------- the run


def steady(
    target: Target, drafters: Sequence[Drafter], selection: Selection, tokenizer: Tokenizer | None = None,
    steps: int = 1000, warm_up: int = 200, nodes: int = 31, longest: int = 1500, batch: int = 8, seed: int = 0,
    fill: int = 0,
) -> dict[str, Any]:
    """Run `warm_up` steps, then `steps` that are watched. `longest`: of prompts, tokens; `nodes`: of trees.

    Before all, prompts of `fill` tokens in all are only prefilled: drafters that learn from every text grow until their
    limits. The slope of memory is a least-squares line through its size after every watched step.
    """
    rng = np.random.default_rng(seed)
    clocked, rule, control = Clocked(target), TimedRule(Match()), Varied(rng, nodes)
    sources = [*drafters, Noise(rng, target.info.vocab)]
    policy = Wild(rng, selection, len(sources))
    loop = Loop(clocked, sources, policy, rule, control)
    scheduler = Scheduler(loop, tokenizer, batch)
    source, wanted = requests(rng, target.info.vocab, longest), batch
    wall, graphs, mapped = 0.0, 0, set[str]()
    memory: list[int] = []
    contexts: list[int] = []
    watched = False
    try:
        for _ in range(-(-fill // longest)):
            scheduler.add(Request(tuple(rng.integers(0, target.info.vocab, longest).tolist()), max_tokens=1))
        while scheduler.waiting or scheduler.running:
            scheduler.advance()
        while len(control.seen) < warm_up + steps:
            if not watched and len(control.seen) >= warm_up:
                watched = True
                clocked.seconds[:] = rule.seconds = 0.0
                loop.seconds = dict.fromkeys(loop.seconds, 0.0)
                graphs, mapped, began = compiled_graphs(), libraries(), scheduler.added
            if rng.random() < 0.2:
                wanted = int(rng.integers(1, batch + 1))
            while len(scheduler.running) + len(scheduler.waiting) < wanted:
                scheduler.add(next(source))
            start = time.perf_counter()
            touched = scheduler.advance()
            if watched:
                wall += time.perf_counter() - start
                memory.append(resident())
                contexts += [r.position for r in touched]
    finally:
        scheduler.abort()
        if clocked.compiled:
            clocked.runner.net.seconds = None
    return {
        "backend": target.info.backend, "model": target.info.name, "steps": steps, "warm_up": warm_up, "seed": seed,
        "requests": scheduler.added - began, "nodes": nodes, "longest": longest, "fill": fill,
        **{
            name: _spread([s[i] for s in control.seen[warm_up:]]) for i, name in enumerate(("batch", "rows", "tokens"))
        },
        "contexts": _spread(contexts), "graphs": compiled_graphs() - graphs, "graphs_before": graphs,
        "libraries": sorted(Path(p).name for p in libraries() - mapped),
        "memory": _memory(memory), "wall_s": wall, "parts_s": _parts(loop, clocked, rule),
    }


def _parts(loop: Loop, clocked: Clocked, rule: TimedRule) -> dict[str, float]:
    spent, parts = loop.seconds, dict[str, float]()
    if clocked.compiled:
        parts = dict(zip(PARTS, clocked.seconds.tolist(), strict=True))
    parts["call, host" if clocked.compiled else "call"] = spent["verify"] - sum(parts.values())
    return parts | {
        "draft": spent["draft"], "rule": rule.seconds, "loop, host": spent["other"] - rule.seconds,
        "prefill": spent["prefill"],
    }


def _memory(held: Sequence[int]) -> dict[str, float]:
    slope, _ = np.polyfit(np.arange(len(held)), held, 1) if len(held) > 1 else (0.0, 0.0)
    tenth = max(len(held) // 10, 1)
    return {
        "start_bytes": float(np.median(held[:tenth])), "end_bytes": float(np.median(held[-tenth:])),
        "least_bytes": float(min(held)), "most_bytes": float(max(held)), "slope_bytes_per_step": float(slope),
    }


def _spread(values: Sequence[int]) -> dict[str, float]:
    return {"median": float(np.median(values)), "least": float(min(values)), "most": float(max(values))}


def main(
    out: Annotated[Path, typer.Option(help="Where the results go (JSON).")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    recipe: Annotated[str, typer.Option(help="Whose drafters draft.")] = "auto",
    quant: Annotated[str, typer.Option(help="Quantisation of the target.")] = "none",
    steps: Annotated[int, typer.Option(help="Watched steps.")] = 1000,
    warm_up: Annotated[int, typer.Option(help="Steps before them.")] = 200,
    fill: Annotated[int, typer.Option(help="Tokens of prompts before those, for drafters to learn from.")] = 150_000,
    nodes: Annotated[int, typer.Option(help="Most nodes of a tree.")] = 31,
    longest: Annotated[int, typer.Option(help="Tokens of the longest prompt.")] = 1500,
    seed: Annotated[int, typer.Option(help="Of everything that is random.")] = 0,
) -> None:
    """Run random steps and tell what was compiled, how memory moved, and where the seconds went."""
    from hedgerow.api import assemble
    from hedgerow.recipes import get
    from hedgerow.target.lm import load_target

    target, tokenizer = load_target(model, quant=quant, max_slots=8, max_len=longest + 500)
    session = assemble(target, tokenizer, get(recipe))
    selection = next(iter(session.policy.selections))
    found = steady(
        target, session.drafters, selection, tokenizer, steps, warm_up, nodes, longest, seed=seed, fill=fill
    )
    target.runner.kv.check_integrity()
    result = {"table": "steady", "provenance": provenance("steady"), "recipe": recipe, **found}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    typer.run(main)
