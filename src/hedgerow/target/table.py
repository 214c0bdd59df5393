"""An exact Markov language model in numpy: the target of law tests, the tour and the offline oracles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from hedgerow.core.errors import CapacityError, InvariantError, UsageError
from hedgerow.core.parts import Capacity, Feats, Needs, Row, RowGroup, TargetInfo, TargetRows
from hedgerow.core.select import top_ids


@dataclass(frozen=True)
class TableLaw:
    """A law of the next token that depends on the last tokens only: the row of the longest listed suffix.

    `rows` maps a context (its tokens, oldest first) to weights over the vocabulary, normalised here; the empty context
    must be listed and serves every text without a longer listed suffix.

    Raises: UsageError for a missing empty context, rows of different lengths, or a row that is no law.

    >>> law = TableLaw.of({(): [1, 1, 0], (2,): [0, 0, 1], (0, 2): [1, 0, 0]})
    >>> law([1, 1]).tolist(), law([1, 2]).tolist(), law([0, 2]).tolist()
    ([0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0])
    """

    rows: Mapping[tuple[int, ...], Row]

    @classmethod
    def of(cls, rows: Mapping[tuple[int, ...], Sequence[float] | Row]) -> TableLaw:
        """A law from plain sequences."""
        if () not in rows:
            raise UsageError("a table law has no row for the empty context (); add one: it serves unlisted contexts")
        vocab, out = len(rows[()]), {}
        for context, weights in rows.items():
            row = np.array(weights, np.float64)
            total = row.sum()
            if len(row) != vocab or not (0.0 < total < np.inf) or row.min() < 0.0:
                raise UsageError(
                    f"table row {list(weights)} of context {context} is no law over {vocab} tokens: "
                    f"{vocab} finite non-negative weights with some mass are allowed"
                )
            out[tuple(context)] = row / total
        return cls(out)

    @classmethod
    def random(cls, vocab: int, order: int, seed: int, temperature: float = 1.0) -> TableLaw:
        """Every context of up to `order` tokens gets softmax(standard normal logits / temperature)."""
        rng = np.random.default_rng(seed)
        rows: dict[tuple[int, ...], Row] = {}
        for length in range(order + 1):
            for context in np.ndindex(*(vocab,) * length):
                rows[context] = np.exp(rng.standard_normal(vocab) / temperature)
        return cls.of(rows)

    @cached_property
    def order(self) -> int:
        """Longest listed context."""
        return max(len(c) for c in self.rows)

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return len(self.rows[()])

    def __call__(self, tokens: Sequence[int]) -> Row:
        """The law of the token after `tokens`; a view, not to be written to."""
        for length in range(min(self.order, len(tokens)), 0, -1):
            row = self.rows.get(tuple(tokens[len(tokens) - length :]))
            if row is not None:
                return row
        return self.rows[()]


@dataclass(frozen=True)
class TableRows:
    """Rows of one call: their contexts; a law is looked up when asked for."""

    law: TableLaw
    contexts: list[list[tuple[int, ...]]]

    def logits(self, group: int, row: int) -> Row:
        """log p of one row, float64 so that laws come back to 1e-15; −inf for impossible tokens."""
        with np.errstate(divide="ignore"):
            return np.log(self.law(self.contexts[group][row]))

    def argmax(self, group: int) -> Int[np.ndarray, " rows"]:
        """Most likely token of every row, ties to the lowest id."""
        return np.array([int(np.argmax(self.law(c))) for c in self.contexts[group]], np.int64)

    def top(self, group: int, k: int) -> tuple[Int[np.ndarray, "rows k"], Float[np.ndarray, "rows k"]]:
        """Ids and logits of the k best tokens of every row."""
        logits = [self.logits(group, r) for r in range(len(self.contexts[group]))]
        ids = np.array([top_ids(row, k) for row in logits], np.int64).reshape(len(logits), -1)
        return ids, np.array([row[i] for row, i in zip(logits, ids, strict=True)], np.float64).reshape(ids.shape)


@dataclass(frozen=True)
class TableTicket:
    """A forward pass that is already done."""

    rows: TableRows
    feats: list[Feats]


class TableTarget:
    """A `Target` whose law is a table: exact, instant, and strict about the contract of rows.

    >>> target = TableTarget(TableLaw.of({(): [1, 3], (1,): [1, 0]}))
    >>> slot = target.acquire()
    >>> one = np.ones((1, 1), bool)
    >>> group = RowGroup("prefill", slot, np.array([1]), np.array([0]), one)
    >>> rows, _ = target.collect(target.submit([group], Needs()))
    >>> target.commit(slot, [0]); rows.argmax(0).tolist(), target.tokens(slot)
    ([0], [1])
    """

    def __init__(
        self, law: TableLaw, slots: int = 64, max_len: int = 1 << 20, eos: Sequence[int] = (), name: str = "table"
    ) -> None:
        self.law = law
        self.info = TargetInfo(
            name=name, vocab=law.vocab, max_len=max_len, device="cpu", dtype="float64", backend="table",
            eos=frozenset(eos),
        )
        self._free = list(range(slots))
        self._text: dict[int, list[int]] = {}
        self._pending: dict[int, RowGroup] = {}

    def capacity(self) -> Capacity:
        """Free slots; any number of rows."""
        return Capacity(slots=len(self._free), rows=1 << 20, max_len=self.info.max_len)

    def acquire(self) -> int:
        """The lowest free slot. Raises CapacityError when there is none."""
        if not self._free:
            raise CapacityError(f"all {len(self._text)} slots of target {self.info.name!r} are taken; release one")
        slot = self._free.pop(0)
        self._text[slot] = []
        return slot

    def reuse(self, slot: int, tokens: Sequence[int], needs: Needs, tenant: str = "") -> int:
        """0: rows cost nothing here."""
        return 0

    def tokens(self, slot: int) -> list[int]:
        """The committed tokens of a slot."""
        return list(self._text[slot])

    def submit(self, groups: Sequence[RowGroup], needs: Needs) -> TableTicket:
        """Compute every row: its context is the slot's committed text, then its ancestors, then itself.

        A slot's last group that is not `aux` waits for `commit`.

        Raises: InvariantError where rows do not stand right after their ancestors; CapacityError beyond `max_len`;
        UsageError where hidden states are asked for, which a table has not.
        """
        if needs.taps or needs.last_hidden:
            raise UsageError("the table target has no hidden states; it serves drafters that need none, or top-k ids")
        rows = TableRows(self.law, [self._contexts(g) for g in groups])
        for g in groups:
            if g.kind != "aux":
                self._pending[g.slot] = g
        feats = [Feats()] * len(groups)
        if needs.top_k:
            feats = [Feats(None, None, *rows.top(i, needs.top_k)) for i in range(len(groups))]
        return TableTicket(rows, feats)

    def _contexts(self, g: RowGroup) -> list[tuple[int, ...]]:
        text = self._text[g.slot]
        recent = text[max(0, len(text) - self.law.order) :]
        out, sees = [], g.sees
        for i, position in enumerate(g.positions.tolist()):
            seen = np.flatnonzero(sees[i])
            if g.kind != "aux" and (not sees[i, i] or position != len(text) + len(seen) - 1):
                raise InvariantError(
                    f"row {i} of slot {g.slot} stands at position {position} with {len(seen) - 1} ancestors after "
                    f"{len(text)} committed tokens; a row's position is committed tokens + ancestors"
                )
            if position >= self.info.max_len:
                raise CapacityError(
                    f"row {i} of slot {g.slot} stands at position {position}; the context holds {self.info.max_len}"
                )
            order = seen[np.argsort(g.positions[seen], kind="stable")]
            out.append((*recent, *g.tokens[order].tolist()))
        return out

    def collect(self, ticket: TableTicket) -> tuple[TargetRows, list[Feats]]:
        """Rows, and features per group."""
        return ticket.rows, ticket.feats

    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """Append these rows' tokens to the slot's text and forget the others.

        Raises: InvariantError if nothing is pending, or the rows are not one path from the group's first row.
        """
        g = self._pending.pop(slot, None)
        if g is None:
            raise InvariantError(f"commit of slot {slot} without rows pending; submit comes first")
        kept, sees = list(rows), g.sees
        for n, row in enumerate(kept):
            if set(np.flatnonzero(sees[row]).tolist()) != set(kept[: n + 1]):
                raise InvariantError(f"rows {kept} of slot {slot} are no path: row {row} has other ancestors")
        self._text[slot].extend(int(g.tokens[r]) for r in kept)

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` committed tokens of `src`."""
        self._text[dst] = self._text[src][:length]
        self._pending.pop(dst, None)

    def release(self, slot: int) -> None:
        """Free a slot; its text is forgotten."""
        del self._text[slot]
        self._pending.pop(slot, None)
        self._free.append(slot)
        self._free.sort()
