"""Prompts to train on: a user's file, or the target's own, written in the user's turn of its chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Sampling, Tokenizer
from hedgerow.engine.request import Request

KEYS = ("prompt", "question", "instruction", "text")
LEAST, MOST = 12, 2000                     # characters of a prompt worth answering
WRITTEN = 160                              # most tokens of a prompt the target writes

OPENERS = (
    "", "", "", "", "", "", "Write a", "Write a short", "How do I", "How many", "What is the", "Explain", "Describe a",
    "Why does", "Compare", "Compose a", "Rewrite the following", "Summarize", "Give me", "List", "Imagine you are",
    "Can you help me", "I need to", "Suppose", "If", "A farmer", "There are", "Tom has", "Maria buys", "John earns",
    "A shop sells", "Each day,", "Calculate", "Solve for x:", "Which of", "Is it true that", "Edit the following",
    "Extract", "Classify", "Translate", "def ", "import math\n\ndef ", "from typing import List\n\n\ndef ",
    "Write a Python function that", "Write a function", "Implement", "Here is a", "Given a list of",
    'def is_', 'def count_', 'from typing import List, Tuple\n\n\ndef ', "You are a", "Act as", "Please", "Tell me",
    "Who was", "When", "Where", "In a classroom", "A bakery", "The difference between", "Draft an email",
)
"""How written prompts begin: most freely, some the way questions, sums, texts and programs begin."""


@dataclass(frozen=True)
class Turn:
    """The user's turn of a chat template: the ids before its text, and the id that ends it."""

    opening: tuple[int, ...]
    end: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Turn:
        """Found by putting two texts in: what they share before and after belongs to the template.

        Raises: UsageError for a template whose user turn has no end of its own.
        """
        one, two = (tokenizer.chat([{"role": "user", "content": text}]) for text in ("Stones", "9 + 1"))
        n = next(i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
        after = 0
        while after < min(len(one), len(two)) - n and one[-1 - after] == two[-1 - after]:
            after += 1
        if not after:
            raise UsageError(
                "the model's chat template does not end the user's turn, so it cannot write prompts itself; "
                "give a file with --prompts"
            )
        return cls(tuple(one[:n]), one[len(one) - after])


def read(path: Path) -> list[str]:
    """Prompts of a file: one a line, as plain text or as JSON with `prompt`, `question`, `instruction`, `text` or
    `turns`.

    Raises: UsageError for a file that is missing, empty, or has a line without a prompt.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"the prompts file {path} cannot be read ({e}); give a text or JSON-lines file") from None
    if not lines:
        raise UsageError(f"the prompts file {path} is empty; one prompt a line is expected")
    return [_prompt(line, path, i) for i, line in enumerate(lines, 1)]


def _prompt(line: str, path: Path, number: int) -> str:
    if not line.lstrip().startswith("{"):
        return line
    try:
        row = json.loads(line)
    except ValueError as e:
        raise UsageError(f"line {number} of {path} is not JSON ({e})") from None
    for key in KEYS:
        if isinstance(row.get(key), str) and row[key].strip():
            return str(row[key])
    turns = row.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return str(turns[0])
    raise UsageError(f"line {number} of {path} has no prompt; allowed keys: {', '.join(KEYS)}, turns")


def asks(turn: Turn, tokenizer: Tokenizer, seed: int, known: Collection[int]) -> Iterator[Request]:
    """Endless requests whose completion is a prompt, for all numbers but `known`; a number has its seed and opener."""
    law = Sampling(temperature=1.0, min_p=0.03)
    for number in (n for n in count() if n not in known):
        opener = OPENERS[number % len(OPENERS)]
        ids = turn.opening + tuple(tokenizer.encode(opener) if opener else ())
        yield Request(ids, max_tokens=WRITTEN, sampling=law, seed=seed, choice=number, stop_ids=frozenset({turn.end}))


@dataclass
class Filter:
    """Which prompts are worth answering: of some length, not a repetition within, not seen before, not excluded."""

    seen: set[str]

    @classmethod
    def of(cls, known: Iterable[str]) -> Filter:
        """Knows these prompts, and refuses them."""
        return cls({fingerprint(text) for text in known})

    def __call__(self, text: str) -> bool:
        """Whether a prompt is new and sound; a new one is remembered.

        >>> keep = Filter.of(["Why is the sky blue?"])
        >>> keep("why is the sky  blue?"), keep("Name three birds of the hedge."), keep("go go go go go go go go")
        (False, True, False)
        """
        words = text.split()
        if not LEAST <= len(text) <= MOST or "\ufffd" in text or len(words) < 3:
            return False
        triples = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
        if len(set(triples)) < 0.7 * len(triples):
            return False
        key = fingerprint(text)
        if key in self.seen:
            return False
        self.seen.add(key)
        return True


def fingerprint(text: str) -> str:
    """A hash of a text that case and spaces do not change."""
    return hashlib.sha256(" ".join(text.lower().split()).encode()).hexdigest()[:24]


def overlap(text: str, grams: set[tuple[str, ...]], n: int = 8) -> bool:
    """Whether a text shares a run of `n` words with a set of such runs."""
    return any(g in grams for g in runs(text, n))


def runs(text: str, n: int = 8) -> Iterator[tuple[str, ...]]:
    """All runs of `n` words of a text, lower case."""
    words: Sequence[str] = text.lower().split()
    return (tuple(words[i : i + n]) for i in range(len(words) - n + 1))
