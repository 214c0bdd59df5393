"""Block drafters: a small transformer fills a whole block of tokens in one pass, from the target's features.

Keys and values of the text are a pure function of the target's taps; no row of the drafter stands for a text token. A
block is [root, mask, mask, …]; its output at a slot is the law of one depth, whatever the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float

from hedgerow.core.errors import ModelError
from hedgerow.core.parts import Ask, Children, Feats, Needs, Row, Step
from hedgerow.core.tree import Selection
from hedgerow.draft.base import Base, fitted
from hedgerow.draft.context import Context, causal, packed, windowed
from hedgerow.draft.formats.head import Head, HeadConfig
from hedgerow.draft.layers import Tensors, heads_of, linear, mlp, norm
from hedgerow.draft.nets.rotary import Rotary
from hedgerow.draft.rows import Rows, answer, depth_of

SELECTIONS = frozenset(Selection) - {Selection.RETRIEVED}
MAX_LAG = 512                             # positions whose features are kept while nobody asks for drafts


def condition(
    w: Tensors, c: HeadConfig, taps: Float[torch.Tensor, "taps *lead target_hidden"]
) -> Float[torch.Tensor, "*lead hidden"]:
    """c = norm(fc [taps side by side]): what every layer makes keys and values of.

    Source: DFlash (2602.06036), section 3; JetSpec (2606.18394) for the adapter of another width.
    """
    if "hidden_dim_adapter.proj.weight" in w:
        taps = linear(w, "hidden_dim_adapter.proj", taps)
    return norm(w, "hidden_norm", linear(w, "fc", torch.cat(list(taps), -1)), c.eps)


def block_sees(c: HeadConfig, layer: int, known: int, device: torch.device) -> Bool[torch.Tensor, "slots keys"] | None:
    """Which of `known` text positions and of the block's slots each slot sees; None: all of them."""
    window = c.windows[layer] if c.windows else None
    ordered = c.causal or (window is not None and c.window_causal)
    sees = causal(known, c.block, device) if ordered else None
    return sees if window is None else windowed(sees, known, c.block, window, device)


@dataclass(frozen=True)
class Slots:
    """Which slots of a block predict, in order of depth."""

    first: int
    depths: int

    @classmethod
    def of(cls, c: HeadConfig) -> Slots:
        """All slots where the root's own predicts already, else all but that one."""
        return cls(0, c.block) if c.from_anchor else cls(1, c.block - 1)


