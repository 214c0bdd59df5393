"""A language model as the drafter: any network of the target's vocabulary, with a key-value cache of its own.

Its cache follows the text behind the target's. Tokens committed while it was not asked run in the first call of the
next step it takes part in, so that a drafter skipped for long catches up at once. Rows it ran for nodes that were then
accepted stay; only the last accepted node, which was perhaps never expanded, has to catch up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Int

from hedgerow.core.errors import InvariantError, UsageError
from hedgerow.core.parts import Ask, Children, Feats, Needs, Row, RowGroup, Step
from hedgerow.core.rng import Purpose, Rng
from hedgerow.core.tree import ROOT, Growth, Selection
from hedgerow.draft.rows import Rows, answer, depth_of
from hedgerow.draft.vocabulary import Words
from hedgerow.models.runner import Ran, Runner

Change = Callable[[Row, Sequence[int]], Row]              # (logits, tokens before them) -> logits
RECENT = 8                                                # tokens before a row that `Change` is shown


@dataclass
class _State:
    """One slot: its place in the drafter's own cache, the committed text, and the rows of the step under way."""

    slot: int
    text: list[int]                                       # committed, the root last
    row_of: dict[int, int] = field(default_factory=dict)  # arrival index (-1: root) -> pending row
    row_at: dict[tuple[int, ...], int] = field(default_factory=dict)      # tokens below the root -> pending row
    sees: list[Bool[np.ndarray, " width"]] = field(default_factory=list)  # pending row -> itself and its ancestors
    rows: Rows | None = None                              # draft laws
    origin: dict[int, int] = field(default_factory=dict)  # pending row -> origin


