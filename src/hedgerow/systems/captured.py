"""Whole steps recorded once a bucket and replayed: no Python, no launches, one copy in and one small transfer out.

A recording has fixed shapes and addresses, so a step is padded to a bucket and laid into buffers:

* `rows` packed rows go through the layers; padding repeats row 0, key and place included, so it changes nothing;
* attention runs on a grid of `groups` × `width` cells; each cell names its packed row, each packed row its cell;
* each group sees `kv_len` places: its committed ones, and of `width` more those its ancestor bits name.

All of a step's numbers are one int64 buffer, copied to the device at once; masks are made from it there. What does not
fit a bucket runs as it always did.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Int

from hedgerow.core.errors import InvariantError
from hedgerow.systems.attends import Attention
from hedgerow.systems.attention import Span
from hedgerow.systems.kv import KVStore
from hedgerow.systems.recorders import Recorder, Replay
from hedgerow.systems.static import Inputs, StaticAttention

ROWS = (4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
WIDTHS = (4, 8, 16, 32, 64, 128)
SHORTEST = 256                            # keys of the smallest bucket; each next is 3/2 or 4/3 of it: 256, 384, 512 …
MOST = 96                                 # recordings kept for one store; the one not used for longest goes first

Outs = Sequence[torch.Tensor]
Forward = Callable[[Int[torch.Tensor, " rows"], Int[torch.Tensor, " rows"], Attention], Outs]
"""Token ids, positions and attention of packed rows -> results, each with the rows first."""


class Bucket(NamedTuple):
    """The fixed sizes of a recording: packed rows, groups, cells of a group, places a group sees."""

    rows: int
    groups: int
    width: int
    kv_len: int


def _at_least(sizes: Sequence[int], n: int) -> int | None:
    i = bisect_left(sizes, n)
    return sizes[i] if i < len(sizes) else None


def lengths(room: int) -> list[int]:
    """Key lengths of buckets for slots of so many places; the last one holds a whole slot.

    >>> lengths(1100)
    [256, 384, 512, 768, 1024, 1100]
    """
    out, n = [], SHORTEST
    while n < room:
        out += [n, n + n // 2]
        n *= 2
    return [x for x in out if x < room] + [room]


def bucket_of(kv: KVStore, spans: Sequence[Span]) -> Bucket | None:
    """The smallest bucket that holds these rows, or None where they are too many.

    In a store whose slots are pages of their own a group sits at its slot's number, so that keys need not be gathered.
    """
    rows = _at_least(ROWS, sum(s.rows for s in spans))
    width = _at_least(WIDTHS, max(s.ancestors.shape[1] for s in spans))
    places = max(s.prefix + s.ancestors.shape[1] for s in spans)
    kv_len = _at_least(lengths(kv.room), places)
    own_pages = kv.pool.shape[3] == kv.room
    count = 1 + max(s.slot for s in spans) if own_pages else len(spans)
    groups = min(1 << (count - 1).bit_length(), kv.slots)
    if rows is None or width is None or kv_len is None or groups < count:
        return None
    return Bucket(rows, groups, width, kv_len)


class _Recording:
    """One bucket: its inputs, its results, and how to run it again."""

    def __init__(self, kv: KVStore, bucket: Bucket, heads: int) -> None:
        self.inputs = Inputs(kv, *bucket)
        self.attention = StaticAttention(kv, self.inputs, heads)
        self.outs: list[torch.Tensor] = []
        self.replay: Replay | None = None

    def record(self, forward: Forward, recorder: Recorder, outbox: _Outbox) -> None:
        """Record the pass; the inputs must hold a step that may run: it does, several times."""
        rows = self.inputs.rows

        def work() -> None:
            self.attention.begin()
            found = forward(self.inputs.tokens, self.inputs.positions, self.attention)
            self.outs = [outbox.get(i, x, rows).copy_(x) for i, x in enumerate(found)]

        self.replay = recorder.record(work)


class _Outbox:
    """Memory for results, shared by all recordings of a store: they never run at the same time."""

    def __init__(self) -> None:
        self._memory: dict[Hashable, torch.Tensor] = {}

    def get(self, index: int, like: torch.Tensor, rows: int) -> torch.Tensor:
        """A tensor like this one outside of any recording's own memory."""
        if len(like) != rows:
            raise InvariantError(f"result {index} of a step of {rows} rows has {len(like)}")
        key = index, like.shape[1:], like.dtype
        if key not in self._memory or len(self._memory[key]) < rows:
            # Older recordings keep the smaller one they write to.
            self._memory[key] = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        return self._memory[key][:rows]


