"""A small seedable transformer with clear margins: the target of identity tests.

It is a decoder like the real ones — grouped key heads, rotary positions, a gated feed-forward block — over the same
runner, keys and attention, in float32, with a head scaled up so that the best two logits of a row are rarely close.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int

from hedgerow.core.parts import TargetInfo
from hedgerow.models.runner import NetOut, Network, Runner
from hedgerow.systems.attends import Attention
from hedgerow.systems.kv import Kind
from hedgerow.target.lm import LMTarget


class TinyNet(Network):
    """Weights and forward pass: `layers` × (rotary grouped-query attention, SwiGLU), pre-norm, float32.

    Hidden state i of `taps` is the input of layer i; index `layers` is the last one, after the final norm.
    """

    def __init__(
        self, seed: int, vocab: int, layers: int, heads: int, kv_heads: int, head_dim: int, scale: float,
        device: str | torch.device = "cpu",
    ) -> None:
        self.vocab, self.layers, self.heads, self.kv_heads, self.head_dim = vocab, layers, heads, kv_heads, head_dim
        self.dtype, self.device, self.scale = torch.float32, torch.device(device), scale
        hidden, inner = heads * head_dim, 2 * heads * head_dim
        source = torch.Generator().manual_seed(seed)

        def weight(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
            return (torch.randn(rows, columns, generator=source) * (gain / math.sqrt(columns))).to(self.device)

        self.embedding = weight(vocab, hidden, math.sqrt(hidden))
        self.blocks = [
            (
                weight((heads + 2 * kv_heads) * head_dim, hidden, 2.0), weight(hidden, hidden),
                weight(2 * inner, hidden, 2.0), weight(hidden, inner),
            )
            for _ in range(layers)
        ]
        self.head = weight(vocab, hidden, scale)
        self.frequency = 1000.0 ** (-torch.arange(0, head_dim, 2, device=self.device) / head_dim)

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(
        self, tokens: Int[torch.Tensor, " rows"], positions: Int[torch.Tensor, " rows"], step: Attention,
        keep: Int[torch.Tensor, " kept"] | None, taps: Sequence[int], last_hidden: bool,
    ) -> NetOut:
        """All rows through all layers; logits of rows `keep` (None: all)."""
        rows, hidden = len(tokens), self.heads * self.head_dim
        angle = positions[:, None] * self.frequency
        cos, sin = angle.cos(), angle.sin()
        x = self.embedding[tokens]
        states: list[Float[torch.Tensor, "rows hidden"]] = []
        for layer, (qkv, out, up, down) in enumerate(self.blocks):
            states.append(x)
            y = F.linear(F.rms_norm(x, (hidden,)), qkv).view(rows, -1, self.head_dim).transpose(0, 1)
            q, k, v = y.split([self.heads, self.kv_heads, self.kv_heads])
            step.write(layer, self._rotate(k, cos, sin), v)
            seen = step.attend(layer, self._rotate(q, cos, sin), self.head_dim**-0.5)
            x = x + F.linear(seen.reshape(rows, hidden), out)
            gate, value = F.linear(F.rms_norm(x, (hidden,)), up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * value, down)
        x = F.rms_norm(x, (hidden,))
        states.append(x)
        logits = F.linear(x if keep is None else x[keep], self.head)
        return NetOut(logits, torch.stack([states[i] for i in taps]) if taps else None, x if last_hidden else None)


class TinyTarget(LMTarget):
    """An `LMTarget` over `TinyNet`; nothing is added to it but this constructor.

    `scale`: standard deviation of the logits, about. `eos`: token ids that end a text.

    >>> import numpy as np
    >>> from hedgerow.core.parts import Needs, RowGroup
    >>> target = TinyTarget(seed=0, vocab=16)
    >>> slot = target.acquire()
    >>> prompt = RowGroup("prefill", slot, np.array([1, 2, 3]), np.arange(3), np.tri(3, dtype=bool))
    >>> rows, feats = target.collect(target.submit([prompt], Needs()))
    >>> target.commit(slot, range(3))
    >>> rows.logits(0, 2).argmax() == rows.argmax(0)[2]
    np.True_
    """

    def __init__(
        self, seed: int = 0, vocab: int = 64, layers: int = 2, heads: int = 4, kv_heads: int = 2, head_dim: int = 16,
        scale: float = 4.0, max_len: int = 1024, slots: int = 16, max_rows: int = 256, chunk: int = 256,
        eos: frozenset[int] = frozenset(), device: str = "cpu", kv: Kind = "paged",
    ) -> None:
        net = TinyNet(seed, vocab, layers, heads, kv_heads, head_dim, scale, device)
        super().__init__(
            Runner(net, slots, max_len, max_rows, chunk, kv),
            TargetInfo(f"tiny-{seed}", vocab, max_len, device, dtype="fp32", backend="torch fp32", eos=eos),
        )
