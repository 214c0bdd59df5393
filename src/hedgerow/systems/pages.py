"""The pages of a paged key-value store: one pool, who holds which page, and the copies between them.

The pool is laid out [layer and side, page, kv_heads, tokens of a page, head_dim]: keys of layer 0, its values, keys of
layer 1, … A page is free while nobody holds it. On the CPU pages that were never used cost nothing.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int

from hedgerow.core.errors import InvariantError
from hedgerow.systems.slots import Places, zeros


@dataclass(frozen=True)
class PagedReader:
    """Keys and values on some pages as attention wants them: gathered in order, or single places in any order.

    `pages`: a page each, or for every place named by `within` the page it is on. `run`: views where the pages follow
    one another, two a layer.
    """

    pool: Float[torch.Tensor, "sides pages kv_heads tokens head_dim"]
    pages: Int[torch.Tensor, " n"]
    within: Int[torch.Tensor, " n"] | None
    run: tuple[torch.Tensor, ...] | None

    def into(
        self, side: int, out: Float[torch.Tensor, "kv_heads kv_len head_dim"]
    ) -> Float[torch.Tensor, "kv_heads kv_len head_dim"]:
        """Fill `out` with keys (`side` = 2 · layer) or values (2 · layer + 1), and return it."""
        if self.within is not None:
            return out.copy_(self.pool[side][self.pages, :, self.within].transpose(0, 1))
        _, _, heads, tokens, dim = self.pool.shape
        found = self.run[side] if self.run else self.pool[side].index_select(0, self.pages).transpose(0, 1)
        out.view(heads, len(self.pages), tokens, dim).copy_(found)
        return out

    def tensor(self, side: int) -> Float[torch.Tensor, "kv_heads kv_len head_dim"]:
        """The same as a tensor of its own."""
        _, _, heads, tokens, dim = self.pool.shape
        length = len(self.pages) * (tokens if self.within is None else 1)
        return self.into(side, self.pool.new_empty(heads, length, dim))


class Pages:
    """A pool of `count` pages of `tokens` tokens, each with the number of its holders.

    Raises: CapacityError when the pool does not fit in memory.

    >>> pages = Pages(layers=1, kv_heads=1, head_dim=2, count=3, tokens=4)
    >>> a, b = pages.take(2); pages.hold(a); pages.give(a); pages.give(b)
    >>> pages.shared(a), pages.free, pages.take(1)
    (False, 2, [1])
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, count: int, tokens: int, dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.count, self.tokens = count, tokens
        device = device or torch.device("cpu")
        shape = (2 * layers, count, kv_heads, tokens, head_dim)
        self.pool = zeros(shape, dtype, device, f"{count} pages of {tokens} tokens")
        self._free = list(range(count))   # a heap: low pages first, so that a slot's follow one another
        self._holders = [0] * count

    @property
    def free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """So many free pages, lowest first, each with one holder now. There must be so many."""
        out = [heapq.heappop(self._free) for _ in range(count)]
        for page in out:
            self._holders[page] = 1
        return out

    def hold(self, page: int) -> None:
        """One holder more."""
        self._holders[page] += 1

    def give(self, page: int) -> None:
        """One holder less; without any the page is free."""
        self._holders[page] -= 1
        if not self._holders[page]:
            heapq.heappush(self._free, page)

    def holders(self, page: int) -> int:
        """How many hold a page."""
        return self._holders[page]

    def shared(self, page: int) -> bool:
        """Whether more than one holds a page: it must not be written."""
        return self._holders[page] > 1

    def copy(self, old: int, new: int, tokens: int) -> None:
        """Copy the first `tokens` tokens of a page to another, for all layers."""
        self.pool[:, new, :, :tokens] = self.pool[:, old, :, :tokens]

    def move(self, table: Sequence[int], old: Sequence[int], new: Sequence[int]) -> None:
        """Copy places `old` of a table of pages to its places `new`, for all layers at once."""
        pages = torch.tensor(table, device=self.pool.device)
        a, b = torch.tensor([old, new], device=self.pool.device)
        self.pool[:, pages[b // self.tokens], :, b % self.tokens] = self.pool[
            :, pages[a // self.tokens], :, a % self.tokens
        ]

    def places(self, table: Sequence[int], begin: int, end: int) -> list[Places]:
        """Views of places `begin` … `end` of a table of pages, page by page."""
        out, at = [], begin
        while at < end:
            n, low = divmod(at, self.tokens)
            high = min(self.tokens, low + end - at)
            out.append(Places(at - begin, at - begin + high - low, self.pool[:, table[n], :, low:high].unbind(0)))
            at += high - low
        return out

    def reader(
        self, table: Sequence[int], end: int, order: Int[torch.Tensor, " kv_len"] | None = None, begin: int = 0
    ) -> PagedReader:
        """Places `begin` … `end` of a table of pages, up to the end of a page, or the places `order` of it.

        Raises: InvariantError if the table is too short.
        """
        ids = list(table[: -(-end // self.tokens)])
        if len(ids) * self.tokens < end:
            raise InvariantError(f"{len(ids)} pages of {self.tokens} tokens have no {end} tokens")
        if order is None and begin % self.tokens:
            order = torch.arange(begin, len(ids) * self.tokens, device=self.pool.device)
        if order is None:
            ids = ids[begin // self.tokens :]
        pages = torch.tensor(ids, dtype=torch.int64, device=self.pool.device)
        if order is not None:
            return PagedReader(self.pool, pages[order // self.tokens], order % self.tokens, None)
        run = None
        if ids and ids == list(range(ids[0], ids[0] + len(ids))):
            run = self.pool[:, ids[0] : ids[0] + len(ids)].transpose(1, 2).unbind(0)
        return PagedReader(self.pool, pages, None, run)

    def check(self, held: Iterable[int]) -> None:
        """Raises InvariantError unless exactly `held`, a page once for each holder, are held and all others free."""
        counted = Counter(held)
        wrong = [p for p in range(self.count) if counted[p] != self._holders[p]]
        if wrong or counted.keys() - range(self.count):
            page = wrong[0] if wrong else max(counted)
            raise InvariantError(
                f"page {page} is held {counted[page]} times and counted as {self._holders[page : page + 1]}"
            )
        free = [p for p in range(self.count) if not self._holders[p]]
        if sorted(self._free) != free:
            raise InvariantError(f"{len(free)} pages are held by nobody and {len(self._free)} are listed as free")