class _Store:
    """What is recorded on one store's keys and values, the last used last."""

    def __init__(self) -> None:
        self.outbox = _Outbox()
        self.recordings: dict[Hashable, _Recording] = {}


class Captured:
    """Steps of one network, recorded as their buckets are met; `told` hears, in one line, why there are none any more.

    After a failure every step runs as it would without: `why_not` says what failed.
    """

    def __init__(self, recorder: Recorder, told: Callable[[str], None] = lambda reason: None) -> None:
        self.recorder, self.why_not = recorder, ""
        self._told = told
        self._stores: WeakKeyDictionary[KVStore, _Store] = WeakKeyDictionary()

    def count(self, kv: KVStore) -> int:
        """How many buckets are recorded on a store."""
        return len(self._stores[kv].recordings) if kv in self._stores else 0

    @torch.inference_mode()
    def run(
        self, forward: Forward, kv: KVStore, heads: int, tokens: Int[np.ndarray, " rows"],
        positions: Int[np.ndarray, " rows"], spans: Sequence[Span], key: Hashable = None,
    ) -> list[torch.Tensor] | None:
        """Results of `forward` over the packed rows of `spans`, or None where it has to run otherwise.

        Keys and values of the rows are written to `kv`. `key` names what `forward` returns: two with the same key must
        do the same. Results are copies.
        """
        if self.why_not or (bucket := bucket_of(kv, spans)) is None:
            return None
        made = self._get(kv, bucket, heads, key)
        made.inputs.fill(kv, tokens, positions, spans)
        if not self._ready(kv, made, forward):
            return None
        assert made.replay is not None
        made.replay()
        return [x[: len(tokens)].clone() for x in made.outs]

    @torch.inference_mode()
    def prepare(
        self, forward: Forward, kv: KVStore, heads: int, buckets: Iterable[Bucket], key: Hashable = None
    ) -> None:
        """Record these buckets ahead of their use, the largest first.

        Place 0 of page 0 is written. Raises: InvariantError if a slot is held.
        """
        if kv.free_slots != kv.slots:
            raise InvariantError(f"{kv.slots - kv.free_slots} slots are in use: recording ahead writes to their keys")
        for bucket in sorted(buckets, reverse=True):
            made = self._get(kv, bucket, heads, key)
            made.inputs.blank()
            if not self._ready(kv, made, forward):
                return

    def _get(self, kv: KVStore, bucket: Bucket, heads: int, key: Hashable) -> _Recording:
        recordings = self._stores.setdefault(kv, _Store()).recordings
        made = recordings.pop((key, bucket), None) or _Recording(kv, bucket, heads)
        recordings[key, bucket] = made    # used last
        if len(recordings) > MOST:
            del recordings[next(iter(recordings))]
        return made

    def _ready(self, kv: KVStore, made: _Recording, forward: Forward) -> bool:
        """Whether it can be replayed; records it first if need be."""
        if made.replay is None:
            try:
                made.record(forward, self.recorder, self._stores[kv].outbox)
            except RuntimeError as e:     # whatever a library does that a recording cannot
                reason = (str(e).strip().splitlines() or [type(e).__name__])[0]
                self.why_not = f"steps run without {self.recorder.name}: {reason}"
                self._stores.clear()
                self._told(self.why_not)
                return False
        return True
