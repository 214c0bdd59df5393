"""The k best ids of every row, ties to the lowest id."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.systems.rank import top_k


@given(st.integers(1, 700), st.integers(1, 40), st.integers(1, 4), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_equals_a_stable_sort(vocab: int, k: int, rows: int, levels: int, seed: int) -> None:
    logits = np.random.default_rng(seed).integers(-levels, levels, (rows, vocab)).astype(np.float32)  # many ties
    logits[0, : vocab // 2] = -np.inf
    ids, values = top_k(torch.from_numpy(logits), k)
    want = np.stack([np.lexsort((np.arange(vocab), -row))[:k] for row in logits])
    assert np.array_equal(ids.numpy(), want)
    assert np.array_equal(values.numpy(), np.take_along_axis(logits, want, 1))


def test_real_vocabulary_in_bf16_steps() -> None:
    logits = torch.randn(17, 49152, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    ids, _ = top_k(logits, 8)
    want = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :8]
    assert torch.equal(ids, want)
    assert torch.equal(ids[:, 0], logits.argmax(1)), "argmax breaks ties the same way"
