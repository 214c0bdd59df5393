"""What drafters borrow from the loaded target: its embedding and its output matrix."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float

from hedgerow.core.errors import ModelError
from hedgerow.systems.native import dense


def embedding(target: object) -> Float[torch.Tensor, "vocab hidden"]:
    """The embedding table of a target, where it is; nothing is copied.

    Raises: ModelError for a target that has none to lend.
    """
    net = _net(target)
    own = getattr(net, "embedding", None)                 # of networks that are ours
    if own is not None:
        return own
    if (decoder := getattr(net, "decoder", None)) is not None:
        return decoder.weights.embedding
    if (model := getattr(net, "model", None)) is not None:
        return _there(model.get_input_embeddings().weight, "embedding")
    raise ModelError("the drafter uses the target's embedding, and this target has none to lend")


def head(target: object) -> Float[torch.Tensor, "vocab hidden"]:
    """The output matrix of a target: the embedding where both are one, else a copy out of its packed form.

    Raises: ModelError for a target that has none to lend.
    """
    net = _net(target)
    own = getattr(net, "head", None)
    if own is not None:
        return own
    if getattr(getattr(net, "config", None), "tie_word_embeddings", False):
        return embedding(target)
    if (decoder := getattr(net, "decoder", None)) is not None:
        return dense(decoder.weights.head)
    if (model := getattr(net, "model", None)) is not None:
        module = model.get_output_embeddings()
        if (packed := getattr(module, "packed", None)) is not None:
            return packed.to_dense()
        return _there(module.weight, "output matrix")
    raise ModelError("the drafter uses the target's output matrix, and this target has none to lend")


def _net(target: object) -> Any:
    return getattr(getattr(target, "runner", None), "net", None)


def _there(weight: torch.Tensor, what: str) -> torch.Tensor:
    if weight.is_meta or not weight.numel():
        raise ModelError(f"the drafter uses the target's {what}, which is not in memory: its weights are streamed")
    return weight.detach()
