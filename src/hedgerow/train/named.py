"""A module that is nothing but named tensors, and what the target says of every position: shared by several methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import nn
from torch.nn import functional as F

from hedgerow.draft.formats.head import Head, HeadConfig
from hedgerow.train.data import Batch


class Named(nn.Module):
    """Trainable tensors under canonical names; the drafter's own functions of such tensors are its forward pass.

    >>> config = HeadConfig("medusa", hidden=2, target_hidden=2, vocab=4, draft_vocab=4)
    >>> list(Named(config, {"heads.0.blocks.0.weight": torch.eye(2)}).state_dict())
    ['heads.0.blocks.0.weight']
    """

    def __init__(self, config: HeadConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.config = config
        for name, tensor in tensors.items():
            *path, last = name.split(".")
            at: nn.Module = self
            for part in path:
                if part not in at._modules:
                    at.add_module(part, nn.Module())
                at = at.get_submodule(part)
            at.register_parameter(last, nn.Parameter(tensor.detach().float().clone()))

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters by name."""
        return dict(self.named_parameters())

    def head(self, ids: torch.Tensor, facts: dict[str, Any]) -> Head:
        """The drafter as it is now, bf16."""
        tensors = {name: t.detach().bfloat16().cpu().clone() for name, t in self.state_dict().items()}
        some = self.config.draft_vocab < self.config.vocab
        return Head(self.config, tensors, ids.cpu() if some else None, "own", facts)


class Taught(NamedTuple):
    """The target's laws over the drafter's vocabulary, where they are learned: of positions in answers that go on
    with a token of that vocabulary.

    `of` [texts, len]: the law of each position, −1 where there is none. `next`: the token that came, as the drafter
    numbers it; `best`: the likeliest.
    """

    law: Float[torch.Tensor, "learned draft_vocab"]
    best: Int[torch.Tensor, " learned"]
    next: Int[torch.Tensor, " learned"]
    of: Int[torch.Tensor, "texts len"]


@torch.no_grad()
def taught(
    batch: Batch, teacher: Float[torch.Tensor, "draft_vocab hidden"], ids: Int[torch.Tensor, " draft_vocab"], vocab: int
) -> Taught:
    """What the target says of a batch; the token behind a text's last position is not in it, so that is not learned."""
    texts, rows = batch.tokens.shape
    own = torch.full((vocab,), -1, dtype=torch.int64, device=batch.tokens.device)
    own[ids] = torch.arange(len(ids), device=own.device)
    following = F.pad(own[batch.tokens[:, 1:]], (0, 1), value=-1)
    at = (batch.loss & (following >= 0)).flatten().nonzero()[:, 0]
    law = F.linear(batch.last.flatten(0, 1)[at].to(teacher.dtype), teacher).float().softmax(1)
    of = torch.full((texts * rows,), -1, dtype=torch.int64, device=own.device)
    of[at] = torch.arange(len(at), device=own.device)
    return Taught(law, law.argmax(1), following.flatten()[at], of.view(texts, rows))
