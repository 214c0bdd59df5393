"""What a drafter that continues the target's features asks of its network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int

from hedgerow.core.parts import Feats
from hedgerow.systems.attention import Span
from hedgerow.systems.kv import KVStore


class HeadOut(NamedTuple):
    """One pass: float32 logits of the kept rows over the drafter's vocabulary, and of all rows the state to feed back.

    `ranks` of each kept row: its best id, its `top` best ids, their logits, in the drafter's ids, as float32; ties go
    to the lowest id. `law` of each, from networks that know it: log-sum-exp of the logits, entropy of their softmax
    in nats.
    """

    logits: Float[torch.Tensor, "kept draft_vocab"]
    hidden: Float[torch.Tensor, "rows hidden"]
    ranks: Float[torch.Tensor, "kept ranks"]
    law: Float[torch.Tensor, "kept 2"] | None = None


class HeadNet(Protocol):
    """A network over pairs (feature of position i, token of position i + 1), with keys and values in slots.

    `ids`: the target's token of each of its own, rising; None where both vocabularies are one.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    ids: Int[np.ndarray, " draft_vocab"] | None

    def fuse(self, feats: Feats) -> Float[torch.Tensor, "rows hidden"]:
        """The target's features as the network's own: what stands where later a state is fed back."""

    def run(
        self, kv: KVStore, tokens: Int[np.ndarray, " rows"], features: Float[torch.Tensor, "rows hidden"],
        positions: Int[np.ndarray, " rows"], spans: Sequence[Span], keep: Sequence[int], top: int,
    ) -> HeadOut:
        """One pass over the packed rows of `spans`; their keys and values are written to `kv`.

        `tokens` are the target's ids, `positions` those of the features. Logits and ranks of rows `keep`.
        """


class SlotNet(HeadNet, Protocol):
    """A network that drafts several positions in one pass: rows without a feature take `blank`, and the mask token."""

    mask_token: int

    @property
    def blank(self) -> Float[torch.Tensor, " hidden"]:
        """What stands for a feature where there is none."""
