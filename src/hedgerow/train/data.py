"""Batches of texts with their features, and what a training run knows about its target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from hedgerow.core.errors import UsageError
from hedgerow.train.features import Shard


class Batch(NamedTuple):
    """Texts side by side, padded behind their ends. Position j holds token x_j and what the target saw after it."""

    tokens: Int[torch.Tensor, "texts len"]                # int64
    loss: Bool[torch.Tensor, "texts len"]                 # x_{j+1} belongs to an answer
    taps: Float[torch.Tensor, "texts len taps*hidden"]    # concatenated, bf16
    last: Float[torch.Tensor, "texts len hidden"]         # after the final norm, bf16

    @property
    def rows(self) -> int:
        """Positions that are learned from."""
        return int(self.loss.sum())


@dataclass(frozen=True)
class Place:
    """Where a text lies: its shard and rows."""

    shard: int
    begin: int
    end: int


@dataclass(frozen=True)
class Corpus:
    """All texts of a folder of shards; every `1 / held`-th is for validation, the others are learned from.

    `columns`: which of the recorded taps a batch holds, in that order; None for all.
    """

    shards: tuple[Shard, ...]
    learn: tuple[Place, ...]
    validate: tuple[Place, ...]
    columns: Sequence[int] | None = None

    @classmethod
    def open(
        cls, files: Sequence[Path], held: float = 0.02, longest: int = 512, columns: Sequence[int] | None = None
    ) -> Corpus:
        """Map the shards; texts are cut at `longest` rows; shorter than 8, or without an answer in them, they are left
        out.

        Raises: UsageError when there is nothing to learn from.
        """
        shards = tuple(Shard.open(f) for f in files)
        places = [
            Place(i, a, min(b, a + longest)) for i, s in enumerate(shards) for a, b in s.spans()
            if b - a >= 8 and bool(s.loss[a : min(b, a + longest)].any())
        ]
        if len(places) < 4:
            raise UsageError(
                f"{len(places)} texts were found; at least 4 are needed to learn from and to validate on: give more "
                "prompts, tokens or minutes"
            )
        every = max(2, round(1 / held))
        return cls(
            shards, tuple(p for n, p in enumerate(places) if n % every), tuple(places[::every]), columns,
        )

    @property
    def rows(self) -> int:
        """Positions to learn from."""
        return sum(int(self.shards[p.shard].loss[p.begin : p.end].sum()) for p in self.learn)

    def counts(self, vocab: int) -> np.ndarray:
        """How often each token stands in an answer."""
        out = np.zeros(vocab, np.int64)
        for s in self.shards:
            following = np.append(s.tokens.numpy()[1:], 0)
            following[[end - 1 for _, end in s.spans()]] = s.next.numpy()
            out += np.bincount(following[s.loss.numpy()], minlength=vocab)
        return out

    def batch(self, places: Sequence[Place], device: torch.device) -> Batch:
        """Some texts as one batch."""
        longest = max(p.end - p.begin for p in places)
        first = self.shards[places[0].shard]
        columns = slice(None) if self.columns is None else list(self.columns)
        width = first.taps.shape[2] * (first.taps.shape[0] if self.columns is None else len(self.columns))
        tokens = torch.zeros(len(places), longest, dtype=torch.int64)
        loss = torch.zeros(len(places), longest, dtype=torch.bool)
        taps = torch.zeros(len(places), longest, width, dtype=torch.bfloat16)
        last = torch.zeros(len(places), longest, first.last.shape[1], dtype=torch.bfloat16)
        for i, p in enumerate(places):
            s, n = self.shards[p.shard], p.end - p.begin
            tokens[i, :n] = s.tokens[p.begin : p.end]
            loss[i, :n] = s.loss[p.begin : p.end]
            taps[i, :n] = s.taps[:, p.begin : p.end][columns].transpose(0, 1).reshape(n, width)
            last[i, :n] = s.last[p.begin : p.end]
        return Batch(tokens.to(device), loss.to(device), taps.to(device), last.to(device))

    def order(self, seed: int, epoch: int, rows: int) -> list[list[Place]]:
        """An epoch's batches of about `rows` padded rows each: texts of like length together, batches shuffled."""
        rng = np.random.default_rng((seed, epoch))
        length = np.array([p.end - p.begin for p in self.learn])
        by = np.argsort(length + rng.uniform(0, 40, len(length)), kind="stable")
        batches: list[list[Place]] = []
        now: list[Place] = []
        for i in by.tolist():
            longest = max([length[i], *(p.end - p.begin for p in now)])
            if now and longest * (len(now) + 1) > rows:
                batches.append(now)
                now = []
            now.append(self.learn[i])
        batches.append(now)
        return [batches[i] for i in rng.permutation(len(batches)).tolist()]

    def held_out(self, rows: int) -> Iterator[list[Place]]:
        """The validation texts in batches."""
        now: list[Place] = []
        for p in sorted(self.validate, key=lambda p: p.end - p.begin):
            if now and (p.end - p.begin) * (len(now) + 1) > rows:
                yield now
                now = []
            now.append(p)
        if now:
            yield now


def draft_vocabulary(counts: np.ndarray, size: int) -> np.ndarray:
    """The `size` most frequent ids, in order of id; ties go to the lowest.

    >>> draft_vocabulary(np.array([3, 0, 5, 3]), 2).tolist()
    [0, 2]
    """
    return np.sort(np.lexsort((np.arange(len(counts)), -counts))[:size])
