"""Medusa and Hydra: heads on the target's last hidden state, as drafters.

Both hang on f_t, the feature of the last token before the root. Medusa's heads know nothing else: one pass gives the
law of every depth, and later rounds are answered from it. Hydra's head i also reads the tokens drafted so far, so that
siblings' children differ: one product a level, over the frontier of all requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float

from hedgerow.core.parts import Ask, Children, Feats, Needs, Row, Step
from hedgerow.core.tree import Selection
from hedgerow.draft import headnet
from hedgerow.draft.base import Base, fitted
from hedgerow.draft.context import kept_rows, padded, taps_of
from hedgerow.draft.formats.head import Head
from hedgerow.draft.prefix import Prefix
from hedgerow.draft.rows import Rows, answer, depth_of

SELECTIONS = frozenset(Selection) - {Selection.RETRIEVED}


@dataclass
class _Feature:
    """f_t of the last token before the root, if it is known, and how many tokens the text has, root included."""

    f: Float[torch.Tensor, " hidden"] | None
    length: int


class Last:
    """The last real feature of every request: all that Medusa and Hydra keep of a text."""

    def __init__(self) -> None:
        self._of: dict[int, _Feature] = {}

    def begin(self, slot: int, length: int, feats: Feats) -> None:
        """Keep the feature of the prompt's last token."""
        self._of[slot] = _Feature(taps_of(feats, ())[0, -1].clone(), length)

    def commit(self, slot: int, step: Step) -> None:
        """Keep the feature of the accepted path's last row."""
        row = kept_rows(step)[-1]
        length = self._of[slot].length + len(step.verdict.path) + 1
        self._of[slot] = _Feature(taps_of(step.feats, ())[0, row].clone(), length)

    def features(self, slots: Sequence[int]) -> list[Float[torch.Tensor, " hidden"] | None]:
        """f_t of each slot; None where nothing is known of it (after a fork)."""
        return [self._of[slot].f for slot in slots]

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy. Of a shorter text no feature is kept: it drafts again after its next step."""
        old = self._of[src]
        self._of[dst] = _Feature(old.f if length == old.length else None, length)

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._of.pop(slot, None)


class MedusaDrafter:
    """Marginals of all depths from one pass over the last real features of all requests.

    A node at depth d has the best tokens of head d as children, whatever it is; a text longer than the heads were
    trained for changes nothing, since they see one position.

    Raises: ModelError for heads of another target.

    Source: Medusa (2401.10774), section 2.1.
    """

    needs = Needs(last_hidden=True)
    selections = SELECTIONS

    def __init__(self, head: Head, base: Base) -> None:
        self.base = base
        self.w, self.ids = fitted(head, base)
        self.count = headnet.head_count(self.w)
        self.last = Last()
        self._rows: dict[int, Rows] = {}                  # of the step under way

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Keep the feature of the prompt's last token."""
        self._rows.pop(slot, None)
        self.last.begin(slot, len(tokens), feats)

    @torch.inference_mode()
    def children(self, asks: Sequence[Ask]) -> Children:
        """The heads run once a step, for all requests that ask; the rest is looking up."""
        new = [ask for ask in asks if ask.slot not in self._rows]
        for ask in new:
            self._rows[ask.slot] = Rows(ask.view, self.base.vocab)
        features = self.last.features([ask.slot for ask in new])
        known = [(ask.slot, f) for ask, f in zip(new, features, strict=True) if f is not None]
        if known:
            f = padded(torch.stack([f for _, f in known]).to(self.base.dtype))
            laws = headnet.medusa(self.w, f, self.base, self.count)
            for (slot, _), of in zip(known, laws, strict=False):
                for depth, law in enumerate(of):
                    self._rows[slot].add(law, depth + 1, self.ids)
        return answer(asks, self._rows, self._origin, block=True)

    def _origin(self, ask: Ask, node: int) -> int | None:
        depth = depth_of(ask, node)
        return depth if depth < len(self._rows[ask.slot].logits) else None

    def row(self, slot: int, origin: int) -> Row:
        """The q row at an origin, until the slot's next commit."""
        return self._rows[slot].law(origin)

    def commit(self, slot: int, step: Step) -> None:
        """Keep the feature of the accepted path's last row."""
        self._rows.pop(slot, None)
        self.last.commit(slot, step)

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` tokens of `src`."""
        self._rows.pop(dst, None)
        self.last.fork(src, dst, length)

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._rows.pop(slot, None)
        self.last.release(slot)


@dataclass
class _Grown:
    """The step under way of one request: f_t, its rows, and the row of each node that was asked for."""

    f: Float[torch.Tensor, " hidden"] | None
    rows: Rows
    row_of: dict[int, int] = field(default_factory=dict)


class HydraDrafter:
    """Heads that read the path: the children of a node at depth d come from head d over [f_t ; root ; path tokens].

    One product a depth over the new frontier nodes of all requests. With a prefix layer (Hydra++) f_t is that layer's
    output over the whole text.

    Raises: ModelError for heads of another target.

    Source: Hydra (2402.05109), sections 3 and 4.
    """

    needs = Needs(last_hidden=True)
    selections = SELECTIONS

    def __init__(self, head: Head, base: Base) -> None:
        self.base, self.scale = base, head.config.embedding_scale
        self.w, self.ids = fitted(head, base)
        self.count = headnet.head_count(self.w)
        self.prefix = Prefix(self.w, head.config, base) if "prefix.norm.weight" in self.w else None
        self.last = Last()
        self._steps: dict[int, _Grown] = {}

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Keep the feature of the prompt's last token; with a prefix layer, of every token."""
        self._steps.pop(slot, None)
        if self.prefix:
            self.prefix.begin(slot, feats)
        else:
            self.last.begin(slot, len(tokens), feats)

    @torch.inference_mode()
    def children(self, asks: Sequence[Ask]) -> Children:
        """A product for every depth the new nodes stand at."""
        new = [ask for ask in asks if ask.slot not in self._steps]
        features = (self.prefix or self.last).features([ask.slot for ask in new])
        for ask, f in zip(new, features, strict=True):
            self._steps[ask.slot] = _Grown(f, Rows(ask.view, self.base.vocab))
        levels: dict[int, list[tuple[Ask, int]]] = {}
        for ask in asks:
            step = self._steps[ask.slot]
            for node in dict.fromkeys(ask.frontier.nodes):
                depth = depth_of(ask, node)
                if node not in step.row_of and step.f is not None and depth < self.count:
                    levels.setdefault(depth, []).append((ask, node))
        for depth, nodes in sorted(levels.items()):
            self._run(depth, nodes)
        rows = {ask.slot: self._steps[ask.slot].rows for ask in asks}
        return answer(asks, rows, lambda ask, node: self._steps[ask.slot].row_of.get(node))

    def _run(self, depth: int, nodes: Sequence[tuple[Ask, int]]) -> None:
        """Rows of nodes of one depth."""
        features = torch.stack([f for ask, _ in nodes if (f := self._steps[ask.slot].f) is not None])
        paths = [(ask.view.root, *ask.view.growth.tokens_to(node)) for ask, node in nodes]
        tokens = self.base.embed(torch.tensor(paths).flatten(), self.scale).view(len(nodes), -1)
        x = padded(torch.cat([features.to(self.base.dtype), tokens], 1))
        laws = headnet.logits(self.w, depth, headnet.state(self.w, depth, x), self.base)
        for (ask, node), law in zip(nodes, laws, strict=False):
            step = self._steps[ask.slot]
            step.row_of[node] = step.rows.add(law, depth + 1, self.ids)

    def row(self, slot: int, origin: int) -> Row:
        """The q row at an origin, until the slot's next commit."""
        return self._steps[slot].rows.law(origin)

    def commit(self, slot: int, step: Step) -> None:
        """Keep the feature of the accepted path's last row; with a prefix layer, of all its rows."""
        self._steps.pop(slot, None)
        (self.prefix or self.last).commit(slot, step)

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` tokens of `src`."""
        self._steps.pop(dst, None)
        (self.prefix or self.last).fork(src, dst, length)

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._steps.pop(slot, None)
        (self.prefix or self.last).release(slot)
