"""Rows of a network after token paths below one text, each computed once, and drafters that answer from them.

Every rule, policy, budget and temperature measured on a context asks for rows of the same paths again and again: a
network keeps the rows it ran as one growing pending tree, so nothing is run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import (
    Ask,
    Children,
    Drafter,
    Feats,
    Frontier,
    Grow,
    Needs,
    Plan,
    Policy,
    Received,
    Row,
    RowGroup,
    Sampling,
    Step,
    View,
)
from hedgerow.core.probs import law
from hedgerow.core.select import pick, top_ids
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.draft.independent import RECENT, Change
from hedgerow.models.runner import Runner

Path = tuple[int, ...]
CHUNK = 192                               # rows of one forward pass
TOP = 64                                  # tokens of a row whose order is remembered


class PathRows:
    """Logits of a runner's network after `text` and a token path; rows stay pending in one slot until `close`.

    `feats` are what `needs` asks for of the text's rows, its last token's (the root's) excluded; `before` are the
    logits of the row that chose the root.
    """

    def __init__(self, runner: Runner, text: Sequence[int], needs: Needs | None = None) -> None:
        self.runner, self.text = runner, [int(t) for t in text]
        self.slot = runner.kv.acquire()
        self.feats = Feats()
        self.before: Row | None = None
        self._row: dict[Path, int] = {}
        self._sees: list[np.ndarray] = []
        self._logits: list[torch.Tensor] = []
        self._index: list[tuple[int, int]] = []
        before = len(self.text) - 1
        if before:
            group = RowGroup(
                "prefill", self.slot, np.array(self.text[:-1]), np.arange(before), np.empty((before, 0), np.bool_)
            )
            ran = runner.run([group], needs or Needs())
            self.feats, self.before = ran.feats(0), ran.logits(0, before - 1)
            runner.kv.commit(self.slot, range(before))

    @property
    def rows(self) -> int:
        """Rows run so far."""
        return len(self._row)

    def want(self, paths: Iterable[Path]) -> None:
        """Run the rows of these paths and of all their prefixes that were not run yet."""
        new = {p[:n] for p in paths for n in range(len(p) + 1)} - self._row.keys()
        order = sorted(new, key=lambda p: (len(p), p))
        for begin in range(0, len(order), CHUNK):
            self._run(order[begin : begin + CHUNK])

    def _run(self, paths: Sequence[Path]) -> None:
        root = len(self.text) - 1
        for path in paths:
            own = np.zeros(len(self._sees) + 1, np.bool_)
            if path:
                above = self._sees[self._row[path[:-1]]]
                own[: len(above)] = above
            own[-1] = True
            self._row[path] = len(self._sees)
            self._sees.append(own)
        mask = np.zeros((len(paths), len(self._sees)), np.bool_)
        for i, own in enumerate(self._sees[-len(paths) :]):
            mask[i, : len(own)] = own
        tokens = np.array([p[-1] if p else self.text[-1] for p in paths])
        ran = self.runner.run(
            [RowGroup("tree", self.slot, tokens, np.array([root + len(p) for p in paths]), mask)], Needs()
        )
        logits = ran.device_logits(0).cpu()
        narrow = logits.to(torch.bfloat16)                # a bf16 head's logits lose nothing
        self._index += [(len(self._logits), i) for i in range(len(paths))]
        self._logits.append(narrow if torch.equal(narrow.float(), logits) else logits.clone())

    def logits(self, path: Path) -> Float[np.ndarray, " vocab"]:
        """Raw logits after a path, float32."""
        if path not in self._row:
            self.want([path])
        block, i = self._index[self._row[path]]
        row: np.ndarray = self._logits[block][i].float().numpy()
        return row

    def close(self) -> None:
        """Give the slot back."""
        self.runner.kv.release(self.slot)


class TargetLaws:
    """The target's laws after paths: p of one token at a time (remembered), or a whole row."""

    def __init__(self, rows: PathRows) -> None:
        self.rows = rows
        self._known: dict[tuple[Path, float], tuple[int, float]] = {}
        self._p: dict[tuple[Path, int, float], float] = {}

    def row(self, path: Path, temperature: float) -> Row:
        """The law of the next token, float64; one-hot at temperature 0."""
        return law(self.rows.logits(path), Sampling(temperature))

    def p(self, path: Path, token: int, temperature: float) -> float:
        """The probability of `token` after `path`."""
        asked = (path, token, temperature)
        if asked not in self._p:
            self._p[asked] = self._read(path, token, temperature)
        return self._p[asked]

    def _read(self, path: Path, token: int, temperature: float) -> float:
        key = (path, temperature)
        logits = self.rows.logits(path)
        if key not in self._known:
            top = int(np.argmax(logits))
            log_z = 0.0
            if temperature > 0.0:
                log_z = float(np.log(np.exp((logits - logits[top]).astype(np.float64) / temperature).sum()))
            self._known[key] = (top, log_z)
        top, log_z = self._known[key]
        if temperature == 0.0:
            return float(token == top)
        return float(np.exp((float(logits[token]) - float(logits[top])) / temperature - log_z))


class PathDrafter:
    """A drafter that answers every selection from a network's rows below one text; `commit` is not for it.

    `change` alters logits, given the tokens before (a drafter of dialled quality). `marginal`: the row after a node is
    that at the same depth of the network's own greedy chain, whatever the node is: what heads and block drafters know.
    Children carry entropy, margin and confidence of their row, and log q of its best tokens. Draws are keyed by the
    node's path, not by its number in the tree: trees of several sizes drawn with one seed share their nodes.
    """

    needs = Needs()
    selections = frozenset(Selection) - {Selection.RETRIEVED}

    def __init__(
        self, rows: PathRows, sampling: Sampling, change: Change | None = None, marginal: bool = False,
    ) -> None:
        self.rows, self.sampling, self.change, self.marginal = rows, sampling, change, marginal
        self._law: dict[Path, Float[np.ndarray, " vocab"]] = {}
        self._top: dict[Path, tuple[list[int], list[float], tuple[float, float, float]]] = {}
        self._chain: list[int] = []

    def place(self, path: Path) -> Path:
        """The path whose row answers for `path`."""
        if not self.marginal:
            return path
        while len(self._chain) < len(path):
            self._chain.append(self._best(tuple(self._chain))[0][0])
        return tuple(self._chain[: len(path)])

    def law(self, path: Path) -> Float[np.ndarray, " vocab"]:
        """q after a path, float32 (it is what children are drawn from, so rules see exactly it)."""
        at = self.place(path)
        if at not in self._law:
            logits = self.rows.logits(at)
            if self.change is not None:
                logits = self.change(logits, [*self.rows.text[-RECENT:], *at][-RECENT:])
            self._law[at] = law(logits, self.sampling).astype(np.float32)
        return self._law[at]

    def _best(self, at: Path) -> tuple[list[int], list[float], tuple[float, float, float]]:
        """Best tokens of a row, their log q, and its entropy, margin and largest q."""
        if at not in self._top:
            row = self._law[at] if at in self._law else self.law(at)
            ids = top_ids(row, TOP)
            ids = ids[row[ids] > 0.0]
            log_q = np.log(row[ids].astype(np.float64)).tolist()
            mass = row[row > 0.0]
            margin = log_q[0] - log_q[1] if len(log_q) > 1 else np.inf
            self._top[at] = (ids.tolist(), log_q, (-float((mass * np.log(mass)).sum()), margin, float(row[ids[0]])))
        return self._top[at]

    def children(self, asks: Sequence[Ask]) -> Children:
        """Answer every frontier; the rows that are missing are run together."""
        count: list[int] = []
        token: list[int] = []
        log_q: list[float] = []
        mult: list[int] = []
        aux: dict[str, Any] = {"entropy": [], "margin": [], "confidence": [], "top": []}
        for _, frontier, view in asks:
            paths = [view.growth.tokens_to(node) for node in frontier.nodes]
            if not self.marginal:
                self.rows.want(paths)
            for k, path in zip(frontier.counts, paths, strict=True):
                at = self.place(path)
                ids, logs, signals = self._best(at)
                for name, value in zip(("entropy", "margin", "confidence"), signals, strict=True):
                    aux[name].append(value)
                aux["top"].append(logs)
                if frontier.selection in (Selection.TOP_K, Selection.RETRIEVED) and k <= TOP:
                    got = ids[:k], logs[:k], [1] * min(k, len(ids))
                else:
                    picked = pick(
                        self.law(path), k, frontier.selection, view.rng, view.position + len(path) + 1, _key(path),
                        frontier.source,
                    )
                    got = picked.token, picked.log_q, picked.mult
                count.append(len(got[0]))
                token += got[0]
                log_q += got[1]
                mult += got[2]
        return Children(count, token, log_q, None, mult, aux)

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """The text is the rows' own."""

    def row(self, slot: int, origin: int) -> Row:
        """Raises UsageError: ask `law` by path."""
        raise UsageError("rows of this drafter are addressed by path: use law(path)")

    def commit(self, slot: int, step: Step) -> None:
        """Raises UsageError: a context is measured, never continued."""
        raise UsageError("a measured context is not continued")

    def fork(self, src: int, dst: int, length: int) -> None:
        """Nothing is kept by slot."""

    def release(self, slot: int) -> None:
        """Nothing is kept by slot."""


def _key(path: Path) -> int:
    """A number of a path, below 2^29; the empty path has 0."""
    key = 0
    for token in path:
        key = (key * 1_000_003 + token + 1) & 0x1FFFFFFF
    return key


@dataclass
class Job:
    """A tree to be grown: by which policy, from which drafters, under which view and plan."""

    policy: Policy
    drafters: Sequence[Drafter]
    view: View
    plan: Plan


def together(jobs: Sequence[Job]) -> list[TokenTree]:
    """Grow trees of many policies side by side, so that a network runs the rows of one round for all of them at once.

    Each tree is what it would be alone. Mutates the views' growth.
    """
    trees = [TokenTree.empty()] * len(jobs)
    open_: dict[int, tuple[Grow, Frontier]] = {}

    def resume(i: int, grow: Grow, answer: Received | None) -> None:
        try:
            open_[i] = (grow, grow.send(answer))  # type: ignore[arg-type]
        except StopIteration as done:
            open_.pop(i, None)
            trees[i] = done.value

    for i, job in enumerate(jobs):
        resume(i, job.policy.grow(job.view, job.plan), None)
    while open_:
        wanted: dict[int, tuple[PathRows, set[Path]]] = {}
        for i, (_, frontier) in open_.items():
            drafter = jobs[i].drafters[frontier.source]
            if isinstance(drafter, PathDrafter) and not drafter.marginal:
                _, paths = wanted.setdefault(id(drafter.rows), (drafter.rows, set()))
                paths.update(jobs[i].view.growth.tokens_to(node) for node in frontier.nodes)
        for rows, paths in wanted.values():
            rows.want(paths)
        for i, (grow, f) in list(open_.items()):
            view = jobs[i].view
            got = jobs[i].drafters[f.source].children([Ask(view.slot, f, view)])
            ids = view.growth.add(f.nodes, got.count, got.token, got.log_q, got.origin, got.mult, f.source, f.selection)
            resume(i, grow, Received(got, ids))
    return trees
