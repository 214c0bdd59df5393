"""The record of a step: one schema, one JSON line per request and step, read by traces, simulator, bounds and bench."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hedgerow.core.errors import ModelError

SCHEMA = 1


@dataclass(frozen=True)
class StepRecord:
    """One request's part of one step.

    `tree` is the tree after the cut as lists (tokens, parent, survival, selection, source, origin); `proposed` counts
    nodes before the cut. `path` and `token` are the verdict; `committed` counts tokens kept after stops. `top_ids`,
    `top_logits`, `lse` (log Σ exp of all logits) and `entropy` describe the target's raw law (temperature 1, no filter)
    at the root and every verified node, in row order: log p = logit − lse. `prompt_top_ids` and `prompt_top_logits`, on
    a request's first record, are what the drafters were given of the prompt's rows (−1: not asked for). `seconds` has
    draft, verify and other for the whole batch. Logits are float32, written so that they are read back bit for bit.
    """

    request: int
    step: int
    position: int
    root: int
    proposed: int
    tree: dict[str, list[Any]]
    path: list[int]
    token: int
    stop: str
    committed: int
    seconds: dict[str, float]
    batch: int
    rows: int
    plan_nodes: int
    reason: str = ""
    finished: str | None = None
    prompt: list[int] | None = None       # on a request's first record: what the step needs to be replayed
    sampling: dict[str, Any] | None = None    # likewise: temperature, top_k, top_p, min_p, seed
    prompt_top_ids: list[list[int]] | None = None
    prompt_top_logits: list[list[float]] | None = None
    top_ids: list[list[int]] = field(default_factory=list)
    top_logits: list[list[float]] = field(default_factory=list)
    lse: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    schema: int = SCHEMA

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), separators=(",", ":"))


def read(path: Path) -> Iterator[StepRecord]:
    """Records of a trace file, in order. Raises ModelError naming the line that is not a record."""
    known = {f.name for f in fields(StepRecord)}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
                if data.get("schema") != SCHEMA:
                    raise ValueError(f"schema {data.get('schema')}, this version reads {SCHEMA}")
                yield StepRecord(**{k: v for k, v in data.items() if k in known})
            except (ValueError, TypeError, AttributeError) as e:
                raise ModelError(f"{path}, line {number} is no step record: {e}") from None
