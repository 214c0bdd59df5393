"""What tests of models, systems and targets share: groups of rows, steps on a target, tiny model directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hedgerow.core.parts import Feats, Needs, RowGroup
from hedgerow.core.tree import TokenTree
from hedgerow.models.runner import Ran
from hedgerow.systems.kv import KVStore
from hedgerow.target.lm import LMTarget


def prompt_group(slot: int, tokens: Sequence[int], start: int = 0) -> RowGroup:
    """A prefill group."""
    n = len(tokens)
    return RowGroup("prefill", slot, np.array(tokens), np.arange(start, start + n), np.empty((n, 0), np.bool_))


def tree_group(slot: int, root: int, position: int, tree: TokenTree) -> RowGroup:
    """The group of a step."""
    return RowGroup("tree", slot, np.concatenate([[root], tree.tokens]), tree.positions(position), tree.mask)


def call(target: LMTarget, groups: Sequence[RowGroup], needs: Needs | None = None) -> tuple[Ran, list[Feats]]:
    """Submit and collect."""
    return target.collect(target.submit(groups, needs or Needs()))


def prefill(target: LMTarget, tokens: Sequence[int]) -> int:
    """A slot that holds these tokens."""
    slot = target.acquire()
    call(target, [prompt_group(slot, tokens)])
    target.commit(slot, range(len(tokens)))
    return slot


def plain(target: LMTarget, slot: int, root: int, position: int) -> np.ndarray:
    """The logits of a plain step, which is committed."""
    rows, _ = call(target, [tree_group(slot, root, position, TokenTree.empty())])
    target.commit(slot, [0])
    return rows.logits(0, 0)


def held(kv: KVStore, slot: int, places: int) -> torch.Tensor:
    """[2 · layers, kv_heads, places, head_dim]: what stands in the first places of a slot."""
    seen = kv.read(slot, places)
    return torch.stack([seen.tensor(side)[:, :places] for side in range(2 * kv.layers)])


def random_tree(rng: np.random.Generator, nodes: int, vocab: int) -> TokenTree:
    """A tree whose nodes hang anywhere, in a random topological order."""
    parents = [int(rng.integers(-1, i)) for i in range(nodes)]
    return TokenTree.of(rng.integers(0, vocab, nodes), parents)


def scattered(path: Sequence[int], rows: int, rng: np.random.Generator, vocab: int) -> tuple[TokenTree, list[int]]:
    """A tree of `rows` rows with this path in it at random places among other nodes, and the rows of the path."""
    places = sorted(rng.choice(np.arange(rows - 1), len(path), replace=False).tolist())
    tokens, parent = rng.integers(0, vocab, rows - 1), np.full(rows - 1, -1)
    for i in range(1, rows - 1):
        parent[i] = rng.integers(-1, i)
    above = -1
    for place, token in zip(places, path, strict=True):
        tokens[place], parent[place], above = token, above, place
    return TokenTree.of(tokens, parent), [p + 1 for p in places]


def write_llama(path: Path, seed: int = 0, model: str = "llama", save: bool = True, **options: Any) -> Path:
    """A random model of two layers as transformers saves it (`save=False`: its configuration alone)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from hedgerow.models.convert import quiet

    config = AutoConfig.for_model(model, **{
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, **options,
    })
    torch.manual_seed(seed)
    with quiet():
        if save:
            AutoModelForCausalLM.from_config(config).save_pretrained(path)
        else:
            config.save_pretrained(path)
    return path
