"""Training Medusa's and Hydra's heads over cached features, on one output matrix for all of them.

Row j of head i reads f_j — Hydra's also x_{j+1} … x_{j+1+i} — and learns p(x_{j+2+i} | x_{≤j+1+i}): what it is asked
when x_{j+1} is the root and i tokens were drafted behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch.nn import functional as F

from hedgerow.draft import headnet
from hedgerow.draft.formats.head import Head
from hedgerow.train.data import Batch
from hedgerow.train.losses import soft_cross_entropy
from hedgerow.train.named import Named, taught
from hedgerow.train.parts import Learned, Tally
from hedgerow.train.start import TargetWeights


@dataclass
class Heads:
    """The training method of heads on the last hidden state; head i is weighed by decay^i.

    `reads_path`: Hydra's input, with the embeddings of the tokens drafted before.

    Source: Medusa (2401.10774), section 2.2; Hydra (2402.05109), section 3. Differs from the papers in that heads learn
    the target's law (Hydra++'s teacher loss) and share one output matrix that starts as the target's.
    """

    module: Named
    embedding: Float[torch.Tensor, "vocab hidden"]
    teacher: Float[torch.Tensor, "draft_vocab hidden"]    # the target's output rows of the drafter's vocabulary
    ids: Int[torch.Tensor, " draft_vocab"]
    name: str = "medusa"
    reads_path: bool = False
    decay: float = 0.8

    def learn(self, batch: Batch) -> Learned:
        """Loss of a batch, differentiable, with the counts of `Learned`."""
        w, rows = self.module.tensors, batch.tokens.shape[1]
        said = taught(batch, self.teacher, self.ids, len(self.embedding))
        f = batch.last.float().flatten(0, 1)
        total = torch.zeros((), device=f.device)
        tally = Tally.of(len(f), f.device)
        for i in range(self.module.config.count):
            law = F.pad(said.of[:, 1 + i :], (0, min(1 + i, rows)), value=-1).flatten()   # of j + 1 + i for row j
            at = (law >= 0).nonzero()[:, 0]
            x = f[at]
            if self.reads_path:
                drafted = [batch.tokens.flatten()[at + 1 + m] for m in range(i + 1)]
                x = torch.cat([x, *(F.embedding(t, self.embedding).float() for t in drafted)], 1)
            z = F.linear(headnet.state(w, i, x), w["lm_head.weight"])
            if len(at):
                total = total + self.decay**i * soft_cross_entropy(z, said.law[law[at]]).mean()
            tally.depth(at, z, said.best[law[at]])
        return tally.learned(total)

    def head(self, facts: dict[str, Any]) -> Head:
        """The trained heads in canonical form, bf16."""
        return self.module.head(self.ids, facts)


def begun(
    target: TargetWeights, ids: torch.Tensor, device: torch.device, count: int, depth: int, reads_path: bool
) -> Heads:
    """Heads that begin as the target's own: blocks pass f_t on unchanged, the output rows are the target's."""
    h = int(target.config.hidden_size)
    kind, arch = ("hydra", "mlp") if reads_path else ("medusa", "")
    config = target.head_config(kind, len(ids), count=count, depth=depth, arch=arch)
    tensors: dict[str, torch.Tensor] = {}
    for i in range(count):
        wide = (i + 2) * h if reads_path else h
        for layer in range(depth):
            at = f"heads.{i}.blocks.{layer}"
            tensors[f"{at}.weight"], tensors[f"{at}.bias"] = torch.zeros(h, h if layer else wide), torch.zeros(h)
        if reads_path:
            tensors[f"heads.{i}.residual.weight"] = torch.eye(h, wide)
            tensors[f"heads.{i}.residual.bias"] = torch.zeros(h)
    tensors["lm_head.weight"] = target.output[ids]
    return Heads(
        Named(config, tensors).to(device), target.embedding.to(device), target.output[ids].contiguous().to(device),
        ids.to(device), kind, reads_path,
    )
