"""`hedgerow train`: a drafter from text the target writes (`train_drafter`), or what a method learns from a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from hedgerow.cli import options as o
from hedgerow.cli import train_compare, train_drafter
from hedgerow.core.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from hedgerow.core.record import StepRecord

LEAST = 20                                 # steps with drafts, or judged nodes, below which nothing is fitted
DEEPER = 4                                 # most extra layers of a bin

app = typer.Typer(help="Train a drafter for your model, or fit a gate from a recorded trace.", rich_markup_mode=None)
for _name in train_drafter.METHODS:
    app.command(name=_name, help=train_drafter.about(_name))(train_drafter.drafter)
app.command()(train_compare.compare)


@app.callback()
def train() -> None:
    """Train a drafter for your model, or fit a gate from a recorded trace."""


@app.command()
def gate(
    trace: Annotated[Path, typer.Option("--trace", help="What `generate --trace` recorded.")],
    method: Annotated[str, typer.Option("--method", help="`c2t`: which nodes to keep; `heterospec`: how deep to go.")],
    out: Annotated[Path, typer.Option("--out", help="The JSON file to write.")],
    after: Annotated[int, typer.Option("--after", help="heterospec: layers drafted before the entropy is read.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="c2t: where the fit starts.")] = 0,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Fit a gate: C2T's network (2502.13652) or HeteroSpec's bins (2505.13254), and write it as JSON.

    Record the trace with a wide tree: a node that was never verified teaches nothing.
    """
    fits: dict[str, Callable[[Sequence[StepRecord]], tuple[str, str]]] = {
        "c2t": lambda steps: network(steps, seed), "heterospec": lambda steps: bins(steps, after),
    }
    if method not in fits:
        raise UnknownName("gate", method, fits, "A gate is fitted for one of them")
    if after < 1:
        raise UsageError(f"--after is {after}; at least 1 layer must be drafted before its entropy is read")
    from hedgerow.core.record import read

    text, told = fits[method]([step for step in read(trace) if step.tree["parent"]])
    out.write_text(text, encoding="utf-8")
    o.say(quiet)(f"{told}; written to {out}")


class Sample(NamedTuple):
    """One verified node whose ancestors were accepted: what a gate may see of it, and what became of it."""

    survival: float
    entropy: float
    depth: float
    accepted: float


def samples(steps: Iterable[StepRecord]) -> list[Sample]:
    """C2T's training set: P_i is the survival, H_i the recorded entropy of the node's own row, d_i its depth.

    The row is the target's: what the drafter's row said is not recorded. Nodes below a refused one are left out.
    """
    out: list[Sample] = []
    for step in steps:
        depth: list[int] = []
        kept = {-1, *step.path}
        for node, (parent, survival) in enumerate(zip(step.tree["parent"], step.tree["survival"], strict=True)):
            depth.append(1 if parent < 0 else depth[parent] + 1)
            if parent in kept:
                entropy = step.entropy[node + 1]
                out.append(Sample(survival, entropy, float(depth[node]), float(node in kept)))
    return out


def network(steps: Sequence[StepRecord], seed: int) -> tuple[str, str]:
    """C2T's classifier as JSON, and a line about the fit.

    Raises: UsageError for a trace with too few judged nodes.
    """
    import numpy as np

    from hedgerow.policy.learned import fit_ffn

    seen = np.array(samples(steps)).reshape(-1, 4)
    enough(len(seen), "verified nodes whose ancestors were accepted")
    net = fit_ffn(seen[:, :3], seen[:, 3], seed=seed)
    right = sum((net(*row[:3]) > 0.5) == bool(row[3]) for row in seen.tolist())
    return net.to_json(), f"{len(seen)} nodes, {seen[:, 3].mean():.0%} accepted, {right / len(seen):.0%} told rightly"


def path_entropy(step: StepRecord, layers: int) -> float:
    """−Σ q log q over the children of each layer's best parent, first `layers` layers, in nats; q = s(child)/s(parent).

    As far as the children were verified: what was drafted and cut is not recorded.
    """
    total, best = 0.0, -1
    parents, survivals = step.tree["parent"], step.tree["survival"]
    for _ in range(layers):
        below = [v for v, parent in enumerate(parents) if parent == best]
        above = survivals[best] if best >= 0 else 1.0
        if not below or above <= 0.0:
            break
        shares = [survivals[v] / above for v in below]
        total -= math.fsum(q * math.log(q) for q in shares if q > 0.0)
        best = below[0]                    # the tree is in order of survival
    return total


def bins(steps: Sequence[StepRecord], after: int) -> tuple[str, str]:
    """HeteroSpec's bins as JSON, and a line about them.

    Edges are those of a regression tree of accepted nodes on the path's entropy. A bin's size holds 95 % of its
    accepted paths, and it goes as much deeper than `after` as 95 % of them went, at most 4 layers.

    Raises: UsageError for a trace with too few drafted steps.
    """
    import numpy as np

    from hedgerow.policy.halt import Bins
    from hedgerow.policy.learned import bins_json, cart_edges

    enough(len(steps), "steps with drafts")
    entropy = np.array([path_entropy(step, after) for step in steps])
    accepted = np.array([float(len(step.path)) for step in steps])
    edges = cart_edges(entropy, accepted)
    size = np.array([max(step.path, default=0) + 1 for step in steps])
    which = np.searchsorted(edges, entropy, side="right")
    deep: list[int] = []
    nodes: list[int] = []
    for b in range(len(edges) + 1):
        inside = which == b
        deep.append(min(DEEPER, max(0, math.ceil(float(np.quantile(accepted[inside], 0.95))) - after)))
        nodes.append(math.ceil(float(np.quantile(size[inside], 0.95))))
    means = ", ".join(f"{accepted[which == b].mean():.1f}" for b in range(len(edges) + 1))
    return bins_json(Bins(after, edges, tuple(deep), tuple(nodes))), f"{len(steps)} steps, accepted a bin: {means}"


def enough(count: int, what: str) -> None:
    """Refuse to fit on next to nothing. Raises UsageError."""
    if count < LEAST:
        raise UsageError(f"the trace has {count} {what}; at least {LEAST} are needed: record more, with a wide tree")
