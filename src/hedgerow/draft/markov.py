"""Block drafters whose marginals are corrected along a path: DSpark's Markov heads, Domino's recurrent one.

A pass over the block gives a state z and base logits for every depth. What a node's own token and its path say is a
short vector, its code; the children's logits are base + code · Uᵀ.

    Markov vanilla   code = E[y]
           gated     code = σ(G [z; E[y]]) ⊙ E[y]
           rnn       (g, c, o) = J [s; E[y]; z],  s ← σ(g) s + (1 − σ(g)) tanh c,  code = tanh o
    Domino           s ← GRU(e(y), s),  code = SiLU(P [z; s])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int

from hedgerow.core.errors import ModelError
from hedgerow.draft.layers import Tensors, linear

Embed = Callable[[Int[torch.Tensor, " nodes"]], Float[torch.Tensor, "nodes hidden"]]


class Said(NamedTuple):
    """What nodes say about their children: the state their own children start from, and their codes."""

    state: Float[torch.Tensor, "nodes width"]
    code: Float[torch.Tensor, "nodes rank"]


class Correction(Protocol):
    """A correction of a block's marginals along a path. `width`: of the state a path carries; `out`: U.

    `pure`: how many of the first depths keep their marginals.
    """

    width: int
    pure: int
    out: Float[torch.Tensor, "draft_vocab rank"]

    def begin(self, nodes: int) -> Float[torch.Tensor, "nodes width"]:
        """The state before a root's token."""

    def say(
        self, state: Float[torch.Tensor, "nodes width"], tokens: Int[torch.Tensor, " nodes"],
        z: Float[torch.Tensor, "nodes hidden"],
    ) -> Said:
        """After nodes with these tokens, whose children stand at the depth of z; `state` is that of their parents."""

    def confidence(
        self, tokens: Int[torch.Tensor, " nodes"], z: Float[torch.Tensor, "nodes hidden"]
    ) -> Float[torch.Tensor, " nodes"] | None:
        """The chance that a child drawn from the corrected law is accepted; None where nothing was trained for it."""


class Markov:
    """DSpark's low-rank heads over the parent's token, and its confidence.

    Source: DSpark (2607.05147); restricted to candidates on trees as TreeSpark (2609.22098) does.
    """

    pure = 0

    def __init__(self, w: Tensors, kind: Literal["", "vanilla", "gated", "rnn"]) -> None:
        self.w, self.kind = w, kind or "vanilla"
        self.table, self.out = w["markov_head.markov_w1.weight"], w["markov_head.markov_w2.weight"]
        self.width = self.table.shape[1] if self.kind == "rnn" else 0

    def begin(self, nodes: int) -> Float[torch.Tensor, "nodes width"]:
        """Zeros."""
        return self.table.new_zeros(nodes, self.width)

    def say(
        self, state: Float[torch.Tensor, "nodes width"], tokens: Int[torch.Tensor, " nodes"],
        z: Float[torch.Tensor, "nodes hidden"],
    ) -> Said:
        """As the head of the file says."""
        own = F.embedding(tokens, self.table)
        if self.kind == "vanilla":
            return Said(state, own)
        if self.kind == "gated":
            return Said(state, linear(self.w, "markov_head.gate_proj", torch.cat([z, own], -1)).sigmoid() * own)
        gate, fresh, out = linear(self.w, "markov_head.joint_proj", torch.cat([state, own, z], -1)).chunk(3, -1)
        gate = gate.sigmoid()
        return Said(gate * state + (1 - gate) * fresh.tanh(), out.tanh())

    def confidence(
        self, tokens: Int[torch.Tensor, " nodes"], z: Float[torch.Tensor, "nodes hidden"]
    ) -> Float[torch.Tensor, " nodes"] | None:
        """σ(w · [z; E[y]]), or of z alone, as the tensor's width says."""
        weight = self.w.get("confidence_head.proj.weight")
        if weight is None:
            return None
        x = z if weight.shape[1] == z.shape[-1] else torch.cat([z, F.embedding(tokens, self.table)], -1)
        return linear(self.w, "confidence_head.proj", x)[..., 0].float().sigmoid()


class Recurrent:
    """Domino's head: a GRU over the path's embeddings, a bottleneck, a product.

    Source: Domino (2605.29707); on trees DominoTree (2607.08642) and DARTree (2608.13524).
    """

    def __init__(self, w: Tensors, embed: Embed, pure: int) -> None:
        self.embed, self.pure = embed, pure
        self.enter, self.turn = w["prefix_gru.weight_ih_l0"], w["prefix_gru.weight_hh_l0"]
        self.narrow, self.out = w["embed_proj.0.weight"], w["embed_proj.2.weight"]
        self.width = self.turn.shape[1]

    def begin(self, nodes: int) -> Float[torch.Tensor, "nodes width"]:
        """Zeros."""
        return self.turn.new_zeros(nodes, self.width)

    def say(
        self, state: Float[torch.Tensor, "nodes width"], tokens: Int[torch.Tensor, " nodes"],
        z: Float[torch.Tensor, "nodes hidden"],
    ) -> Said:
        """One step of the GRU (gates r, z, n; no biases), then SiLU(P [z; s])."""
        reset, update, new = F.linear(self.embed(tokens), self.enter).chunk(3, -1)
        r, u, n = F.linear(state, self.turn).chunk(3, -1)
        update = (update + u).sigmoid()
        fresh = (new + (reset + r).sigmoid() * n).tanh()
        state = (1 - update) * fresh + update * state
        return Said(state, F.silu(F.linear(torch.cat([z, state], -1), self.narrow)))

    def confidence(
        self, tokens: Int[torch.Tensor, " nodes"], z: Float[torch.Tensor, "nodes hidden"]
    ) -> Float[torch.Tensor, " nodes"] | None:
        """None: Domino has none."""
        return None


def correction_of(w: Tensors, config: Any, embed: Embed) -> Markov | Recurrent:
    """The correction whose tensors a drafter has.

    Raises: ModelError for a drafter without one.
    """
    if "markov_head.markov_w1.weight" in w:
        return Markov(w, config.markov)
    if "prefix_gru.weight_ih_l0" in w:
        return Recurrent(w, embed, config.pure)
    raise ModelError(f"the {config.kind} drafter has no correction: neither markov_head.* nor prefix_gru.* is there")