class LMDrafter:
    """Drafts whole frontiers of all requests with one forward pass of a runner.

    `change` may alter the logits of a row, given the tokens before it: that makes drafters of a dialled quality. A lag
    of more than `max_lag` tokens runs as a prefill of its own first. `words`: how its vocabulary is the target's, whose
    size is `vocab` (None, None: they are one).

    Source: Leviathan (2211.17192), SpecInfer (2305.09781), Sequoia (2402.12374): an independent model with the
    target's tokenizer.
    """

    needs = Needs()
    selections = frozenset(Selection) - {Selection.RETRIEVED}

    def __init__(
        self, runner: Runner, change: Change | None = None, max_lag: int = 32, words: Words | None = None,
        vocab: int | None = None,
    ) -> None:
        self.runner, self.change, self.max_lag, self.words = runner, change, max_lag, words
        self.vocab = runner.net.vocab if vocab is None else vocab
        self._columns = None if words is None else torch.from_numpy(words.columns).to(runner.net.device)
        self._state: dict[int, _State] = {}

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Nothing runs yet: all of the prompt that no earlier request left in the cache is lag."""
        state = self._state[slot] = _State(self.runner.kv.acquire(), list(tokens))
        self.runner.kv.reuse(state.slot, self._shown(tokens).tolist(), tenant)

    def _shown(self, tokens: Sequence[int]) -> Int[np.ndarray, " tokens"]:
        """The target's tokens as the model reads them."""
        return np.array(tokens) if self.words is None else self.words.reads[np.array(tokens)]

    def children(self, asks: Sequence[Ask]) -> Children:
        """One forward pass for the frontiers of all requests (and one before it for those that lag far behind)."""
        groups: list[RowGroup] = []
        owners: list[Ask] = []
        for ask in asks:
            state = self._state[ask.slot]
            if state.rows is None:
                state.rows = Rows(ask.view, self.vocab)
            group = self._group(state, ask)
            if group is not None:
                groups.append(group)
                owners.append(ask)
        if groups:
            ran = self.runner.run(groups, Needs())
            for g, ask in enumerate(owners):
                self._read(self._state[ask.slot], ask, ran, g)
        rows = {ask.slot: r for ask in asks if (r := self._state[ask.slot].rows) is not None}
        return answer(asks, rows, self._origin)

    def _origin(self, ask: Ask, node: int) -> int:
        state = self._state[ask.slot]
        return state.origin[state.row_of[node]]

    def _group(self, state: _State, ask: Ask) -> RowGroup | None:
        """Rows of the frontier's nodes that were not run yet, behind the pending ones; the lag comes with the root."""
        new = [n for n in ask.frontier.nodes if n not in state.row_of]
        if not new:
            return None
        growth, root = ask.view.growth, ask.view.position
        if not state.row_of:
            if new != [ROOT]:
                raise InvariantError(f"the first frontier of a step asks for nodes {new}; it begins at the root")
            have = self._catch_up(state)
            tokens = state.text[have:]
            positions = list(range(have, len(state.text)))
            state.sees = [np.ones(i + 1, np.bool_) for i in range(len(tokens))]
            self._name(state, growth, ROOT, len(tokens) - 1)
        else:
            tokens, positions = [growth.token[n] for n in new], [root + growth.depth[n] for n in new]
            for n in new:
                above = state.sees[state.row_of[growth.parent[n]]]
                own = np.zeros(len(state.sees) + 1, np.bool_)
                own[: len(above)] = above
                own[-1] = True
                state.sees.append(own)
                self._name(state, growth, n, len(own) - 1)
        mask = np.zeros((len(tokens), len(state.sees)), np.bool_)
        for i, own in enumerate(state.sees[len(state.sees) - len(tokens) :]):
            mask[i, : len(own)] = own
        return RowGroup("tree", state.slot, self._shown(tokens), np.array(positions), mask)

    @staticmethod
    def _name(state: _State, growth: Growth, node: int, row: int) -> None:
        state.row_of[node] = row
        state.row_at.setdefault(growth.tokens_to(node), row)

    def _catch_up(self, state: _State) -> int:
        """Run a long lag as a prefill, all but the root; returns how much of the text is in the cache."""
        have = self.runner.kv.length(state.slot)
        if len(state.text) - have > self.max_lag:
            tokens = self._shown(state.text[have:-1])
            causal = np.empty((len(tokens), 0), np.bool_)
            positions = np.arange(have, len(state.text) - 1)
            self.runner.run([RowGroup("prefill", state.slot, tokens, positions, causal)], Needs())
            self.runner.kv.commit(state.slot, range(len(tokens)))
            have = len(state.text) - 1
        return have

    def _read(self, state: _State, ask: Ask, ran: Ran, group: int) -> None:
        """Turn the new rows of named nodes into draft laws."""
        assert state.rows is not None
        growth, first = ask.view.growth, len(state.sees) - len(ran.groups[group].tokens)
        laws = ran.device_logits(group)
        for node, row in state.row_of.items():
            if row < first or row in state.origin:
                continue
            logits = laws[row - first]
            if self.change is not None:
                before = [*state.text[-RECENT:], *growth.tokens_to(node)][-RECENT:]
                logits = torch.from_numpy(self.change(logits.cpu().numpy(), before)).to(logits.device)
            if self._columns is not None:
                logits = logits[self._columns]
            ids = None if self.words is None else self.words.ids
            state.origin[row] = state.rows.add(logits, depth_of(ask, node) + 1, ids)

    def row(self, slot: int, origin: int) -> Row:
        """The q row at an origin, until the slot's next commit. Raises UsageError for one that is not of this step."""
        rows = self._state[slot].rows
        if rows is None:
            raise UsageError(f"draft row {origin} of slot {slot} was asked for, but nothing is drafted")
        return rows.law(origin)

    def commit(self, slot: int, step: Step) -> None:
        """Keep the rows of the accepted path, as far as they were run; what is missing is lag."""
        state = self._state[slot]
        committed = step.verdict.committed(step.tree)
        if state.row_of:
            rows = list(range(state.row_of[ROOT] + 1))
            for n in range(1, len(committed)):
                row = state.row_at.get(tuple(committed[:n]))
                if row is None:
                    break
                rows.append(row)
            self.runner.kv.commit(state.slot, rows)
        state.text += committed
        for pending in (state.row_of, state.row_at, state.sees, state.origin):
            pending.clear()
        state.rows = None

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` tokens of `src`."""
        old = self._state[src]
        self._state[dst] = _State(self.runner.kv.acquire(), old.text[:length])
        self.runner.kv.fork(old.slot, self._state[dst].slot, min(length, self.runner.kv.length(old.slot)))

    def release(self, slot: int) -> None:
        """Free the slot's cache."""
        self.runner.kv.release(self._state.pop(slot).slot)


def perturbed(strength: float, seed: int = 0) -> Change:
    """Logits plus `strength` × Gumbel noise, a function of the last three tokens and of the token judged.

    strength 0 leaves the model as it is; the larger, the further q is from p, in the same way whenever a context
    returns. Not in any paper: a drafter of dialled quality for experiments, at the full cost of its model.
    """

    def change(logits: Row, before: Sequence[int]) -> Row:
        key = 0
        for token in before[-3:]:
            key = (key * 1_000_003 + token + 1) & 0x7FFFFFFF
        return logits - strength * np.log(Rng(seed).noise(np.arange(len(logits)), key, Purpose.MODEL))

    return change
