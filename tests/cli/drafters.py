"""Drafters of random weights with the sizes of the model that writes a cycle."""

from __future__ import annotations

import torch

from hedgerow.draft.formats import Head, HeadConfig
from tests.unit.eagle_kit import random_head

SIZE = 272                                # of that model: hidden and vocabulary


def eagle() -> Head:
    """An EAGLE-3 head with the model's sizes and a vocabulary of its own."""
    small = random_head("eagle3", SIZE, draft_vocab=100, taps=(0, 1))
    wide = {64: SIZE, 128: 2 * SIZE}
    rows = {"q_proj": 64, "k_proj": 32, "v_proj": 32}
    tensors = {}
    for name, t in small.tensors.items():
        shape = [wide.get(n, n) for n in t.shape]
        for part, n in rows.items():
            shape[0] = n if part in name else shape[0]
        if "o_proj" in name:
            shape[1] = 64
        tensors[name] = torch.randn(shape, generator=torch.Generator().manual_seed(len(tensors))).bfloat16()
    c = small.config
    config = HeadConfig(
        "eagle3", SIZE, SIZE, SIZE, 100, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, inner=c.inner,
        taps=(0, 1),
    )
    return Head(config, tensors, small.ids, facts={"seed": 3})


def medusa() -> Head:
    """One Medusa head."""
    tensors = {"heads.0.blocks.0.weight": torch.zeros(SIZE, SIZE), "heads.0.blocks.0.bias": torch.zeros(SIZE),
               "heads.0.lm_head.weight": torch.eye(SIZE)}
    return Head(HeadConfig("medusa", SIZE, SIZE, SIZE, SIZE, count=1, depth=1), tensors)
