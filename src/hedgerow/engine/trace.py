"""The trace record of one request's step, with the target's raw law at every verified row."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from hedgerow.core.parts import Packed, TargetRows, Verdict
from hedgerow.core.probs import entropy, log_law
from hedgerow.core.record import StepRecord
from hedgerow.core.select import top_ids
from hedgerow.engine.request import Running

TOP = 64  # target tokens recorded per row
TREE = ("tokens", "parent", "survival", "selection", "source", "origin")


def record(
    packed: Packed, i: int, verdict: Verdict, kept: int, running: Running, rows: TargetRows, seconds: dict[str, float]
) -> StepRecord:
    """Request `i`'s record; transfers every verified row to the host, so tracing is slow and off by default."""
    tree, view = packed.trees[i], packed.views[i]
    logits = [rows.logits(i, r) for r in range(tree.rows)]
    logs = [log_law(x) for x in logits]
    top = [top_ids(x, TOP) for x in logits]
    return StepRecord(
        request=view.request, step=running.steps - 1, position=view.position, root=view.root,
        proposed=packed.proposed[i], tree={name: getattr(tree, name).tolist() for name in TREE},
        path=list(verdict.path), token=verdict.token, stop=verdict.stop, committed=kept, seconds=dict(seconds),
        batch=len(packed.views), rows=packed.rows, plan_nodes=packed.plans[i].nodes, reason=running.reason,
        finished=running.finish.reason, top_ids=[t.tolist() for t in top],
        top_logits=[_exact(x[t]) for x, t in zip(logits, top, strict=True)],
        lse=[float(x[t[0]]) - float(log[t[0]]) for x, log, t in zip(logits, logs, top, strict=True)],
        entropy=[round(entropy(np.exp(x)), 6) for x in logs], **(_opening(running) if running.steps == 1 else {}),
    )


def _opening(running: Running) -> dict[str, Any]:
    """What only a request's first record holds."""
    feats, request = running.prompt_feats, running.request
    known = feats is not None and feats.top_ids is not None and feats.top_logits is not None
    return {
        "prompt": list(request.prompt),
        "sampling": asdict(request.sampling) | {
            "seed": request.seed, "choice": request.choice, "tenant": request.tenant, "max_tokens": request.max_tokens,
        },
        "prompt_top_ids": feats.top_ids.tolist() if known else None,  # type: ignore[union-attr]
        "prompt_top_logits": [_exact(r) for r in feats.top_logits] if known else None,  # type: ignore[union-attr]
    }


def _exact(row: np.ndarray) -> list[float]:
    """Nine significant digits: float32 survives the round trip."""
    return [float(f"{x:.9g}") for x in row]
