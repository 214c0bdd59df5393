"""What a generation returns: the finished result, which is the command line's JSON object, and pieces of a stream."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Result:
    """One finished generation; `to_dict()` is the command line's JSON object (docs/generate.schema.json)."""

    text: str
    token_ids: list[int]
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    model: str
    recipe: str
    recipe_version: int
    exact: bool
    reproducible: bool
    speculation: dict[str, Any]
    steps: int
    proposed: int
    drafted: int
    accepted: int
    committed: int
    tokens_per_step: float | None
    acceptance_rate: float | None
    histogram: list[int]
    seconds: dict[str, float]
    tok_s: float | None
    nodes: int
    temperature: float
    top_p: float
    seed: int
    device: str
    dtype: str
    quant: str
    backend: str
    threads: int | None
    profile: str | None
    versions: dict[str, str]
    plain: dict[str, Any] | None = None
    speedup: float | None = None
    identical: bool | None = None
    divergence: dict[str, Any] | None = None
    logprobs: list[float] | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Every key of the contract, null where not applicable."""
        out = asdict(self)
        del out["logprobs"]
        return out

    def to_json(self) -> str:
        """One line, whatever the text holds: line separators of Unicode are escaped."""
        return json.dumps(self.to_dict())


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream: new text, the ids that came with it, and the final `Result` on the last one."""

    text: str
    token_ids: list[int]
    result: Result | None = None


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    out = {"python": platform.python_version()}
    for name in ("hedgerow", "torch", "transformers", "numpy"):
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            out[name] = "not installed"
    return out
