"""Prompt families to measure on: what people ask (mt_bench, gsm8k, humaneval), what repeats its input, and the demo.

A prompt's text goes to the model unaltered, as the user's first turn. Families and their sources: data/README.md.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from hedgerow.core.errors import UnknownName, UsageError


@dataclass(frozen=True)
class Prompt:
    """One prompt: its family, its name within the family, and the user's turns."""

    family: str
    id: str
    turns: tuple[str, ...]

    @property
    def text(self) -> str:
        """The first turn, which is what benchmarks generate from."""
        return self.turns[0]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The first turn as a conversation for a chat template."""
        return [{"role": "user", "content": self.text}]


def load(family: str, limit: int | None = None) -> list[Prompt]:
    """The prompts of a family in file order, the first `limit` of them where one is given.

    Raises: UnknownName for a family that does not exist, UsageError for a negative limit.

    >>> [p.id for p in load("demo")]
    ['chat', 'code', 'summary']
    >>> load("gsm8k", 1)[0].text[:22]
    'Janet’s ducks lay 16 e'
    """
    if family not in FAMILIES:
        raise UnknownName("prompt family", family, FAMILIES)
    if limit is not None and limit < 0:
        raise UsageError(f"limit is {limit}; allowed: 0 or more")
    return list(FAMILIES[family]())[:limit]


def _lines(name: str) -> Iterator[dict[str, Any]]:
    raw = (files("hedgerow") / "data" / name).read_bytes()
    text = gzip.decompress(raw) if name.endswith(".gz") else raw
    return (json.loads(line) for line in text.decode("utf-8").splitlines() if line.strip())


def _mt_bench() -> Iterator[Prompt]:
    for row in _lines("mt_bench_question.jsonl"):
        yield Prompt("mt_bench", f"{row['category']}/{row['question_id']}", tuple(row["turns"]))


def _humaneval() -> Iterator[Prompt]:
    for row in _lines("HumanEval.jsonl.gz"):
        yield Prompt("humaneval", row["task_id"], (row["prompt"],))


def _gsm8k() -> Iterator[Prompt]:
    for i, row in enumerate(_lines("gsm8k_first100.jsonl")):
        yield Prompt("gsm8k", f"test/{i}", (row["question"],))


def _own(family: str) -> Callable[[], Iterator[Prompt]]:
    return lambda: (
        Prompt(family, row["id"], tuple(row["turns"])) for row in _lines("own_prompts.jsonl") if row["family"] == family
    )


FAMILIES: dict[str, Callable[[], Iterator[Prompt]]] = {
    "mt_bench": _mt_bench,
    "gsm8k": _gsm8k,
    "humaneval": _humaneval,
    "repeat": _own("repeat"),
    "demo": _own("demo"),
}
