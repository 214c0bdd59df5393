"""Host speed of what builds trees: the heap over a block, and layer-wise growth of a batch in lockstep.

    python -m hedgerow.bench.builders --out docs/figures/builders.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer

from hedgerow.bench.run import provenance
from hedgerow.core.parts import Ask, Children, Feats, Needs, Plan, Row, Sampling, Step, View
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Selection
from hedgerow.engine.lockstep import lockstep
from hedgerow.policy.block import best_ranks
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import Depth
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget


class Tables:
    """A drafter that answers from prepared rows, so that only the builders' own time counts."""

    needs = Needs()
    selections = frozenset({Selection.TOP_K})

    def __init__(self, width: int) -> None:
        rows = np.random.default_rng(0).dirichlet(np.ones(width), size=1024)
        self.rows = np.log(-np.sort(-rows, axis=1)).tolist()
        self.at = 0

    def children(self, asks: Sequence[Ask]) -> Children:
        """The next prepared row for every node."""
        count: list[int] = []
        token: list[int] = []
        log_q: list[float] = []
        for ask in asks:
            for k in ask.frontier.counts:
                self.at = (self.at + 1) % len(self.rows)
                count.append(k)
                token.extend(range(k))
                log_q.extend(self.rows[self.at][:k])
        return Children(count, token, log_q)

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Nothing to do."""

    def row(self, slot: int, origin: int) -> Row:
        """Nothing but the prepared rows."""
        return np.exp(np.array(self.rows[0]))

    def commit(self, slot: int, step: Step) -> None:
        """Nothing to record."""

    def fork(self, src: int, dst: int, length: int) -> None:
        """Nothing to copy."""

    def release(self, slot: int) -> None:
        """Nothing to forget."""


def timed(run: Callable[[], object], repetitions: int) -> dict[str, float]:
    """Median, least and largest seconds of one run."""
    run()
    spent = []
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        spent.append(time.perf_counter() - start)
    return {"median_s": median(spent), "min_s": min(spent), "max_s": max(spent)}


def main(out: Annotated[Path, typer.Option(help="Where the result goes (JSON).")]) -> None:
    """Time the builders."""
    marginals = np.log(-np.sort(-np.random.default_rng(1).dirichlet(np.ones(16), size=15), axis=1)).tolist()
    policy, drafter, plans = Layerwise(4, Beam(4), Depth(3), Budget(15)), Tables(4), [Plan(15, depth=9)] * 64

    def grow() -> object:
        views = [
            View(request=i, slot=i, root=0, position=9, room=99, sampling=Sampling(), rng=Rng(0)) for i in range(64)
        ]
        return lockstep(policy, [drafter], views, plans)

    figures = {
        "ddtree_heap_128_nodes_15_positions": timed(lambda: best_ranks(marginals, 128), 200),
        "lockstep_64_requests_4_layers": timed(grow, 60),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"provenance": provenance("builders"), "figures": figures}, indent=1) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    typer.run(main)
