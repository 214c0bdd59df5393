"""Block drafters with a correction along the path, as drafters of trees.

One pass a step gives every depth its state and marginals. A node's code costs little, so a tree asks for one wherever
it grows, for the frontiers of all requests at once; the product over the vocabulary is taken at the best base
candidates only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int

from hedgerow.core.parts import Ask, Children, Feats, Needs, Row, Step
from hedgerow.core.tree import ROOT
from hedgerow.draft.base import Base
from hedgerow.draft.block import SELECTIONS, BlockPass
from hedgerow.draft.context import padded
from hedgerow.draft.formats.head import Head
from hedgerow.draft.markov import correction_of
from hedgerow.draft.rows import Rows, answer, depth_of
from hedgerow.systems.rank import top_k

CANDIDATES = 64


@dataclass
class _Block:
    """The step under way of one request: z and candidates of every depth, and what is known of its nodes."""

    z: Float[torch.Tensor, "depths hidden"]
    base: Float[torch.Tensor, "depths candidates"]        # logits
    columns: Int[torch.Tensor, "depths candidates"] | None    # of the drafter's vocabulary; None: all
    ids: Int[np.ndarray, "depths candidates"] | None      # the target's ids of the columns; None: the same
    rows: Rows
    state: dict[int, torch.Tensor] = field(default_factory=dict)      # node -> what its children's nodes start from
    row_of: dict[int, int] = field(default_factory=dict)
    sure: dict[int, float] = field(default_factory=dict)


class PathDrafter:
    """A block drafter with a correction: one pass a step, then a small product a round over all new frontier nodes.

    `candidates`: best base candidates that can be children (0: every token). q is the corrected law over them.
    `aux["confidence"]` is the head's own, where it has one.

    Source: DSpark (2607.05147), Domino (2605.29707); as a tree TreeSpark (2609.22098), DARTree (2608.13524).
    """

    selections = SELECTIONS

    def __init__(self, head: Head, base: Base, candidates: int = CANDIDATES) -> None:
        self.net = BlockPass(head, base)
        self.needs: Needs = self.net.needs
        self.candidates = candidates
        self.correction = correction_of(self.net.w, head.config, self.net.embed)
        self._steps: dict[int, _Block] = {}

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Record the features of the prompt."""
        self._steps.pop(slot, None)
        self.net.context.begin(slot, feats)

    @torch.inference_mode()
    def children(self, asks: Sequence[Ask]) -> Children:
        """The pass for requests that ask for the first time, then codes of all nodes that were not asked for before."""
        new = [ask for ask in asks if ask.slot not in self._steps]
        if new:
            self._open(new)
        nodes = [
            (ask, node) for ask in asks for node in dict.fromkeys(ask.frontier.nodes)
            if node not in self._steps[ask.slot].row_of and depth_of(ask, node) < self.net.slots.depths
        ]
        if nodes:
            self._correct(nodes)
        rows = {ask.slot: self._steps[ask.slot].rows for ask in asks}
        out = answer(asks, rows, lambda ask, node: self._steps[ask.slot].row_of.get(node))
        self._confide(asks, out)
        return out

    def _open(self, asks: Sequence[Ask]) -> None:
        """One pass, and the candidates of every depth: one ranking and one transfer for all requests."""
        net = self.net
        z = net.states(asks)
        logits = net.logits(z)
        columns, ids = None, None if net.ids is None else np.broadcast_to(net.ids, (*z.shape[:2], len(net.ids)))
        if 0 < self.candidates < logits.shape[-1]:
            flat, values = top_k(logits.flatten(0, 1).float(), self.candidates)
            columns, logits = flat.view(*z.shape[:2], -1), values.view(*z.shape[:2], -1)
            at = columns.cpu().numpy()
            ids = at if net.ids is None else net.ids[at]
        for b, ask in enumerate(asks):
            own = None if columns is None else columns[b]
            named = None if ids is None else ids[b]
            self._steps[ask.slot] = _Block(z[b], logits[b], own, named, Rows(ask.view, net.base.vocab))

    def _correct(self, nodes: Sequence[tuple[Ask, int]]) -> None:
        """A row for each of these nodes; nodes above them that nobody asked for are run first."""
        waves = [nodes]
        while above := self._unknown(waves[-1]):
            waves.append(above)
        for wave in reversed(waves):
            self._say(wave)

    def _unknown(self, nodes: Sequence[tuple[Ask, int]]) -> list[tuple[Ask, int]]:
        parents = {
            (ask.slot, p): (ask, p) for ask, node in nodes if node != ROOT
            for p in (ask.view.growth.parent[node],) if p not in self._steps[ask.slot].state
        }
        return list(parents.values())

    def _say(self, nodes: Sequence[tuple[Ask, int]]) -> None:
        """Codes of nodes whose parents are known, and the logits of their children."""
        net, correction = self.net, self.correction
        device = net.base.device
        depths = [depth_of(ask, node) for ask, node in nodes]
        steps = [self._steps[ask.slot] for ask, _ in nodes]
        tokens = torch.tensor(
            [ask.view.growth.token[node] if node != ROOT else ask.view.root for ask, node in nodes], device=device
        )
        first = correction.begin(1)[0]
        state = torch.stack([
            step.state[ask.view.growth.parent[node]] if node != ROOT else first
            for step, (ask, node) in zip(steps, nodes, strict=True)
        ])
        z = torch.stack([step.z[d] for step, d in zip(steps, depths, strict=True)])
        pad = len(padded(z)) - len(z)
        said = correction.say(F.pad(state, (0, 0, 0, pad)), F.pad(tokens, (0, pad)), padded(z))
        base = torch.stack([step.base[d] for step, d in zip(steps, depths, strict=True)]).float()
        logits = base + self._bias(steps, depths, said.code)
        sure = correction.confidence(tokens, z)
        chance = [] if sure is None else sure.tolist()
        for i, (step, (_, node), d) in enumerate(zip(steps, nodes, depths, strict=True)):
            step.state[node] = said.state[i]
            law = base[i] if d < correction.pure else logits[i]
            step.row_of[node] = step.rows.add(law, d + 1, None if step.ids is None else step.ids[d])
            if chance:
                step.sure[node] = chance[i]

    def _bias(
        self, steps: Sequence[_Block], depths: Sequence[int], code: Float[torch.Tensor, "nodes_or_more rank"]
    ) -> Float[torch.Tensor, "nodes candidates"]:
        """code · Uᵀ at every node's candidates."""
        out, n = self.correction.out, len(steps)
        if self.candidates == 0 or self.candidates >= len(out):
            return F.linear(code, out)[:n].float()
        columns = torch.stack([c[d] for s, d in zip(steps, depths, strict=True) if (c := s.columns) is not None])
        return torch.bmm(out[columns], code[:n, :, None])[..., 0].float()

    def _confide(self, asks: Sequence[Ask], out: Children) -> None:
        """Put the head's confidence where the answers say how sure they are."""
        at = 0
        for ask in asks:
            sure = self._steps[ask.slot].sure
            for node in ask.frontier.nodes:
                if node in sure:
                    out.aux["confidence"][at] = sure[node]  # type: ignore[index]
                at += 1

    def row(self, slot: int, origin: int) -> Row:
        """The q row at an origin, until the slot's next commit."""
        return self._steps[slot].rows.law(origin)

    def commit(self, slot: int, step: Step) -> None:
        """Record the features of the accepted path."""
        self._steps.pop(slot, None)
        self.net.commit(slot, step)

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` tokens of `src`."""
        self._steps.pop(dst, None)
        self.net.context.fork(src, dst, length)

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._steps.pop(slot, None)
        self.net.context.release(slot)
