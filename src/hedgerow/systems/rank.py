"""The best tokens of every row, on the device, with ties to the lowest id."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int

_BLOCK = 64


def top_k(
    logits: Float[torch.Tensor, "rows vocab"], k: int
) -> tuple[Int[torch.Tensor, "rows k"], Float[torch.Tensor, "rows k"]]:
    """Ids and logits of the `k` best tokens of each row, best first, equal logits in order of id.

    Two rounds of a stable sort: the k best blocks of 64 ids by (maximum, block), then the k best of their ids. An id
    outside those blocks is beaten by one id in each of them, so the result is exact; a sort of the whole row would cost
    more than the step. `torch.topk` is faster still but leaves the order of equal values open.

    >>> ids, values = top_k(torch.tensor([[1.0, 3.0, 3.0, 0.0]]), 3)
    >>> ids.tolist(), values.tolist()
    ([[1, 2, 0]], [[3.0, 3.0, 1.0]])
    """
    rows, vocab = logits.shape
    k = min(k, vocab)
    blocks = -(-vocab // _BLOCK)
    if blocks <= k:
        values, ids = torch.sort(logits, dim=1, descending=True, stable=True)
        return ids[:, :k], values[:, :k]
    if vocab % _BLOCK:
        logits = torch.nn.functional.pad(logits, (0, blocks * _BLOCK - vocab), value=float("-inf"))
    tiles = logits.view(rows, blocks, _BLOCK)
    best = torch.sort(tiles.amax(2), dim=1, descending=True, stable=True).indices[:, :k].sort(1).values
    near = tiles.gather(1, best[:, :, None].expand(rows, k, _BLOCK)).reshape(rows, k * _BLOCK)
    values, order = torch.sort(near, dim=1, descending=True, stable=True)
    order, values = order[:, :k], values[:, :k]
    return best.gather(1, order // _BLOCK) * _BLOCK + order % _BLOCK, values


def ranks_of(logits: Float[torch.Tensor, "rows vocab"], k: int) -> Float[torch.Tensor, "rows ranks"]:
    """Best id, then `k` best ids and their logits, as float32 (exact for ids below 2^24): one tensor to transfer.

    >>> ranks_of(torch.tensor([[1.0, 3.0, 2.0]]), 2).tolist()
    [[1.0, 1.0, 2.0, 3.0, 2.0]]
    """
    if not len(logits):                   # a chunk inside a prompt
        return logits.new_zeros(0, 1 + 2 * min(k, logits.shape[1]))
    if not k:
        return logits.argmax(1, keepdim=True).float()
    ids, values = top_k(logits, k)
    return torch.cat([ids[:, :1].float(), ids.float(), values], 1)
