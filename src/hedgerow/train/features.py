"""What the target saw while it wrote: hidden states of every position, in memory-mapped shards.

A shard is one safetensors file over `rows` positions of whole texts: `tokens` [rows] int32, `loss` [rows] bool (the
position's next token belongs to an answer), `text` [rows] int32 (number of the text within the shard), `taps` [taps,
rows, hidden] and `last` [rows, hidden], both bf16. A position's row holds its token and the hidden states after
reading it; the last token of a text, which nobody read, closes the text as `next` [texts] int32.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hedgerow.core.errors import InvariantError, UsageError
from hedgerow.core.parts import Ask, Children, Feats, Needs, Row, RowGroup, Step, Target
from hedgerow.core.tree import Selection

SHARD = 32768                              # rows of a shard, at least


@dataclass(frozen=True)
class Seen:
    """One text and the target's hidden states over all but its last token."""

    ids: tuple[int, ...]
    answer: int
    taps: torch.Tensor                     # [taps, len(ids) - 1, hidden]
    last: torch.Tensor                     # [len(ids) - 1, hidden]
    about: str = ""                        # kept with the shard, for `Shards.about`


@dataclass
class Recorder:
    """A drafter that proposes nothing and keeps the features of every committed position, for as long as a slot lives.

    `take(slot)` hands over what the last request of a slot left: it is called after the slot's release.
    """

    taps: tuple[int, ...]
    needs: Needs = field(init=False)
    selections: frozenset[Selection] = frozenset()
    _live: dict[int, list[Feats]] = field(default_factory=dict)
    _done: dict[int, list[Feats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.needs = Needs(taps=self.taps, last_hidden=True)

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Keep the prompt's features."""
        self._live[slot] = [feats]

    def commit(self, slot: int, step: Step) -> None:
        """Keep the features of the root and of the accepted path."""
        rows = [0, *(node + 1 for node in step.verdict.path)]
        taps = step.feats.taps[:, rows] if self.taps else None
        self._live[slot].append(Feats(taps=taps, last_hidden=step.feats.last_hidden[rows]))

    def take(self, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Taps [taps, rows, hidden] and last hidden states [rows, hidden] of a released slot, and forget them."""
        kept = self._done.pop(slot)
        last = torch.cat([f.last_hidden for f in kept]).cpu()
        return torch.cat([f.taps for f in kept], 1).cpu() if self.taps else last[None, :0].expand(0, *last.shape), last

    def children(self, asks: Sequence[Ask]) -> Children:
        """Nothing, of anything."""
        return Children([0] * sum(len(a.frontier.nodes) for a in asks), [], [])

    def row(self, slot: int, origin: int) -> Row:
        """There are none. Raises InvariantError."""
        raise InvariantError("a recorder drafts nothing, so it has no rows")

    def fork(self, src: int, dst: int, length: int) -> None:
        """Not needed for writing text. Raises InvariantError."""
        raise InvariantError("a recorder does not follow forks")

    def release(self, slot: int) -> None:
        """Set the slot's features aside for `take`."""
        self._done[slot] = self._live.pop(slot, [])


@dataclass
class Shards:
    """A directory of shards that is written text by text; `flush` closes one. Mutates: the directory.

    A directory that holds more taps than are asked for keeps its own: `taps` says which.

    Raises: UsageError for a directory that lacks taps which are asked for.
    """

    folder: Path
    taps: tuple[int, ...]
    _held: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        about = self.folder / "about.json"
        if about.exists():
            there = tuple(json.loads(about.read_text())["taps"])
            if not set(self.taps) <= set(there):
                raise UsageError(
                    f"{self.folder} holds features of taps {list(there)}, not {list(self.taps)}; "
                    "use another --run directory or the same taps"
                )
            self.taps = there
        about.write_text(json.dumps({"taps": list(self.taps)}))

    def columns(self, taps: Sequence[int]) -> list[int] | None:
        """Which of the recorded taps these are; None for all of them as they stand."""
        return None if tuple(taps) == self.taps else [self.taps.index(t) for t in taps]

    def about(self) -> list[str]:
        """What was said about every text of the closed shards, in order."""
        said: list[str] = []
        for file in self.files:
            with safe_open(file, framework="pt") as f:
                said += json.loads((f.metadata() or {}).get("texts", "[]"))
        return said

    @property
    def files(self) -> list[Path]:
        """Closed shards, in order."""
        return sorted(self.folder.glob("*.safetensors"))

    def add(self, seen: Seen) -> bool:
        """Keep a text; True when that closed a shard."""
        self._held.append(seen)
        if sum(len(s.last) for s in self._held) < SHARD:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Write what is held as a shard: under another name first, so that a shard is whole or not there."""
        if not self._held:
            return
        held, rows = self._held, [len(s.last) for s in self._held]
        tokens = np.concatenate([np.array(s.ids[:-1], np.int32) for s in held])
        loss = np.concatenate([np.arange(1, len(s.ids)) >= s.answer for s in held])
        path = self.folder / f"{len(self.files):05d}.safetensors"
        part = path.with_suffix(".part")
        save_file(
            {
                "tokens": torch.from_numpy(tokens), "loss": torch.from_numpy(loss),
                "text": torch.from_numpy(np.repeat(np.arange(len(held), dtype=np.int32), rows)),
                "next": torch.tensor([s.ids[-1] for s in held], dtype=torch.int32),
                "taps": torch.cat([s.taps for s in held], 1).bfloat16().contiguous(),
                "last": torch.cat([s.last for s in held]).bfloat16().contiguous(),
            },
            part,
            metadata={"texts": json.dumps([s.about for s in held])},
        )
        part.rename(path)
        self._held = []


@dataclass(frozen=True)
class Shard:
    """A shard as tensors over a memory-mapped file: nothing is read before it is used."""

    tokens: torch.Tensor
    loss: torch.Tensor
    text: torch.Tensor
    next: torch.Tensor
    taps: torch.Tensor
    last: torch.Tensor

    @classmethod
    def open(cls, path: Path) -> Shard:
        """Map a file."""
        with safe_open(path, framework="pt") as f:
            return cls(**{name: f.get_tensor(name) for name in ("tokens", "loss", "text", "next", "taps", "last")})

    def spans(self) -> list[tuple[int, int]]:
        """First row and row behind the last of every text."""
        edges = np.flatnonzero(np.diff(self.text.numpy(), prepend=-1, append=-2))
        return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def read_again(target: Target, texts: Sequence[tuple[tuple[int, ...], int]], taps: tuple[int, ...]) -> Iterator[Seen]:
    """Run texts (ids, where the answer begins) through the target once more, for features that were not recorded."""
    needs = Needs(taps=taps, last_hidden=True)
    for ids, answer in texts:
        slot = target.acquire()
        try:
            n = len(ids) - 1
            group = RowGroup("prefill", slot, np.array(ids[:-1]), np.arange(n), np.empty((n, 0), np.bool_))
            _, feats = target.collect(target.submit([group], needs))
            target.commit(slot, range(n))
            yield Seen(ids, answer, feats[0].taps.cpu(), feats[0].last_hidden.cpu())
        finally:
            target.release(slot)
