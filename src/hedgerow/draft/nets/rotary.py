"""Rotary angles of a drafter: its own base and scaling, never the target's, in tables that grow with the text."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float

from hedgerow.core.errors import ModelError, UnknownName
from hedgerow.draft.formats.head import HeadConfig
from hedgerow.models.convert import quiet


class Rotary:
    """cos and sin of position × frequency, for any position: tables double when a longer text asks.

    Source: scalings (linear, dynamic, yarn, longrope, llama3) are transformers' own code.

    >>> config = HeadConfig("eagle3", hidden=8, target_hidden=8, vocab=16, draft_vocab=16, heads=2, head_dim=4)
    >>> cos, sin = Rotary(config, torch.float32, torch.device("cpu")).at(torch.tensor([0, 3]))
    >>> cos.shape, cos[0].tolist()
    (torch.Size([2, 4]), [1.0, 1.0, 1.0, 1.0])
    """

    def __init__(self, config: HeadConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._frequency, self._factor = _frequencies(config)
        self.rotated = 2 * len(self._frequency)           # leading elements of a head that turn
        self._grow(512)

    def _grow(self, positions: int) -> None:
        angle = torch.arange(positions, dtype=torch.float32)[:, None] * self._frequency
        angle = torch.cat([angle, angle], -1)
        self._cos, self._sin = (
            (table * self._factor).to(self.device, self.dtype) for table in (angle.cos(), angle.sin())
        )

    def reach(self, position: int) -> None:
        """Make the tables long enough for a position."""
        if position >= len(self._cos):
            self._grow(1 << position.bit_length())

    def at(
        self, positions: torch.Tensor
    ) -> tuple[Float[torch.Tensor, "rows rotated"], Float[torch.Tensor, "rows rotated"]]:
        """cos and sin of each position; see `reach`."""
        return self._cos[positions], self._sin[positions]

    def turn(
        self, x: Float[torch.Tensor, "*lead heads rows head_dim"], cos: torch.Tensor, sin: torch.Tensor
    ) -> Float[torch.Tensor, "*lead heads rows head_dim"]:
        """Rotate the leading elements of each head, first half against second. Differentiable in x."""
        head, tail = x[..., : self.rotated], x[..., self.rotated :]
        a, b = head.chunk(2, -1)
        turned = head * cos + torch.cat([-b, a], -1) * sin
        return turned if not tail.shape[-1] else torch.cat([turned, tail], -1)


def _frequencies(config: HeadConfig) -> tuple[torch.Tensor, float]:
    """Angular frequencies, and the factor on both tables."""
    scaling: dict[str, Any] = dict(config.rope_scaling or {})
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    share = float(scaling.get("partial_rotary_factor", 1.0))
    if kind == "default":
        size = int(config.head_dim * share)
        return config.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size), 1.0
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind not in ROPE_INIT_FUNCTIONS:
        raise UnknownName("rotary scaling", kind, ["default", *ROPE_INIT_FUNCTIONS], "The drafter's config names it")
    scaling.setdefault("original_max_position_embeddings", config.max_len)
    try:
        with quiet():
            facts = LlamaConfig(
                hidden_size=config.head_dim * config.heads, num_attention_heads=config.heads, head_dim=config.head_dim,
                max_position_embeddings=config.max_len,
                rope_parameters={"rope_theta": config.rope_theta, **scaling, "rope_type": kind},
            )
            frequency, factor = ROPE_INIT_FUNCTIONS[kind](facts, torch.device("cpu"))
    except Exception as e:  # noqa: BLE001 - whatever a wrong table raises, the user gets one line
        raise ModelError(f"the drafter's rotary scaling {scaling} cannot be used: {e}") from None
    return frequency.float(), float(factor)
