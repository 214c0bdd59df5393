"""Drafters that continue the target's features: EAGLE-1/2/3, HASS, multi-token modules, and in one pass P-EAGLE.

The network reads pairs (f_i, x_{i+1}): the target's feature at a position and the token after it; the pair stands at
rotary position i and predicts x_{i+2}. A drafted token's pair carries the state its parent's pair gave back. So the
first call of a step runs what was committed since the last one, with real features, and each later call one frontier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool

from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Ask, Children, Feats, Row, Step
from hedgerow.core.tree import ROOT, Selection
from hedgerow.draft.formats.head import HeadConfig
from hedgerow.draft.nets.base import HeadNet, SlotNet
from hedgerow.draft.pairs import Group, Pairs, Said, States
from hedgerow.draft.rows import Rows, answer, depth_of, ranks_for
from hedgerow.systems import mask

SELECTIONS = frozenset(Selection) - {Selection.RETRIEVED}


@dataclass
class _Grown:
    """The tree of the step under way: origin 0 is the root, then rows in the order they ran. Empty: root not known."""

    rows: Rows
    hidden: States = field(default_factory=States)        # by origin: the state to feed back
    origin: dict[int, int] = field(default_factory=dict)  # arrival index -> origin
    sees: Bool[np.ndarray, "origins origins"] = field(default_factory=lambda: np.zeros((64, 64), np.bool_))
    """By origin: itself and its ancestors below the root, which all see; larger than the rows there are."""


class EagleDrafter:
    """Drafts whole frontiers of all requests with one pass of a head each.

    Contexts may be longer than the head was trained for; a request that was not drafted for long catches up at once.
    `options` are those of `Pairs`.

    Source: EAGLE (2401.15077) section 3, EAGLE-2 (2406.16858), EAGLE-3 (2503.01840) section 3.1; differs from the
    papers in that requests are batched.
    """

    selections = SELECTIONS

    def __init__(self, net: HeadNet, config: HeadConfig, slots: int, max_len: int, **options: Any) -> None:
        self.net, self.config, self.needs = net, config, config.needs
        self.pairs = Pairs(net, slots, max_len, **options)
        self._steps: dict[int, _Grown] = {}

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Record the prompt; nothing runs yet."""
        self._steps.pop(slot, None)
        self.pairs.begin(slot, tokens, feats, tenant)

    def commit(self, slot: int, step: Step) -> None:
        """Record the accepted path with the target's own features; what was drafted is dropped."""
        self._steps.pop(slot, None)
        self.pairs.commit(slot, step)

    def children(self, asks: Sequence[Ask]) -> Children:
        """One pass for what was committed since the last step, or one for the frontiers of all requests."""
        for ask in asks:
            if ask.slot not in self._steps:
                self._steps[ask.slot] = _Grown(Rows(ask.view, self.config.vocab))
        rows = {ask.slot: self._steps[ask.slot].rows for ask in asks}
        top = ranks_for(asks, rows)
        self.pairs.refresh([ask.slot for ask in asks], top)
        for ask in asks:
            last = self.pairs.last(ask.slot)
            if last is not None and ROOT not in self._steps[ask.slot].origin:
                self._add(ask, [ROOT], last)
        while ready := [(ask, nodes) for ask in asks if (nodes := self._ready(ask))]:
            groups = [self._frontier(ask, nodes) for ask, nodes in ready]
            for (ask, nodes), out in zip(ready, self.pairs.run(groups, top), strict=True):
                self._add(ask, nodes, out)
        return answer(asks, rows, lambda ask, node: self._steps[ask.slot].origin.get(node))

    def _ready(self, ask: Ask) -> list[int]:
        """Nodes to run now: of every path to the frontier the first that has not run."""
        grown = self._steps[ask.slot]
        if not grown.origin:
            return []                     # the root's state is not known, so nothing below it is
        parent, found = ask.view.growth.parent, dict[int, None]()
        for node in ask.frontier.nodes:
            if node in grown.origin:
                continue
            while parent[node] not in grown.origin:
                node = parent[node]
            found[node] = None
        return list(found)

    def _frontier(self, ask: Ask, nodes: Sequence[int]) -> Group:
        """Rows of drafted nodes: each carries its parent's state, and sees its ancestors and itself."""
        grown, growth = self._steps[ask.slot], ask.view.growth
        above = [grown.origin[growth.parent[v]] for v in nodes]
        begin, end = len(grown.hidden), len(grown.hidden) + len(nodes)
        if end > len(grown.sees):
            grown.sees = np.pad(grown.sees, (0, end))
        sees = grown.sees
        sees[begin:end] = sees[above]
        sees[range(begin, end), range(begin, end)] = True
        token, depth, base = growth.token, growth.depth, ask.view.position - 1
        return Group(
            ask.slot, np.array([token[v] for v in nodes], np.int64), grown.hidden.take(above),
            np.array([base + depth[v] for v in nodes], np.int64), sees[begin:end, 1:end], kept=len(nodes),
        )

    def _add(self, ask: Ask, nodes: Sequence[int], out: Said) -> None:
        grown = self._steps[ask.slot]
        grown.hidden.extend(out.hidden)
        depth = [depth_of(ask, node) + 1 for node in nodes]
        grown.origin.update(zip(nodes, grown.rows.extend(out.logits, depth, self.net.ids, out.ranks), strict=True))

    def row(self, slot: int, origin: int) -> Row:
        """The q row at an origin, until the slot's next commit."""
        return _step(self._steps, slot).rows.law(origin)

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` tokens of `src`; what can no longer be known waits for a step."""
        self._steps.pop(dst, None)
        self.pairs.fork(src, dst, length)

    def release(self, slot: int) -> None:
        """Free the slot's keys and features."""
        self._steps.pop(slot, None)
        self.pairs.release(slot)


class ParallelDrafter:
    """All depths from one pass: behind the committed pairs stand rows without a feature, a mask token in each.

    A node at depth d has the best tokens of row d as children, whatever it is. `config.block` rows, the pair before the
    root included.

    Source: P-EAGLE (2602.01469) section 3; trees on its marginals as DDTree (2604.12989) has them.
    """

    selections = SELECTIONS

    def __init__(self, net: SlotNet, config: HeadConfig, slots: int, max_len: int, **options: Any) -> None:
        self.net, self.config, self.needs = net, config, config.needs
        self.pairs = Pairs(net, slots, max_len, **options)
        self._rows: dict[int, Rows] = {}                  # of the step under way

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Record the prompt; nothing runs yet."""
        self._rows.pop(slot, None)
        self.pairs.begin(slot, tokens, feats, tenant)

    def commit(self, slot: int, step: Step) -> None:
        """Record the accepted path with the target's own features."""
        self._rows.pop(slot, None)
        self.pairs.commit(slot, step)

    def children(self, asks: Sequence[Ask]) -> Children:
        """The pass runs once a step, for all requests that ask; the rest is looking up."""
        new = [ask for ask in asks if ask.slot not in self._rows]
        for ask in new:
            self._rows[ask.slot] = Rows(ask.view, self.config.vocab)
        late = [ask.slot for ask in new if self.pairs.waiting(ask.slot)]
        fronts, top = [self.pairs.front(slot) for slot in late], ranks_for(new, self._rows)
        for g, out in zip(fronts, self.pairs.run([self._masked(g) for g in fronts], top), strict=True):
            self.pairs.keep(g.slot, len(g.tokens), out)
            rows = self._rows[g.slot]
            rows.extend(out.logits, list(range(1, len(out.logits) + 1)), self.net.ids, out.ranks)
        return answer(asks, self._rows, self._origin, block=True)

    def _masked(self, g: Group) -> Group:
        """The rows of a group and behind them the masked ones, each of which sees all before it."""
        more, rows = max(self.config.block, 1) - 1, len(g.tokens)
        return Group(
            g.slot, np.concatenate([g.tokens, np.full(more, self.net.mask_token)]),
            torch.cat([g.features, self.net.blank.expand(more, -1)]),
            np.concatenate([g.positions, np.arange(more) + g.positions[-1] + 1]), mask.causal(rows + more),
            kept=more + 1,
        )

    def _origin(self, ask: Ask, node: int) -> int | None:
        depth = depth_of(ask, node)
        return depth if depth < len(self._rows[ask.slot].logits) else None

    def row(self, slot: int, origin: int) -> Row:
        """The q row at an origin, until the slot's next commit."""
        return _step(self._rows, slot).law(origin)

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` tokens of `src`; what can no longer be known waits for a step."""
        self._rows.pop(dst, None)
        self.pairs.fork(src, dst, length)

    def release(self, slot: int) -> None:
        """Free the slot's keys and features."""
        self._rows.pop(slot, None)
        self.pairs.release(slot)


def _step(steps: dict[int, Any], slot: int) -> Any:
    """A slot's step under way. Raises InvariantError where nothing was drafted."""
    if slot not in steps:
        raise InvariantError(f"slot {slot} has drafted nothing since its last commit")
    return steps[slot]
