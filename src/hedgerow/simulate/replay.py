"""The target of a recorded world: answers rows and top-k features from the trace, by position and drafted tokens."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from hedgerow.core.errors import CapacityError, UsageError
from hedgerow.core.parts import Capacity, Feats, Needs, Row, RowGroup, Sampling, Step, TargetInfo
from hedgerow.core.tree import TokenTree

if TYPE_CHECKING:
    from hedgerow.simulate.recorded import Known, Recording


@dataclass(frozen=True)
class ReplayRows:
    """Rows of one call: for each group the recording it belongs to and, per row, what was recorded (None: nothing)."""

    vocab: int
    groups: Sequence[RowGroup]
    recordings: Sequence[Recording]
    known: Sequence[Sequence[Known | None]]

    def logits(self, group: int, row: int) -> Row:
        """Recorded logits, −inf elsewhere; what is left of the mass stands on the last token (`rest_logit`).

        A row without a record has all mass on the last token; the last row of a prompt has the recorded first token.
        """
        out = np.full(self.vocab, -np.inf)
        recording, known = self.recordings[group], self.known[group][row]
        if known is not None:
            out[known.ids] = known.logits
            out[-1] = rest_logit(known, recording.sampling)
        else:
            prefill = self.groups[group].kind == "prefill"
            out[recording.text[len(recording.prompt)] if prefill else -1] = 0.0
        return out

    def argmax(self, group: int) -> Int[np.ndarray, " rows"]:
        """Most likely token of every row, on the recorded text the one that followed; the last token where unknown."""
        recording, g = self.recordings[group], self.groups[group]
        if g.kind == "prefill":
            return np.array(recording.text[1 : len(g.tokens) + 1], np.int64)
        out = [self.vocab - 1 if k is None else int(k.ids[0]) for k in self.known[group]]
        text, start = recording.text, int(g.positions[0])
        for row, path in enumerate(paths(g)):
            after = start + len(path) + 1
            if after < len(text) and text[start + 1 : after] == list(path):
                out[row] = text[after]
        return np.array(out, np.int64)


class ReplayTarget:
    """A target without a model: each slot is bound to a recording, positions say where in it a step stands.

    `assume` lets the row recorded at the same position stand in, as a law, where a row was not recorded. `rows` and
    `unknown` count the verified rows and those without a record.
    """

    def __init__(self, vocab: int, assume: bool = False, slots: int = 1 << 12) -> None:
        self.assume = assume
        self.info = TargetInfo(
            name="trace", vocab=vocab, max_len=1 << 40, device="cpu", dtype="float32", backend="simulated"
        )
        self.rows = self.unknown = 0
        self._free = deque(range(slots))
        self._bound: dict[int, Recording] = {}

    def capacity(self) -> Capacity:
        """Free slots; any number of rows."""
        return Capacity(len(self._free), 1 << 40, self.info.max_len)

    def acquire(self) -> int:
        """A free slot. Raises CapacityError when there is none."""
        if not self._free:
            raise CapacityError(f"all {len(self._bound)} slots of the simulated target are taken; use a smaller batch")
        return self._free.popleft()

    def reuse(self, slot: int, tokens: Sequence[int], needs: Needs, tenant: str = "") -> int:
        """0: rows cost nothing here."""
        return 0

    def bind(self, slot: int, recording: Recording) -> None:
        """Say whose rows a slot's are."""
        self._bound[slot] = recording

    def recording(self, slot: int) -> Recording:
        """Whose rows a slot's are."""
        return self._bound[slot]

    def submit(self, groups: Sequence[RowGroup], needs: Needs) -> tuple[ReplayRows, list[Feats]]:
        """Look every row up.

        Raises: UsageError where hidden states are asked for, which a trace has not.
        """
        if needs.taps or needs.last_hidden:
            raise UsageError("a trace has no hidden states; a drafter that reads them is played by a stand-in")
        recordings = [self._bound[g.slot] for g in groups]
        known: list[list[Known | None]] = []
        feats: list[Feats] = []
        for g, recording in zip(groups, recordings, strict=True):
            if g.kind == "prefill":
                known.append([None] * len(g.tokens))
                feats.append(_prompt_feats(recording, len(g.tokens), needs.top_k))
                continue
            found = [recording.row(int(g.positions[0]), path) for path in paths(g)]
            self.rows += len(found)
            self.unknown += sum(k is None for k in found)
            feats.append(_feats(found, needs.top_k))
            if self.assume:
                found = [k or recording.on_path.get(p) for k, p in zip(found, g.positions.tolist(), strict=True)]
            known.append(found)
        return ReplayRows(self.info.vocab, groups, recordings, known), feats

    def collect(self, ticket: Any) -> tuple[ReplayRows, list[Feats]]:
        """Rows, and features per group."""
        return ticket

    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """Nothing is kept: positions say it all."""

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` another reader of the same recording."""
        self._bound[dst] = self._bound[src]

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._bound.pop(slot, None)
        self._free.append(slot)


def _feats(known: Sequence[Known | None], k: int) -> Feats:
    """The best k of every row as recorded; −1 where nothing was."""
    if not k:
        return Feats()
    ids, logits = np.full((len(known), k), -1, np.int64), np.zeros((len(known), k), np.float32)
    for i, row in enumerate(known):
        if row is not None:
            best = min(k, len(row.ids))
            ids[i, :best], logits[i, :best], logits[i, best:] = row.ids[:best], row.logits[:best], -np.inf
    return Feats(top_ids=ids, top_logits=logits)


def _prompt_feats(recording: Recording, rows: int, k: int) -> Feats:
    """The best k of every prompt row, where drafters asked for them when the trace was recorded; −1 elsewhere."""
    top = recording.prompt_top
    return _feats([None if top is None else top._replace(ids=top.ids[i], logits=top.logits[i]) for i in range(rows)], k)


def shown(feats: Feats) -> Feats:
    """Prompt features as a drafter is shown them: all rows, or none where some are not known."""
    known = feats.top_ids is None or bool(np.all(feats.top_ids >= 0))
    return feats if known else replace(feats, top_ids=None, top_logits=None)


def shown_step(step: Step) -> Step:
    """A step as a drafter is shown it: nodes whose row is not known are left out, as if they had not been drafted.

    So a drafter need not know that rows can be unknown. Where an accepted node's row is, no features are shown at all.
    """
    feats, tree = step.feats, step.tree
    if feats.top_ids is None or feats.top_logits is None or np.all(feats.top_ids >= 0):
        return step
    rows = np.flatnonzero(feats.top_ids[:, 0] >= 0)
    index = np.full(tree.rows, -2)                       # row -> new node, the root's being -1; -2: left out
    index[rows] = np.arange(len(rows)) - 1
    path = index[[node + 1 for node in step.verdict.path]].tolist()
    if 0 not in rows or -2 in path:
        return replace(step, feats=replace(feats, top_ids=None, top_logits=None))
    kept = rows[1:] - 1
    pruned = TokenTree.of(
        tree.tokens[kept], index[tree.parent[kept] + 1], tree.survival[kept], tree.selection[kept], tree.source[kept],
        tree.origin[kept], tree.mult[kept], tree.keep[kept],
    )
    k = int((feats.top_ids[rows] >= 0).sum(axis=1).min())
    return replace(
        step, tree=pruned, verdict=replace(step.verdict, path=tuple(path)),
        feats=replace(feats, top_ids=feats.top_ids[rows, :k], top_logits=feats.top_logits[rows, :k]),
    )


def paths(group: RowGroup) -> list[tuple[int, ...]]:
    """The drafted tokens from behind the root to each row; () for the root.

    >>> mask = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], bool)
    >>> paths(RowGroup("tree", 0, np.array([5, 6, 7]), np.array([9, 10, 10]), mask))
    [(), (6,), (7,)]
    """
    out = []
    tokens, positions = group.tokens, group.positions
    for row in range(len(tokens)):
        seen = np.flatnonzero(group.ancestors[row, : len(tokens)])
        order = seen[np.argsort(positions[seen], kind="stable")]
        out.append(tuple(tokens[order[1:]].tolist()))
    return out


def rest_logit(known: Known, sampling: Sampling) -> float:
    """The logit of one token that stands for all that were not recorded.

    The tail is taken as n tokens as likely as the last one recorded, which at temperature T weigh
    n · exp(l / T): l + T · log n, exact at temperature 1. It is −inf where nothing is left, at temperature 0, and where
    a filter is sure to drop the tail.
    """
    last = float(known.logits[-1])
    left = -math.expm1(min(0.0, _log_sum(known.logits) - known.lse))
    p = np.exp(known.logits - known.lse)
    if (
        left <= 1e-6 or sampling.temperature == 0.0 or 0 < sampling.top_k <= len(known.ids)
        or (sampling.top_p < 1.0 and p.sum() >= sampling.top_p) or sampling.min_p * p[0] > p[-1]
    ):
        return -math.inf
    return last + sampling.temperature * (math.log(left) + known.lse - last)


def _log_sum(logits: Float[np.ndarray, " k"]) -> float:
    peak = float(logits.max())
    return peak + float(np.log(np.exp(logits.astype(np.float64) - peak).sum()))
