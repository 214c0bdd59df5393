"""Training an EAGLE-3 head: training-time test over cached features.

Row j of step k reads token x_{j+1+k} and learns p(x_{j+2+k} | x_{≤j+1+k}). In step 0 its feature is the target's at
position j, later the head's own output of the step before. It sees the keys of step 0 up to its own row, and of every
later step its own row's: what it will see when it drafts k tokens behind position j.

Source: EAGLE-3 (2503.01840), training-time test; differs from the paper in that the head's output layer starts as the
target's rows and the layer as one of the target's, and in the mask, which asks for the written token to be in the
drafter's vocabulary instead of the target's best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import nn
from torch.nn import functional as F

from hedgerow.draft.formats.head import Head, HeadConfig
from hedgerow.draft.nets.rotary import Rotary
from hedgerow.train.data import Batch
from hedgerow.train.losses import TreeReward, soft_cross_entropy, top_k_cross_entropy
from hedgerow.train.parts import Learned, Tally

Turn = Callable[[torch.Tensor], torch.Tensor]      # [texts, heads, len, dim] -> the same, rotated by position

class Norm(nn.Module):
    """Root-mean-square norm in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x / √(mean x² + ε) · w."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention whose input may be wider than its output."""

    def __init__(self, c: HeadConfig, width: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = c.heads, c.kv_heads, c.head_dim
        self.q_proj = nn.Linear(width, c.heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(width, c.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(width, c.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden, bias=False)

    def forward(
        self, x: torch.Tensor, turn: Turn, keys: list[torch.Tensor], values: list[torch.Tensor], mask: torch.Tensor
    ) -> torch.Tensor:
        """Attend to the keys of all steps so far and this one's, which are added to the lists."""
        n, rows = x.shape[:2]

        def heads(y: torch.Tensor, count: int) -> torch.Tensor:
            return y.view(n, rows, count, self.dim).transpose(1, 2)

        q = turn(heads(self.q_proj(x), self.heads))
        fold = self.heads // self.kv_heads
        keys.append(turn(heads(self.k_proj(x), self.kv_heads)).repeat_interleave(fold, 1))
        values.append(heads(self.v_proj(x), self.kv_heads).repeat_interleave(fold, 1))
        y = F.scaled_dot_product_attention(q, torch.cat(keys, 2), torch.cat(values, 2), attn_mask=mask)
        out: torch.Tensor = self.o_proj(y.transpose(1, 2).reshape(n, rows, -1))
        return out


class MLP(nn.Module):
    """down(SiLU(gate x) · up x)."""

    def __init__(self, c: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden, c.inner, bias=False)
        self.up_proj = nn.Linear(c.hidden, c.inner, bias=False)
        self.down_proj = nn.Linear(c.inner, c.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As above."""
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A decoder layer; the first of a head reads the token's embedding beside the feature."""

    def __init__(self, c: HeadConfig, first: bool) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)
        if first:
            self.hidden_norm = Norm(c.hidden, c.eps)
        self.self_attn, self.mlp = Attention(c, c.hidden * (2 if first else 1)), MLP(c)


class EagleModule(nn.Module):
    """The trainable tensors of a head under their canonical names, and its forward pass over whole texts."""

    def __init__(self, c: HeadConfig) -> None:
        super().__init__()
        self.config = c
        self.fc = nn.Linear(len(c.taps) * c.target_hidden, c.hidden, bias=False)
        self.layers = nn.ModuleList(Layer(c, i == 0) for i in range(c.layers))
        self.norm = Norm(c.hidden, c.eps)
        self.lm_head = nn.Linear(c.hidden, c.draft_vocab, bias=False)
        self._rotary: Rotary | None = None

    def turn(self, start: int, rows: int, device: torch.device) -> Turn:
        """The rotation of `rows` positions from `start`, as the drafter turns them; in float32."""
        if self._rotary is None or self._rotary.device != device:
            self._rotary = Rotary(self.config, torch.float32, device)
        rotary = self._rotary
        rotary.reach(start + rows)
        angles = rotary.at(torch.arange(start, start + rows, device=device))
        return lambda x: rotary.turn(x, *angles).to(x.dtype)

    def step(
        self, e: torch.Tensor, g: torch.Tensor, k: int, state: list[tuple[list[torch.Tensor], list[torch.Tensor]]],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """One step of all rows: embeddings e and features g [texts, len, hidden] -> the state to feed back."""
        r = g
        turn = self.turn(k, e.shape[1], e.device)
        layers: Any = self.layers
        for i, layer in enumerate(layers):
            x = layer.input_layernorm(e if i == 0 else r)
            if i == 0:
                x = torch.cat([x, layer.hidden_norm(g)], -1)
            r = r + layer.self_attn(x, turn, *state[i], mask)
            r = r + layer.mlp(layer.post_attention_layernorm(r))
        return r


@dataclass
class Eagle3:
    """The training method: a module, the frozen parts of the target it needs, and how steps are weighed.

    `decay` weighs step k by decay^k. `align` adds HASS's top-k term with that weight, `tree_reward` takes off GTO's
    reward of the unrolled steps with its own.
    """

    module: EagleModule
    embedding: Float[torch.Tensor, "vocab hidden"]
    teacher: Float[torch.Tensor, "draft_vocab hidden"]        # the target's output rows of the drafter's vocabulary
    ids: Int[torch.Tensor, " draft_vocab"]
    steps: int = 3
    decay: float = 0.8
    align: float = 0.0
    tree_reward: float = 0.0
    name: str = "eagle3"

    def learn(self, batch: Batch) -> Learned:
        """Loss of a batch, differentiable, with the counts of `Learned`."""
        m, c = self.module, self.module.config
        n, rows = batch.tokens.shape
        device = batch.tokens.device
        own = torch.full((len(self.embedding),), -1, dtype=torch.int64, device=device)
        own[self.ids] = torch.arange(len(self.ids), device=device)
        with torch.no_grad():
            wanted = batch.loss.clone()                            # positions whose law is learned: x_{j+1} is ours
            wanted[:, :-1] &= own[batch.tokens[:, 1:]] >= 0
            at = wanted.flatten().nonzero()[:, 0]
            p = F.linear(batch.last.flatten(0, 1)[at].to(self.teacher.dtype), self.teacher).float().softmax(1)
            best = p.argmax(1)
            of = torch.full((n * rows,), -1, dtype=torch.int64, device=device)
            of[at] = torch.arange(len(at), device=device)
            of = of.view(n, rows)
        g = m.fc(batch.taps.float()).float()
        state: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = [([], []) for _ in m.layers]
        causal = torch.ones(rows, rows, dtype=torch.bool, device=device).tril()
        self_only = torch.eye(rows, dtype=torch.bool, device=device)
        total = torch.zeros((), device=device)
        tally = Tally.of(n * rows, device)
        reward = TreeReward.of(n * rows, device)
        for k in range(self.steps):
            mask = torch.cat([causal, *([self_only] * k)], 1)
            tokens = F.pad(batch.tokens[:, 1 + k :], (0, 1 + k))
            e = F.embedding(tokens, self.embedding).float() * c.embedding_scale
            g = m.step(e, g, k, state, mask)
            place = F.pad(of[:, 1 + k :], (0, 1 + k), value=-1)    # row j learns the law of position j + 1 + k
            flat = place.flatten()
            learned = (flat >= 0).nonzero()[:, 0]
            z = m.lm_head(m.norm(g).flatten(0, 1)[learned])
            law = p[flat[learned]]
            per = soft_cross_entropy(z, law)
            if self.align:
                per = per + self.align * top_k_cross_entropy(z, law, 10)
            if len(learned):
                total = total + self.decay**k * per.mean()
                if self.tree_reward:
                    reward.depth(learned, z, law)
            tally.depth(learned, z, best[flat[learned]])
            if c.norm_output:
                g = m.norm(g)
        return tally.learned(total - self.tree_reward * reward.mean)

    def head(self, facts: dict[str, Any]) -> Head:
        """The trained head in canonical form, bf16."""
        tensors = {k: v.detach().bfloat16().cpu().clone() for k, v in self.module.state_dict().items()}
        c = self.module.config
        return Head(c, tensors, self.ids.cpu() if c.draft_vocab < c.vocab else None, "own", facts)
