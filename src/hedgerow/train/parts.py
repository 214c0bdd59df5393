"""What a training method is: a module, and what one batch teaches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int

from hedgerow.draft.formats.head import Head
from hedgerow.train.data import Batch

RANKS = 8                                  # of a row that validation looks at


@dataclass
class Learned:
    """What one batch taught: the loss to go down, and per depth how often each rank was the target's own choice."""

    loss: torch.Tensor
    hits: Float[torch.Tensor, "depth ranks"]   # counts, given that the path before lives
    alive: Float[torch.Tensor, " depth"]


class Method(Protocol):
    """A way to train a drafter: a module and the loss of a batch."""

    name: str
    module: Any

    def learn(self, batch: Batch) -> Learned:
        """Loss of a batch, differentiable, and what the drafter would have got right."""


class HeadMethod(Method, Protocol):
    """A method whose drafter is a head on the target."""

    def head(self, facts: dict[str, Any]) -> Head:
        """The drafter as it is now."""


def ranked(
    z: Float[torch.Tensor, "learned vocab"], best: Int[torch.Tensor, " learned"]
) -> Bool[torch.Tensor, "learned ranks"]:
    """Whether `best` is the likeliest of a row, the next likeliest, …, as far as validation looks.

    >>> ranked(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([2])).tolist()
    [[False, True, False]]
    """
    return z.topk(min(RANKS, z.shape[1]), 1).indices == best[:, None]


@dataclass
class Tally:
    """Counts for `Learned`, depth by depth; a row lives on while the drafter's best was the target's."""

    living: Bool[torch.Tensor, " rows"]
    hits: list[torch.Tensor]
    alive: list[torch.Tensor]

    @classmethod
    def of(cls, rows: int, device: torch.device) -> Tally:
        """All rows live."""
        return cls(torch.ones(rows, dtype=torch.bool, device=device), [], [])

    @torch.no_grad()
    def depth(
        self, at: Int[torch.Tensor, " learned"], z: Float[torch.Tensor, "learned vocab"],
        best: Int[torch.Tensor, " learned"],
    ) -> None:
        """Count a depth: rows `at` were judged, with logits z, and `best` was right. Other rows live no longer."""
        self.count(at, ranked(z, best))

    @torch.no_grad()
    def count(self, at: Int[torch.Tensor, " learned"], hit: Bool[torch.Tensor, "learned ranks"]) -> None:
        """The same, where it is known already which rank was right."""
        live = self.living[at]
        self.hits.append((hit & live[:, None]).sum(0).float())
        self.alive.append(live.sum().float())
        self.living = torch.zeros_like(self.living)
        self.living[at] = hit[:, 0] & live

    def learned(self, loss: torch.Tensor) -> Learned:
        """The counts with a loss."""
        return Learned(loss, torch.stack(self.hits), torch.stack(self.alive))
