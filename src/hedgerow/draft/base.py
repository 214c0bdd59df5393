"""What a learned drafter takes from the target it was trained for: the embedding table and the language-model head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int

from hedgerow.core.errors import ModelError
from hedgerow.draft.formats.head import Head
from hedgerow.draft.nets import shared

Product = Callable[[Float[torch.Tensor, "rows hidden"]], Float[torch.Tensor, "rows vocab"]]


@dataclass(frozen=True)
class Base:
    """The target as its drafter sees it: tables, sizes, and where it runs."""

    embedding: Float[torch.Tensor, "vocab hidden"]
    output: Callable[[], Float[torch.Tensor, "vocab hidden"]]     # the head's matrix; made when a drafter needs it
    vocab: int
    slots: int
    max_len: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, target: Any) -> Base:
        """The tables of a loaded target.

        Raises: ModelError for a target without a network, or whose tables are not found.
        """
        embedding = shared.embedding(target)
        runner = target.runner
        net, kv = runner.net, runner.kv
        return cls(embedding, lambda: shared.head(target), net.vocab, kv.slots, kv.max_len, net.dtype, net.device)

    @cached_property
    def head(self) -> Product:
        """The target's head: rows after the final norm -> logits."""
        weight = self.output().to(self.device, self.dtype)
        return lambda x: F.linear(x, weight)

    def embed(self, tokens: Sequence[int] | torch.Tensor, scale: float = 1.0) -> Float[torch.Tensor, "rows hidden"]:
        """Rows of the embedding table, as the drafter's layers want them."""
        rows = self.embedding[torch.as_tensor(tokens, dtype=torch.int64, device=self.embedding.device)]
        rows = rows.to(self.dtype)
        return rows if scale == 1.0 else rows * scale

    @property
    def hidden(self) -> int:
        """Width of the target's hidden states."""
        return int(self.embedding.shape[1])


def fitted(head: Head, base: Base) -> tuple[dict[str, torch.Tensor], Int[np.ndarray, " draft_vocab"] | None]:
    """A drafter's tensors where and as the target's are, and the target's ids of its tokens (None: the same ids).

    Raises: ModelError for a drafter of another vocabulary or hidden size, with both numbers.
    """
    c = head.config
    for what, own, wanted in (("a vocabulary", c.vocab, base.vocab), ("hidden states", c.target_hidden, base.hidden)):
        if own != wanted:
            raise ModelError(
                f"the drafter was made for a target with {what} of {own}; this target's is {wanted}. "
                "A drafter serves the model it was trained for"
            )
    tensors = {
        name: t.to(base.device, base.dtype if t.is_floating_point() else t.dtype) for name, t in head.tensors.items()
    }
    return tensors, None if head.ids is None else head.ids.cpu().numpy().astype(np.int64)

