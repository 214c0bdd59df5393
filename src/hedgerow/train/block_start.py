"""Where block drafters begin: the target's layers, a token nobody drafts as the mask, a correction that is zero."""

from __future__ import annotations

from typing import Any

import torch

from hedgerow.draft.formats.kinds import KINDS
from hedgerow.train.block import Blocks
from hedgerow.train.named import Named
from hedgerow.train.start import NOISE, TargetWeights

RANK = 64                                  # of a Markov head
STATE, BOTTLENECK = 256, 64                # of Domino's head
_CONFIDENCE = ("confidence_head.proj.weight", "confidence_head.proj.bias")
FACTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {      # per kind: facts of its own, optional tensors it has
    "dflash": ({}, ()),
    "dspark": ({"markov": "vanilla", "rank": RANK}, _CONFIDENCE),
    "domino": ({"gru": STATE, "bottleneck": BOTTLENECK, "pure": 1}, ()),
}


def unused(ids: torch.Tensor, vocab: int) -> int:
    """The lowest token outside the drafter's vocabulary, in most models a reserved one; the last where all are inside.

    >>> unused(torch.tensor([0, 1, 3]), 5), unused(torch.arange(5), 5)
    (2, 4)
    """
    inside = torch.zeros(vocab, dtype=torch.bool)
    inside[ids] = True
    return int((~inside).nonzero()[0]) if len(ids) < vocab else vocab - 1


def begun(
    target: TargetWeights, ids: torch.Tensor, taps: tuple[int, ...], device: torch.device, kind: Any, drafts: int,
    layers: int, seed: int = 0, **options: Any,
) -> Blocks:
    """A block drafter of `drafts` depths whose layers begin as the target's last ones.

    Keys and values of the text come from the last tap, through that layer's own products.
    """
    more, extra = FACTS[kind]
    mask = unused(ids, len(target.embedding))
    config = target.head_config(kind, len(ids), taps=taps, layers=layers, block=drafts + 1, mask_token=mask, **more)
    rng = torch.Generator().manual_seed(seed)
    count, h = int(target.config.num_hidden_layers), config.hidden
    names = (*extra, "lm_head.weight")
    tensors: dict[str, torch.Tensor] = {}
    for name, want in KINDS[config.kind](config, names).items():
        if not want.required and name not in names:
            continue
        shape = want.shape or (1, h + config.rank)       # the confidence's, which reads the token too
        tensors[name] = torch.ones(shape) if "norm" in name and len(shape) == 1 else torch.zeros(shape)
        if len(shape) > 1:
            tensors[name].normal_(std=NOISE, generator=rng)
        if name.startswith("layers."):
            _, i, rest = name.split(".", 2)
            source = target.tensors.get(f"model.layers.{count - layers + int(i)}.{rest}")
            if source is not None and source.shape == shape:
                tensors[name] = source.float()
    fc = tensors["fc.weight"]
    fc.div_(len(taps))
    fc[:, -config.target_hidden :] += torch.eye(h, config.target_hidden)
    tensors["norm.weight"] = target.tensors["model.norm.weight"].float()
    tensors["hidden_norm.weight"] = target.tensors[f"model.layers.{count - layers}.input_layernorm.weight"].float()
    tensors["lm_head.weight"] = target.output[ids].float()
    for name in ("markov_head.markov_w2.weight", "embed_proj.2.weight", "confidence_head.proj.weight"):
        if name in tensors:
            tensors[name].zero_()
    for name in ("markov_head.markov_w1.weight", "prefix_gru.weight_ih_l0", "prefix_gru.weight_hh_l0"):
        if name in tensors:
            tensors[name].normal_(std=tensors[name].shape[1] ** -0.5, generator=rng)
    return Blocks(
        Named(config, tensors).to(device), target.embedding.to(device), target.output[ids].contiguous().to(device),
        ids.to(device), name=kind, seed=seed, **options,
    )
