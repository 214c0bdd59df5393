"""core.probs: from logits to a law."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hedgerow.core.parts import Sampling
from hedgerow.core.probs import OneHot, entropy, filtered_ids, law, log_law
from hedgerow.core.rng import Rng

LOGITS = np.log(np.array([0.1, 0.4, 0.4, 0.05, 0.05]))


def support(**sampling: float) -> list[int]:
    return np.flatnonzero(law(LOGITS, Sampling(temperature=1.0, **sampling))).tolist()  # type: ignore[arg-type]


def test_temperature() -> None:
    assert np.allclose(law(LOGITS, Sampling(temperature=1.0)), np.exp(LOGITS))
    cold = law(LOGITS, Sampling(temperature=0.5))
    assert np.allclose(cold, np.exp(2 * LOGITS) / np.exp(2 * LOGITS).sum())
    assert law(LOGITS, Sampling()).tolist() == [0, 1, 0, 0, 0], "a tie goes to the lowest id"
    assert law((LOGITS + 700).astype(np.float32), Sampling(temperature=1e-3)).sum() == pytest.approx(1.0)


def test_filters_and_their_ties() -> None:
    assert support(top_k=1) == [1] and support(top_k=4) == [0, 1, 2, 3] and support(top_k=99) == [0, 1, 2, 3, 4]
    assert support(top_p=0.4) == [1] and support(top_p=0.41) == [1, 2] and support(top_p=0.95) == [0, 1, 2, 3]
    assert support(min_p=0.2) == [0, 1, 2] and support(min_p=1.0) == [1, 2]
    assert support(top_k=3, top_p=0.85) == [1, 2], "top-p counts what top-k left"
    assert support(top_k=4, min_p=0.2) == [0, 1, 2]


def test_filtered_laws_sum_to_one() -> None:
    p = law(LOGITS, Sampling(temperature=1.0, top_p=0.85))
    assert p.sum() == pytest.approx(1.0) and p[1] == pytest.approx(0.4 / 0.9)


def test_top_p_over_a_large_vocabulary(rng: np.random.Generator) -> None:
    """More ids than the first head that is sorted."""
    logits = rng.standard_normal(5000) * 0.01
    for top_p in (0.1, 0.6, 0.999):
        scaled = logits - logits.max()
        found = filtered_ids(scaled, Sampling(temperature=1.0, top_p=top_p))
        order = np.lexsort((np.arange(5000), -scaled))
        mass = np.cumsum(np.exp(scaled[order])) / np.exp(scaled).sum()
        assert found.tolist() == order[: int(np.searchsorted(mass, top_p)) + 1].tolist()


def test_impossible_tokens() -> None:
    p = law(np.array([0.0, -np.inf, 0.0]), Sampling(temperature=1.0))
    assert p.tolist() == [0.5, 0.0, 0.5]
    assert law(np.array([0.0, -np.inf, 1.0]), Sampling(temperature=1.0, top_p=0.999999)).tolist()[1] == 0.0


@pytest.mark.parametrize("logits", [[0.0, np.nan], [np.inf, 0.0], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_numbers_no_law(logits: list[float], temperature: float) -> None:
    with pytest.raises(ValueError, match="no numbers, or every token is barred"):
        law(np.array(logits), Sampling(temperature=temperature))


def test_reported_log_probabilities_and_entropy() -> None:
    assert np.allclose(np.exp(log_law(LOGITS * 1.0 + 3)).sum(), 1.0)
    assert entropy(np.array([0.5, 0.5, 0.0])) == pytest.approx(math.log(2)) and entropy(np.array([1.0])) == 0.0


def test_a_law_of_one_token_is_that_row_and_says_which() -> None:
    row, dense = OneHot.of(2, 5), np.eye(5)[2]
    assert np.array_equal(row, dense) and row.token == 2
    for derived in (row.copy(), row[1:], row * 1.0, np.asarray(row)):
        assert getattr(derived, "token", None) is None          # nothing says of them what may not hold
    with pytest.raises(ValueError, match="read-only"):
        row[2] = 0.0
    assert Rng(3).categorical(row, 7) == Rng(3).categorical(dense, 7) == 2
    changed = row.copy()
    changed[2], changed[4] = 0.0, 1.0
    assert Rng(3).categorical(changed, 7) == 4
