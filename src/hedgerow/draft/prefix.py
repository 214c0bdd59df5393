"""Hydra++'s prefix layer: a decoder layer over the target's features, causal over the text, with a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float

from hedgerow.core.parts import Feats, Step
from hedgerow.draft.base import Base
from hedgerow.draft.context import Context, causal, packed, padded
from hedgerow.draft.formats.head import HeadConfig
from hedgerow.draft.layers import Tensors, layer, norm
from hedgerow.draft.nets.rotary import Rotary

CHUNK = 512                               # rows of a prompt that run at once: bounds the memory of the mask


class Prefix:
    """What Hydra++ puts in place of f_t: norm(layers(f_0 … f_t)) at the last position.

    Source: Hydra (2402.05109), section 4, prefix attention.
    """

    def __init__(self, w: Tensors, config: HeadConfig, base: Base) -> None:
        self.w, self.config, self.dtype, self.device = w, config, base.dtype, base.device
        self.layers = 1 + max(int(n.split(".")[2]) for n in w if n.startswith("prefix.layers."))
        self.rotary = Rotary(config, base.dtype, base.device)
        self.context = Context(
            (), self.layers, config.kv_heads, config.head_dim, base.slots, base.max_len, 1, base.dtype, base.device
        )
        self._last: dict[int, torch.Tensor] = {}          # slot -> output at the last position that was run

    def begin(self, slot: int, feats: Feats) -> None:
        """Record a prompt."""
        self._last.pop(slot, None)
        self.context.begin(slot, feats)

    def commit(self, slot: int, step: Step) -> None:
        """Record a step."""
        self.context.commit(slot, step)
        if self.context.waiting(slot) > CHUNK:
            with torch.inference_mode():
                self.features([slot])

    def features(self, slots: Sequence[int]) -> list[Float[torch.Tensor, " hidden"] | None]:
        """f′ of each slot's last position, running what waits; None where nothing is known of it (after a fork)."""
        left = {slot: self.context.take(slot)[0] for slot in slots if self.context.waiting(slot)}
        while left:
            now = {slot: f[:CHUNK] for slot, f in left.items()}
            self._run(now)
            left = {slot: f[CHUNK:] for slot, f in left.items() if len(f) > CHUNK}
        return [self._last.get(slot) for slot in slots]

    def _run(self, rows: dict[int, torch.Tensor]) -> None:
        """Rows of several slots behind what is known of each."""
        context, kv = self.context, self.context.kv
        spans = [(slot, context.known(slot), len(f)) for slot, f in rows.items()]
        for slot, _, n in spans:
            kv.stage(context.place(slot), n)
        self.rotary.reach(max(known + n for _, known, n in spans))
        x = padded(packed(list(rows.values())).to(self.dtype))
        at = packed([torch.arange(known, known + n, device=self.device) for _, known, n in spans])
        angles = self.rotary.at(F.pad(at, (0, len(x) - len(at))))
        masks = [causal(known, n, self.device) for _, known, n in spans]

        def attend(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            q, k = self.rotary.turn(q, *angles), self.rotary.turn(k, *angles)
            out, start = [], 0
            for (slot, known, n), sees in zip(spans, masks, strict=True):
                part = slice(start, start + n)
                kv.write(i, context.place(slot), known, k[:, part], v[:, part])
                out.append(context.attend(slot, i, q[:, part], known + n, sees))
                start += n
            return F.pad(packed(out), (0, 0, 0, len(x) - start))

        for i in range(self.layers):
            x = layer(self.w, f"prefix.layers.{i}.", self.config, x, partial(attend, i))
        out = norm(self.w, "prefix.norm", x, self.config.eps)
        start = 0
        for slot, _, n in spans:
            kv.commit(context.place(slot), range(n))
            start += n
            self._last[slot] = out[start - 1].clone()

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` tokens of `src`."""
        context = self.context
        whole = context.known(src) + context.waiting(src) == length - 1
        context.fork(src, dst, length)
        self._last.pop(dst, None)
        if whole and not context.waiting(src) and src in self._last:
            self._last[dst] = self._last[src]

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._last.pop(slot, None)
        self.context.release(slot)
