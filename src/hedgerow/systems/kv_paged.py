"""Keys and values in pages: shared between requests that begin alike, kept for later ones, allocated as they fill.

One pool, laid out [layer and side, page, kv_heads, tokens of a page, head_dim]; a slot has a table of pages, which hold
its committed tokens, then the pending rows of the step under way. A page is written only while one slot alone holds it:
a fork, and a request that finds its beginning known, share pages until they write behind their tokens; then the partly
filled last page is copied. Full pages are never written again. On the CPU the pool is anonymous memory: pages of it
that were never used cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from hedgerow.core.errors import CapacityError, InvariantError
from hedgerow.systems.pages import PagedReader, Pages
from hedgerow.systems.prefix import Accept, PrefixIndex, Trail
from hedgerow.systems.slots import Places, Slots, check_commit, check_stage

PAGE = 64                                 # attention reads multiples of this


@dataclass
class _Slot:
    """What a slot holds, and the trail of its text if it is to be found again."""

    length: int = 0
    pending: int = 0
    pages: list[int] = field(default_factory=list)
    trail: Trail | None = None


class PagedKV:
    """The key-value state of every request of one model, in pages.

    `pages`: of the whole pool (None: as many as all slots can need at once). `keep`: most pages kept for later requests
    (None: one slot's worth); kept pages are given up, least recently used first, when others need them.

    Raises: CapacityError when the pool does not fit in memory.

    >>> kv = PagedKV(layers=1, kv_heads=1, head_dim=2, slots=2, max_len=8, max_rows=4, page=2)
    >>> a, b = kv.acquire(), kv.acquire()
    >>> kv.stage(a, 3)
    >>> kv.write(0, a, 0, torch.tensor([[[1.0, 1], [2, 2], [3, 3]]]), torch.zeros(1, 3, 2))
    >>> kv.commit(a, [0, 1, 2]); kv.fork(a, b, 3); kv.table(b)[0].tolist() == kv.table(a)[0].tolist()
    True
    >>> kv.stage(b, 1); kv.table(a)[0].tolist(), kv.table(b)[0].tolist(), kv.read(b, 3).tensor(0)[0, :3, 0].tolist()
    ([0, 1], [0, 2], [1.0, 2.0, 3.0])
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, slots: int, max_len: int, max_rows: int,
        dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu", pages: int | None = None,
        keep: int | None = None, page: int = PAGE,
    ) -> None:
        self.layers, self.kv_heads, self.head_dim = layers, kv_heads, head_dim
        self.slots, self.max_len, self.max_rows, self.page = slots, max_len, max_rows, page
        self.dtype, self.device = dtype, torch.device(device)
        per_slot = -(-(max_len + max_rows) // page)
        self.room = per_slot * page
        self.keep = per_slot if keep is None else keep
        count = slots * per_slot if pages is None else pages
        self._pages = Pages(layers, kv_heads, head_dim, count, page, dtype, self.device)
        self._slots = Slots(slots, _Slot)
        self._index = PrefixIndex(page)

    # ------------------------------------------------------------------------------------------ slots

    @property
    def free_slots(self) -> int:
        """Slots nobody holds."""
        return self._slots.free

    @property
    def free_pages(self) -> int:
        """Pages nobody holds, those kept for later requests not counted."""
        return self._pages.free

    @property
    def pool(self) -> Float[torch.Tensor, "sides pages kv_heads tokens head_dim"]:
        """All keys and values; see `table`."""
        return self._pages.pool

    def acquire(self) -> int:
        """An empty slot. Raises CapacityError when every slot is held."""
        return self._slots.acquire()

    def reuse(
        self, slot: int, tokens: Sequence[int], tenant: str = "", accept: Accept = lambda note: True
    ) -> list[Any]:
        """Let an empty slot begin with what is known of `tokens`; returns the notes of the tokens it now holds.

        That is never all of them: the last one has to run, or there would be no logits. From here on what the slot
        commits is kept for later requests of the tenant, as far as `stage` is told its tokens.

        Raises: InvariantError if the slot holds something.
        """
        s = self._slots[slot]
        if s.length or s.pending or s.trail is not None:
            raise InvariantError(f"slot {slot} holds {s.length} + {s.pending} tokens; only an empty one can begin anew")
        text = [int(t) for t in tokens]
        whole, partly, common = self._index.find(tenant, text, min(len(text) - 1, self.max_len), accept)
        s.length, s.pages = len(whole) * self.page + common, [node.page for node in whole]
        notes = [note for node in whole for note in node.notes]
        s.trail = Trail(self._index, [self._index.root(tenant), *whole], text[: s.length], notes)
        if partly is not None:
            s.pages.append(partly.page)
            notes += partly.notes[:common]
            self._index.touch(partly)
        self._hold(s.pages)
        return list(notes)

    def release(self, slot: int) -> None:
        """Free a slot, pending rows included; pages whose text is known stay for later requests.

        Raises: InvariantError if nobody holds it.
        """
        s = self._slots[slot]
        self.drop(slot)
        if s.trail is not None and self.keep:
            self._hold(s.trail.end(s.pages))
        self._clear(s)
        self._slots.release(slot)
        while self._index.idle > self.keep:
            self._forget()

    def length(self, slot: int) -> int:
        """Committed tokens of a slot."""
        return self._slots[slot].length

    def pending(self, slot: int) -> int:
        """Rows staged and not yet committed."""
        return self._slots[slot].pending

    def table(self, slot: int) -> tuple[Int[np.ndarray, " pages"], int]:
        """Pages of a slot in order, int32, and the tokens on a page.

        The key of place t for head h of layer l is `pool[2 * l, pages[t // tokens], h, t % tokens]`; values at 2 l + 1.
        """
        return np.array(self._slots[slot].pages, np.int32), self.page

    def _take(self, slot: int, s: _Slot, end: int) -> tuple[list[int], bool]:
        """Pages for places up to `end`, and whether the first is to replace the last one, which others hold too.

        Known pages are forgotten for them, which may leave that one to the slot alone.
        """
        at, tail = divmod(s.length, self.page)
        while True:
            shared = tail > 0 and self._pages.shared(s.pages[at])
            count = -(-end // self.page) - len(s.pages) + shared
            if self._pages.free >= count:
                return self._pages.take(count), shared
            if not self._forget():
                raise CapacityError(
                    f"slot {slot} needs {count} more pages of {self.page} tokens; {self._pages.free} of "
                    f"{self._pages.count} are free: end a request, or load with more slots or a shorter context"
                )

    def _forget(self) -> bool:
        page = self._index.forget()
        if page is not None:
            self._pages.give(page)
        return page is not None

    def _hold(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._pages.hold(page)

    def _leave(self, s: _Slot) -> None:
        """The slot's text is not to be found again, or not from here on; pages it shares stay shared."""
        if s.trail is not None:
            s.trail.leave()
        s.trail = None

    def _clear(self, s: _Slot) -> None:
        """Let go of everything a slot holds."""
        self._leave(s)
        for page in s.pages:
            self._pages.give(page)
        s.length, s.pending, s.pages = 0, 0, []

    # ------------------------------------------------------------------------------------------ a step

    def stage(self, slot: int, rows: int, tokens: Sequence[int] | None = None) -> None:
        """Make room for `rows` pending rows behind what is pending already (a drafter stages its tree round by round).

        Without their `tokens` the rows can be committed, but the text is then not found again by later requests.

        Raises: CapacityError when the slot is too short for them or pages run out; nothing is changed then.
        """
        s = self._slots[slot]
        end = s.length + s.pending + rows
        check_stage(slot, s.length + s.pending, rows, self.room, self.max_len)
        if not rows:
            return
        fresh, shared = self._take(slot, s, end)
        if shared:                        # written behind the tokens from now on: a page of its own
            at = s.length // self.page
            old, s.pages[at] = s.pages[at], fresh.pop(0)
            self._pages.copy(old, s.pages[at], s.length % self.page + s.pending)  # pending rows of before a fork too
            self._pages.give(old)
        s.pages += fresh
        s.pending += rows
        if s.trail is not None and tokens is not None:
            s.trail.text += [int(t) for t in tokens]
        else:                             # a text with unknown tokens in it cannot be found
            self._leave(s)

    def drop(self, slot: int) -> None:
        """Forget the pending rows of a slot."""
        s = self._slots[slot]
        s.pending = 0
        if s.trail is not None:
            s.trail.drop()
        self._trim(s)

    def _trim(self, s: _Slot) -> None:
        used = -(-s.length // self.page)
        for page in s.pages[used:]:
            self._pages.give(page)
        del s.pages[used:]

    def places(self, slot: int, begin: int, end: int) -> list[Places]:
        """Views of places `begin` … `end` of a slot, page by page."""
        return self._pages.places(self._slots[slot].pages, begin, end)

    def write(
        self, layer: int, slot: int, at: int, k: Float[torch.Tensor, "kv_heads rows head_dim"],
        v: Float[torch.Tensor, "kv_heads rows head_dim"],
    ) -> None:
        """Store the keys and values of pending rows at places `at` … of a slot, in place."""
        for begin, end, views in self.places(slot, at, at + k.shape[1]):
            views[2 * layer].copy_(k[:, begin:end])
            views[2 * layer + 1].copy_(v[:, begin:end])

    def read(
        self, slot: int, end: int, order: Int[torch.Tensor, " kv_len"] | None = None, begin: int = 0
    ) -> PagedReader:
        """Places `begin` … `end` of a slot up to the end of a page, or the places `order` names, for every layer."""
        return self._pages.reader(self._slots[slot].pages, end, order, begin)

    def commit(self, slot: int, rows: Sequence[int], notes: Sequence[Any] | None = None) -> None:
        """Keep these pending rows, in this order, behind the committed tokens, and drop the others.

        Rows that stand where they belong are not moved. Pages that became full can be found by other requests, with a
        note of the caller's for every token.

        Raises: InvariantError for a row that is not pending or not increasing, CapacityError beyond the context.
        """
        s = self._slots[slot]
        kept, still = check_commit(slot, rows, s.length, s.pending, self.max_len)
        whole = s.length + len(kept)
        if still < len(kept):
            self._pages.move(s.pages, [s.length + r for r in kept[still:]], range(s.length + still, whole))
        s.length, s.pending = whole, 0
        self._trim(s)
        if s.trail is not None:
            s.trail.keep(kept, notes)
            if self.keep:
                self._hold(s.trail.publish(s.pages))

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` begin with the first `length` committed tokens of `src`, in shared pages; `dst` held is dropped.

        Raises: InvariantError if `src` holds fewer.
        """
        source, target = self._slots[src], self._slots[dst]
        if not 0 <= length <= source.length:
            raise InvariantError(f"fork of {length} tokens from slot {src}, which holds {source.length}")
        pages = source.pages[: -(-length // self.page)]
        trail = None if source.trail is None else source.trail.branch(length)
        self._hold(pages)
        self._clear(target)
        target.length, target.pages, target.trail = length, pages, trail

    def check_integrity(self) -> None:
        """Raises InvariantError if a slot or page is lost or held twice, or a slot is not as long as it says."""
        self._slots.check()
        for slot, s in self._slots.items():
            size = s.length + s.pending
            if not (0 <= s.length <= self.max_len and 0 <= s.pending <= self.room - s.length):
                raise InvariantError(f"slot {slot} holds {s.length} + {s.pending} tokens of {self.room}")
            if len(s.pages) != -(-size // self.page):
                raise InvariantError(f"slot {slot} has {len(s.pages)} pages for {size} tokens")
            if s.trail is not None and (len(s.trail.text), len(s.trail.notes)) != (size, s.length):
                raise InvariantError(f"slot {slot} knows {len(s.trail.text)} of its {size} tokens")
        nodes = list(self._index.nodes())
        self._pages.check([*(p for _, s in self._slots.items() for p in s.pages), *(node.page for node in nodes)])
        self._index.check([node for _, s in self._slots.items() for node in (s.trail.chain if s.trail else ())])
