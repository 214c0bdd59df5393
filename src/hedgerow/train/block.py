"""Training block drafters over cached features: DFlash, and DSpark's or Domino's correction on top of it.

A text gives many blocks. The one anchored at s holds x_s and masks, sees the features of positions before s and its own
slots, and learns p(x_{s+d} | x_{<s+d}) at depth d; a correction reads the tokens x_s … x_{s+d−1} that were written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch.nn import functional as F

from hedgerow.draft.block import Slots
from hedgerow.draft.formats.head import Head
from hedgerow.draft.layers import attention, heads_of, linear, mlp, norm
from hedgerow.draft.markov import Markov, Recurrent, correction_of
from hedgerow.draft.nets.rotary import Rotary
from hedgerow.train.data import Batch
from hedgerow.train.losses import soft_cross_entropy
from hedgerow.train.named import Named, Taught, taught
from hedgerow.train.parts import Learned, Tally


class Anchors(NamedTuple):
    """Where blocks stand: position of each root, and whether there is one at all."""

    at: Int[torch.Tensor, "texts anchors"]
    real: Bool[torch.Tensor, "texts anchors"]


def anchors_of(batch: Batch, most: int, source: torch.Generator) -> Anchors:
    """Up to `most` random positions of every text whose token and the next one belong to an answer."""
    fits = batch.loss.clone()
    fits[:, 1:] &= batch.loss[:, :-1]
    fits[:, 0] = False                    # the root has a feature before it
    chance = torch.rand(fits.shape, generator=source).to(fits.device) + 1.0
    found = (chance * fits).topk(min(most, fits.shape[1]), 1)
    return Anchors(found.indices, found.values > 0)


def decayed(depths: int, gamma: float) -> list[float]:
    """Weight of depth d: exp(−(d − 1) / γ).

    Source: DFlash (2602.06036); γ 7 for blocks of 16.

    >>> [round(x, 3) for x in decayed(3, 7.0)]
    [1.0, 0.867, 0.751]
    """
    return torch.arange(depths).div(-gamma).exp().tolist()


def paced(
    sure: Float[torch.Tensor, "blocks depths"], there: Bool[torch.Tensor, "blocks depths"], alpha: float = 0.5
) -> Float[torch.Tensor, "blocks depths"]:
    """D-PACE's weight of every slot: Σ_{j ≥ k} Π_{i ≤ j} q̃_i, the expected accepted length that flows through it.

    `sure`: the drafter's probability of the token that came; q̃ = (1 − α) q + α, and 1 where a slot is not there.

    Source: the option of that name for DFlash in vLLM's speculators; α 0.5.

    >>> paced(torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True]])).tolist()
    [[1.5, 0.5]]
    """
    reach = torch.where(there, (1 - alpha) * sure + alpha, torch.ones_like(sure)).cumprod(1) * there
    return reach.flip(1).cumsum(1).flip(1) * there


@dataclass
class Blocks:
    """The training method of block drafters: `anchors` blocks a text.

    Depth d is weighed by exp(−(d−1)/γ), or, with `pace`, by what the drafter itself lets through. A confidence head
    learns 1 − ½‖p − q‖₁, the chance that a draw from q is accepted.

    Source: DFlash (2602.06036); DSpark (2607.05147); Domino (2605.29707). Differs from the papers in that slots learn
    the target's law instead of its token.
    """

    module: Named
    embedding: Float[torch.Tensor, "vocab hidden"]
    teacher: Float[torch.Tensor, "draft_vocab hidden"]
    ids: Int[torch.Tensor, " draft_vocab"]
    name: str = "dflash"
    anchors: int = 32
    gamma: float = 7.0
    pace: bool = False
    seed: int = 0
    source: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.source.manual_seed(self.seed)
        self._rotary = Rotary(self.module.config, torch.float32, self.embedding.device)

    def states(
        self, taps: Float[torch.Tensor, "texts len taps*hidden"], tokens: Int[torch.Tensor, "texts len"],
        at: Int[torch.Tensor, "texts anchors"],
    ) -> Float[torch.Tensor, "texts anchors depths hidden"]:
        """z of the predicting slots of every block."""
        w, c = self.module.tensors, self.module.config
        (texts, length), blocks = tokens.shape, at.shape[1]
        seen = norm(w, "hidden_norm", linear(w, "fc", taps.float()).float(), c.eps)
        roots = F.embedding(tokens.gather(1, at), self.embedding).float() * c.embedding_scale
        masks = (self.embedding[c.mask_token].float() * c.embedding_scale).expand(texts, blocks, c.block - 1, -1)
        x = torch.cat([roots[:, :, None], masks], 2).flatten(1, 2)
        own = (at[:, :, None] + torch.arange(c.block, device=at.device)).flatten(1)
        self._rotary.reach(length + c.block)
        before, inside = (
            tuple(t.unsqueeze(-3) for t in self._rotary.at(positions))
            for positions in (torch.arange(length, device=at.device), own)
        )
        sees = self._sees(at, length)
        for i in range(c.layers):
            where = f"layers.{i}."
            y = norm(w, f"{where}input_layernorm", x, c.eps)
            k = torch.cat([
                self._rotary.turn(heads_of(w, where, "k", part, c).float(), *angles)
                for part, angles in ((seen, before), (y, inside))
            ], 2)
            v = torch.cat([heads_of(w, where, "v", part, c).float() for part in (seen, y)], 2)
            q = self._rotary.turn(heads_of(w, where, "q", y, c).float(), *inside)
            x = x + linear(w, f"{where}self_attn.o_proj", attention(q, k, v, sees)).float()
            x = x + mlp(w, where, norm(w, f"{where}post_attention_layernorm", x, c.eps)).float()
        return norm(w, "norm", x, c.eps).view(texts, blocks, c.block, -1)[:, :, Slots.of(c).first :]

    def _sees(self, at: Int[torch.Tensor, "texts anchors"], length: int) -> Bool[torch.Tensor, "texts one slots keys"]:
        """A slot sees the positions before its root, and the slots of its own block (up to itself, where causal)."""
        c, device = self.module.config, at.device
        root = at.repeat_interleave(c.block, 1)
        before = torch.arange(length, device=device) < root[:, :, None]
        number = torch.arange(root.shape[1], device=device)
        same = number[:, None] // c.block == number // c.block
        if c.causal:
            same &= number <= number[:, None]
        return torch.cat([before, same.expand(len(at), -1, -1)], 2)[:, None]

    def learn(self, batch: Batch) -> Learned:
        """Loss of a batch, differentiable, with the counts of `Learned`. Draws anchors; in validation the same ones."""
        source = self.source if self.module.training else torch.Generator().manual_seed(self.seed)
        said = taught(batch, self.teacher, self.ids, len(self.embedding))
        anchors = anchors_of(batch, self.anchors, source)
        z = self.states(batch.taps, batch.tokens, anchors.at).flatten(0, 1)
        return self._judge(batch, said, anchors, z)

    def _judge(self, batch: Batch, said: Taught, anchors: Anchors, z: torch.Tensor) -> Learned:
        w, depths = self.module.tensors, z.shape[1]
        length, device = batch.tokens.shape[1], z.device
        correction = self._correction(w)
        state = None if correction is None else correction.begin(len(z))
        tally = Tally.of(len(z), device)
        loss, sure = torch.zeros(len(z), depths, device=device), torch.zeros(len(z), depths, device=device)
        there = torch.zeros(len(z), depths, dtype=torch.bool, device=device)
        doubt = torch.zeros((), device=device)
        for d in range(depths):
            place = anchors.at + d                        # its law is about x_{s+d+1}
            inside = (place < length) & anchors.real
            place = place.clamp_max(length - 1)
            law = torch.where(inside, said.of.gather(1, place), -1).flatten()
            at = (law >= 0).nonzero()[:, 0]
            logits = linear(w, "lm_head", z[at, d]).float()
            if correction is not None and state is not None:
                token = batch.tokens.gather(1, place).flatten()
                spoken = correction.say(state, token, z[:, d])
                state = spoken.state
                if d >= correction.pure:
                    logits = logits + F.linear(spoken.code[at], correction.out).float()
                if (chance := correction.confidence(token[at], z[at, d])) is not None and len(at):
                    doubt = doubt + _doubt(chance, logits, said.law[law[at]]) / depths
            there[at, d] = True
            loss[at, d] = soft_cross_entropy(logits, said.law[law[at]])
            sure[at, d] = logits.detach().log_softmax(1).gather(1, said.next[law[at]][:, None])[:, 0].exp()
            tally.depth(at, logits, said.best[law[at]])
        weight = paced(sure, there) if self.pace else torch.tensor(decayed(depths, self.gamma), device=device) * there
        return tally.learned((weight * loss).sum() / weight.sum().clamp_min(1e-6) + doubt)

    def _correction(self, w: dict[str, torch.Tensor]) -> Markov | Recurrent | None:
        """The head along the path, if the drafter has one."""
        if not any(name.startswith(("markov_head.", "prefix_gru.")) for name in w):
            return None
        return correction_of(w, self.module.config, lambda t: F.embedding(t, self.embedding).float())

    def head(self, facts: dict[str, Any]) -> Head:
        """The trained drafter in canonical form, bf16."""
        return self.module.head(self.ids, facts)


def _doubt(chance: torch.Tensor, logits: torch.Tensor, law: torch.Tensor) -> torch.Tensor:
    """Binary cross-entropy of a confidence against the chance that a draw from q is accepted."""
    with torch.no_grad():
        wanted = 1.0 - 0.5 * (law - logits.softmax(1)).abs().sum(1)
    chance = chance.float().clamp(1e-6, 1 - 1e-6)
    return -(wanted * chance.log() + (1 - wanted) * (1 - chance).log()).mean()