class BlockPass:
    """The network of a block drafter with the text of every request.

    Raises: ModelError for a drafter of another target, or of blocks that draft nothing.

    Source: DFlash (2602.06036).
    """

    def __init__(self, head: Head, base: Base) -> None:
        c = self.config = head.config
        self.base, self.slots = base, Slots.of(c)
        if self.slots.depths < 1:
            raise ModelError(f"the drafter's blocks have {c.block} slots, which leaves none to predict; 2 or more do")
        self.w, self.ids = fitted(head, base)
        self.needs = c.needs
        self.rotary = Rotary(c, base.dtype, base.device)
        self.context = Context(
            c.taps, c.layers, c.kv_heads, c.head_dim, base.slots, base.max_len, c.block, base.dtype, base.device
        )
        self._columns = None if self.ids is None else torch.from_numpy(self.ids).to(base.device)
        self._mask = self._mask_row()

    def _mask_row(self) -> Float[torch.Tensor, " hidden"]:
        c = self.config
        if "mask_embedding" in self.w:
            return self.w["mask_embedding"].flatten()
        if c.mask_token is None or not 0 <= c.mask_token < c.vocab:
            raise ModelError(
                f"the drafter's mask token is {c.mask_token}; allowed: a token of the target's {c.vocab}, or a tensor "
                "mask_embedding"
            )
        return self.embed([c.mask_token])[0]

    def embed(self, tokens: Sequence[int] | torch.Tensor) -> Float[torch.Tensor, "rows hidden"]:
        """Embeddings of tokens: the drafter's own where it has them, else the target's."""
        scale = self.config.embedding_scale
        if "embed_tokens.weight" in self.w:
            at = torch.as_tensor(tokens, dtype=torch.int64, device=self.base.device)
            return F.embedding(at, self.w["embed_tokens.weight"]) * scale
        return self.base.embed(tokens, scale)

    def logits(self, z: Float[torch.Tensor, "*lead hidden"]) -> Float[torch.Tensor, "*lead draft_vocab"]:
        """Through the drafter's own head, or the target's at the drafter's ids."""
        if "lm_head.weight" in self.w:
            return linear(self.w, "lm_head", z)
        out = self.base.head(z)
        return out if self._columns is None else out[..., self._columns]

    def states(self, asks: Sequence[Ask]) -> Float[torch.Tensor, "asks depths hidden"]:
        """One pass over the blocks of several requests, with the features that wait: z of every depth."""
        c, context, kv, device = self.config, self.context, self.context.kv, self.base.device
        for ask in asks:
            context.check(ask.slot, ask.view.position)
        spans = [(ask.slot, context.known(ask.slot), context.waiting(ask.slot)) for ask in asks]
        text = self._text([slot for slot, _, n in spans if n])
        for slot, _, n in spans:
            kv.stage(context.place(slot), n + c.block)
        self.rotary.reach(max(known + n for _, known, n in spans) + c.block)
        at = [torch.arange(known, known + n, device=device) for _, known, n in spans]
        at += [torch.arange(known + n, known + n + c.block, device=device) for _, known, n in spans]
        angles = self.rotary.at(packed(at))
        block_angles = [table[len(text) :] for table in angles]
        x = torch.stack([torch.cat([e[None], self._mask.expand(c.block - 1, -1)]) for e in self.embed(
            [ask.view.root for ask in asks]
        )]).flatten(0, 1)

        for i in range(c.layers):
            where = f"layers.{i}."
            y = norm(self.w, f"{where}input_layernorm", x, c.eps)
            both = torch.cat([text, y])
            q = self.rotary.turn(heads_of(self.w, where, "q", y, c), *block_angles)
            k = self.rotary.turn(heads_of(self.w, where, "k", both, c), *angles)
            v = heads_of(self.w, where, "v", both, c)
            mixed = self._attend(i, spans, len(text), q, k, v)
            x = x + linear(self.w, f"{where}self_attn.o_proj", mixed)
            x = x + mlp(self.w, where, norm(self.w, f"{where}post_attention_layernorm", x, c.eps))
        for slot, _, n in spans:
            kv.commit(context.place(slot), range(n))      # the block's own rows go
        z = norm(self.w, "norm", x, c.eps).view(len(asks), c.block, -1)
        return z[:, self.slots.first :]

    def commit(self, slot: int, step: Step) -> None:
        """Record the features of the accepted path; those of a long lag become keys and values at once."""
        self.context.commit(slot, step)
        if self.context.waiting(slot) > MAX_LAG:
            self._store(slot)

    @torch.inference_mode()
    def _store(self, slot: int) -> None:
        """Turn the features that wait into keys and values."""
        c, place, known, n = self.config, self.context.place(slot), self.context.known(slot), self.context.waiting(slot)
        text = self._text([slot])
        self.context.kv.stage(place, n)
        self.rotary.reach(known + n)
        angles = self.rotary.at(torch.arange(known, known + n, device=self.base.device))
        for i in range(c.layers):
            k, v = (heads_of(self.w, f"layers.{i}.", side, text, c) for side in "kv")
            self.context.kv.write(i, place, known, self.rotary.turn(k, *angles), v)
        self.context.kv.commit(place, range(n))

    def _text(self, slots: Sequence[int]) -> Float[torch.Tensor, "rows hidden"]:
        """c of all features that wait, slot after slot."""
        taps = [self.context.take(slot).to(self.base.dtype) for slot in slots]
        if not taps:
            return self._mask.new_zeros(0, self.config.hidden)
        return condition(self.w, self.config, taps[0] if len(taps) == 1 else torch.cat(taps, 1))

    def _attend(
        self, layer: int, spans: Sequence[tuple[int, int, int]], texts: int, q: torch.Tensor, k: torch.Tensor,
        v: torch.Tensor,
    ) -> Float[torch.Tensor, "rows features"]:
        """Store the new keys of every request, text first, and let its block look at all of them."""
        size, out, start = self.config.block, [], 0
        for b, (slot, known, n) in enumerate(spans):
            place, end = self.context.place(slot), known + n
            new = slice(texts + b * size, texts + (b + 1) * size)
            if n:
                self.context.kv.write(layer, place, known, k[:, start : start + n], v[:, start : start + n])
            self.context.kv.write(layer, place, end, k[:, new], v[:, new])
            sees = block_sees(self.config, layer, end, self.base.device)
            out.append(self.context.attend(slot, layer, q[:, b * size : (b + 1) * size], end + size, sees))
            start += n
        return packed(out)


class BlockDrafter:
    """Marginals of all depths from one pass over the blocks of all requests; later rounds are answered from it.

    Source: DFlash (2602.06036); with a tree by DDTree (2604.12989), whose table is `aux["block"]`; JetSpec (2606.18394)
    without its refresh.
    """

    selections = SELECTIONS

    def __init__(self, head: Head, base: Base) -> None:
        self.net = BlockPass(head, base)
        self.needs: Needs = self.net.needs
        self._rows: dict[int, Rows] = {}                  # of the step under way

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Record the features of the prompt."""
        self._rows.pop(slot, None)
        self.net.context.begin(slot, feats)

    @torch.inference_mode()
    def children(self, asks: Sequence[Ask]) -> Children:
        """The pass runs once a step, for all requests that ask; the rest is looking up."""
        new = [ask for ask in asks if ask.slot not in self._rows]
        if new:
            for ask, laws in zip(new, self.net.logits(self.net.states(new)), strict=True):
                rows = self._rows[ask.slot] = Rows(ask.view, self.net.base.vocab)
                for depth, law in enumerate(laws):
                    rows.add(law, depth + 1, self.net.ids)
        return answer(asks, self._rows, self._origin, block=True)

    def _origin(self, ask: Ask, node: int) -> int | None:
        depth = depth_of(ask, node)
        return depth if depth < self.net.slots.depths else None

    def row(self, slot: int, origin: int) -> Row:
        """The q row at an origin, until the slot's next commit."""
        return self._rows[slot].law(origin)

    def commit(self, slot: int, step: Step) -> None:
        """Record the features of the accepted path."""
        self._rows.pop(slot, None)
        self.net.commit(slot, step)

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` tokens of `src`."""
        self._rows.pop(dst, None)
        self.net.context.fork(src, dst, length)

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._rows.pop(slot, None)
        self.net.context.release(slot)
