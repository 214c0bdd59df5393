"""What attention, runners and targets need of a key-value store, whichever it is, and how one is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int

from hedgerow.systems.kv_contiguous import ContiguousKV
from hedgerow.systems.kv_paged import PagedKV
from hedgerow.systems.slots import Places

Kind = Literal["paged", "contiguous"]


class Reader(Protocol):
    """Keys and values of a slot for the reference path of attention; `side` is 2 · layer, + 1 for values."""

    def into(
        self, side: int, out: Float[torch.Tensor, "kv_heads kv_len head_dim"]
    ) -> Float[torch.Tensor, "kv_heads kv_len head_dim"]:
        """Fill `out` and return it."""

    def tensor(self, side: int) -> Float[torch.Tensor, "kv_heads kv_len head_dim"]:
        """The same as a tensor, without a copy where there is one."""


class KVStore(Protocol):
    """The key-value state of every request of one model.

    A slot holds committed tokens, then the pending rows of the step under way. `pool` is laid out [2 · layers, pages,
    kv_heads, tokens of a page, head_dim] in every store; `table` says which pages are a slot's.
    """

    layers: int
    kv_heads: int
    head_dim: int
    slots: int
    max_len: int
    max_rows: int
    room: int
    dtype: torch.dtype
    device: torch.device

    @property
    def pool(self) -> Float[torch.Tensor, "sides pages kv_heads tokens head_dim"]:
        """All keys and values."""

    @property
    def free_slots(self) -> int:
        """Slots nobody holds."""

    def acquire(self) -> int:
        """An empty slot. Raises CapacityError when every slot is held."""

    def reuse(
        self, slot: int, tokens: Sequence[int], tenant: str = "", accept: Callable[[Any], bool] = lambda note: True
    ) -> list[Any]:
        """Let an empty slot begin with what is known of `tokens`; returns the notes of the tokens it now holds."""

    def release(self, slot: int) -> None:
        """Free a slot, pending rows included."""

    def length(self, slot: int) -> int:
        """Committed tokens of a slot."""

    def pending(self, slot: int) -> int:
        """Rows staged and not yet committed."""

    def table(self, slot: int) -> tuple[Int[np.ndarray, " pages"], int]:
        """Pages of a slot in order, int32, and the tokens on a page.

        The key of place t for head h of layer l is `pool[2 * l, pages[t // tokens], h, t % tokens]`; values at 2 l + 1.
        """

    def stage(self, slot: int, rows: int, tokens: Sequence[int] | None = None) -> None:
        """Make room for pending rows. Raises CapacityError when there is none; nothing is changed then."""

    def drop(self, slot: int) -> None:
        """Forget the pending rows of a slot."""

    def places(self, slot: int, begin: int, end: int) -> list[Places]:
        """Views of places `begin` … `end` of a slot, to be written."""

    def read(
        self, slot: int, end: int, order: Int[torch.Tensor, " kv_len"] | None = None, begin: int = 0
    ) -> Reader:
        """Places `begin` … `end` of a slot, or the places `order` names, for every layer."""

    def write(
        self, layer: int, slot: int, at: int, k: Float[torch.Tensor, "kv_heads rows head_dim"],
        v: Float[torch.Tensor, "kv_heads rows head_dim"],
    ) -> None:
        """Store the keys and values of pending rows at places `at` … of a slot, in place."""

    def commit(self, slot: int, rows: Sequence[int], notes: Sequence[Any] | None = None) -> None:
        """Keep these pending rows, in this order, behind the committed tokens, and drop the others."""

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` begin with the first `length` committed tokens of `src`; what it held is dropped."""

    def check_integrity(self) -> None:
        """Raises InvariantError if anything is lost or held twice."""


def open_store(
    kind: Kind, layers: int, kv_heads: int, head_dim: int, slots: int, max_len: int, max_rows: int,
    dtype: torch.dtype, device: torch.device,
) -> KVStore:
    """A store: `paged` shares beginnings between requests, `contiguous` gives every slot a place of its own.

    Raises: CapacityError when it does not fit in memory.
    """
    make = PagedKV if kind == "paged" else ContiguousKV
    return make(layers, kv_heads, head_dim, slots, max_len, max_rows, dtype, device)
