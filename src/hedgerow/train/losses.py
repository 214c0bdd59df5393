"""Losses of a draft law q against the target's p, over the drafter's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int


class SoftCrossEntropy(torch.autograd.Function):
    """−Σ_v p(v) log q(v) of each row, q = softmax(z); dz = q − p is formed in the forward pass, while z is at hand."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """z [rows, vocab] in any precision, p [rows, vocab] sums to 1."""
        z = z.float()
        norm = z.logsumexp(1)
        out = norm - (p * z).sum(1)
        ctx.save_for_backward((z - norm[:, None]).exp_().sub_(p).bfloat16())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Rows of q − p, each times its gradient."""
        (off,) = ctx.saved_tensors
        return off * grads[0][:, None].to(off.dtype), None


def soft_cross_entropy(
    z: Float[torch.Tensor, "rows vocab"], p: Float[torch.Tensor, "rows vocab"]
) -> Float[torch.Tensor, " rows"]:
    """−Σ_v p(v) log softmax(z)(v): KL(p ‖ q) plus the entropy of p, which no drafter changes.

    >>> p = torch.tensor([[0.5, 0.5]])
    >>> round(float(soft_cross_entropy(torch.zeros(1, 2), p)), 4)
    0.6931
    """
    out: torch.Tensor = SoftCrossEntropy.apply(z, p)
    return out


def top_k_cross_entropy(
    z: Float[torch.Tensor, "rows vocab"], p: Float[torch.Tensor, "rows vocab"], k: int
) -> Float[torch.Tensor, " rows"]:
    """−Σ p(v) log q(v) over the target's k most likely tokens.

    Source: HASS (2408.15766), its ranking distillation; their k is 10.
    """
    best, at = p.topk(min(k, p.shape[1]), 1)
    return -(best * (z.float().gather(1, at) - z.float().logsumexp(1, keepdim=True))).sum(1)


def covered(
    z: Float[torch.Tensor, "rows vocab"], p: Float[torch.Tensor, "rows vocab"], branches: int
) -> Float[torch.Tensor, " rows"]:
    """Σ_v min(p(v), 1 − (1 − q(v))^K): the mass of p that K draws from q can cover, at most. Differentiable in z.

    K = 1 is Σ min(p, q), the acceptance of one drawn child.

    >>> p = torch.tensor([[0.75, 0.25]])
    >>> covered(torch.zeros(1, 2), p, 1).tolist(), covered(torch.zeros(1, 2), p, 4).tolist()
    ([0.75], [1.0])
    """
    drawn = 1.0 - (1.0 - z.float().softmax(1)) ** branches
    return torch.minimum(p, drawn).sum(1)


@dataclass
class TreeReward:
    """Expected accepted length of a tree, over rows that are judged depth by depth: Σ_d Π_{k ≤ d} covered_k.

    A depth counts as far as those before it are accepted, so that what is learned is what a tree would reach. A row
    that is not judged at a depth ends there.

    Source: GTO (2509.22134), its draft tree reward. Differs from the paper: the tree is K draws wide everywhere along
    the written path, not the tree that EAGLE-2's expansion decodes, and the reward is differentiated itself, so that
    there are no sampled groups, no frozen reference drafter and no clipped policy surrogate.
    """

    reach: Float[torch.Tensor, " rows"]
    branches: int = 4
    total: Float[torch.Tensor, ""] | None = None
    first: int = 0                         # rows judged at the first depth

    @classmethod
    def of(cls, rows: int, device: torch.device, branches: int = 4) -> TreeReward:
        """All rows are reached."""
        return cls(torch.ones(rows, device=device), branches)

    def depth(
        self, at: Int[torch.Tensor, " learned"], z: Float[torch.Tensor, "learned vocab"],
        p: Float[torch.Tensor, "learned vocab"],
    ) -> None:
        """Add a depth: rows `at` were judged, with logits z and the target's law p."""
        reached = self.reach[at] * covered(z, p, self.branches)
        self.reach = torch.zeros_like(self.reach).index_put((at,), reached)
        self.first = self.first or len(at)
        self.total = reached.sum() if self.total is None else self.total + reached.sum()

    @property
    def mean(self) -> Float[torch.Tensor, ""]:
        """The reward a row of the first depth."""
        return (self.reach.sum() * 0.0 if self.total is None else self.total) / max(self.first, 1)
