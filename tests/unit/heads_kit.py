"""Synthetic learned drafters for the tiny target: random tensors of every kind's canonical names and shapes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from hedgerow.draft.base import Base
from hedgerow.draft.formats.head import Head, HeadConfig, Kind
from hedgerow.draft.formats.kinds import KINDS
from hedgerow.target.lm import LMTarget

BLOCKS: dict[str, Any] = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "inner": 96, "block": 6}


def config(target: LMTarget, kind: Kind, draft_vocab: int | None = None, **options: Any) -> HeadConfig:
    """A small drafter's facts, as wide as the target."""
    vocab, hidden = target.info.vocab, Base.of(target).hidden
    own: dict[str, Any] = {"count": 4, "depth": 1} if kind in ("medusa", "hydra") else {**BLOCKS, "mask_token": 1}
    if kind not in ("medusa", "hydra"):
        own["taps"] = (0, 1)
    if kind == "hydra":
        own |= {"arch": "mlp", "heads": 4, "kv_heads": 2, "head_dim": 16, "inner": 96}
    if kind == "dspark":
        own |= {"markov": "vanilla", "rank": 8, "from_anchor": True}
    if kind == "domino":
        own |= {"gru": 12, "bottleneck": 10, "pure": 1}
    return HeadConfig(
        kind=kind, hidden=hidden, target_hidden=hidden, vocab=vocab, draft_vocab=draft_vocab or vocab,
        max_len=16, **{**own, **options},
    )


def synthetic(
    target: LMTarget, kind: Kind, draft_vocab: int | None = None, seed: int = 0, extra: tuple[str, ...] = (),
    **options: Any,
) -> Head:
    """A head of random tensors; `extra` names optional ones that it has too. Norm weights are near 1."""
    c = config(target, kind, draft_vocab, **options)
    source = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, want in KINDS[kind](c, extra).items():
        if not want.required and name not in extra:
            continue
        shape = want.shape or (1, c.hidden + c.rank)      # of a confidence head that reads the token too
        noise = torch.randn(*shape, generator=source)
        norm = "norm" in name and len(shape) == 1
        tensors[name] = 1 + 0.1 * noise if norm else noise * (3.0 / math.sqrt(shape[-1]))
    ids = None
    if c.draft_vocab != c.vocab:
        ids = torch.randperm(c.vocab, generator=source)[: c.draft_vocab].sort().values
    return Head(c, tensors, ids)


def changed(head: Head, **options: Any) -> Head:
    """The same tensors under other facts."""
    return replace(head, config=replace(head.config, **options))
