"""The one form in which a learned drafter lives in memory, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from hedgerow.core.parts import Needs

Kind = Literal[
    "eagle1", "eagle3", "peagle", "mtp", "medusa", "hydra", "dflash", "dflash2", "dspark", "domino", "falcon"
]


@dataclass(frozen=True)
class HeadConfig:
    """What a drafter's tensors do not say. `taps` are transformers' hidden_states indices: `k` is the input of layer k.

    `vocab` and `target_hidden` are the target's, `draft_vocab` and `hidden` the drafter's own.
    """

    kind: Kind
    hidden: int
    target_hidden: int
    vocab: int
    draft_vocab: int
    layers: int = 1
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    inner: int = 0
    eps: float = 1e-5
    rope_theta: float = 10000.0           # of the file; never the target's
    rope_scaling: dict[str, Any] | None = None
    max_len: int = 2048
    taps: tuple[int, ...] = ()            # (): the drafter reads the last hidden state, after the final norm
    # EAGLE-3 and its relatives
    norm_before_residual: bool = False    # the residual is the normed feature
    norm_before_fc: bool = False          # one norm over the concatenated taps: input_norm.weight
    fc_norm: bool = False                 # one norm a tap: fc_norm.{i}.weight
    norm_output: bool = False             # the state fed back is the normed one
    embedding_scale: float = 1.0          # of the target's embedding, where it has one
    norm_input: bool = False              # EAGLE-1: layer 0 norms what fc made; else it reads that as it is
    # blocks: DFlash, DSpark, Domino, P-EAGLE
    block: int = 0                        # slots of a block
    mask_token: int | None = None
    from_anchor: bool = False             # slot 0 already predicts; else slot 0 is the anchor and its output unused
    causal: bool = False                  # attention within the block, in every layer
    window_causal: bool = False           # the same, in the layers that have a window
    windows: tuple[int | None, ...] = ()  # sliding window a layer; () = none
    markov: Literal["", "vanilla", "gated", "rnn"] = ""
    rank: int = 0                         # of the Markov head
    pure: int = 0                         # Domino: leading slots without correction
    gru: int = 0                          # Domino: width of its state
    bottleneck: int = 0                   # Domino
    # heads: Medusa, Hydra
    count: int = 0                        # heads
    depth: int = 0                        # residual blocks a head
    arch: Literal["", "mlp", "prefix-mlp"] = ""

    @property
    def needs(self) -> Needs:
        """What the target must return for it."""
        return Needs(taps=self.taps) if self.taps else Needs(last_hidden=True)


@dataclass(frozen=True)
class Head:
    """A learned drafter: its facts and its tensors under canonical names.

    `formats.kinds` lists the canonical names and shapes of every kind: those of the vLLM speculators layouts without a
    `model.` prefix (`layers.{i}.self_attn.q_proj.weight`, `fc.weight`, `norm.weight`, `lm_head.weight`,
    `embed_tokens.weight` where the drafter has its own), `heads.{i}.…` for Medusa and Hydra, `mtp_layers.{i}.…`, and
    the published names of Markov, GRU, LSTM and confidence parts. `ids` [draft_vocab] are the target's token ids of
    the drafter's own, strictly increasing; None where both vocabularies are one.
    """

    config: HeadConfig
    tensors: dict[str, torch.Tensor]
    ids: torch.Tensor | None = None
    origin: str = "own"                   # layout it was read from
    facts: dict[str, Any] = field(default_factory=dict)   # what a model card says: data, seed, figures
