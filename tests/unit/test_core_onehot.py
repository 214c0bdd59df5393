"""core.probs.OneHot: a law that names its only token is drawn from and checked like the plain row it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.core.probs import OneHot
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection
from hedgerow.verify.residual import checked


@pytest.mark.parametrize("token", [0, 2, 3])
def test_it_is_drawn_and_judged_like_a_plain_row(token: int) -> None:
    row, plain, flat = OneHot.of(token, 4), np.eye(4)[token], np.full(4, 0.25)
    assert checked(row, "the row") is row
    tree = TokenTree.of([2], [-1], selection=Selection.IID)
    for seed in range(20):
        assert Rng(seed).categorical(row, seed) == Rng(seed).categorical(plain, seed) == token
        for rule in (Match(), Rejection()):
            one, other = (rule.verify(tree, lambda v, p=p: p, lambda v, s: flat, Rng(seed), 5) for p in (row, plain))
            assert one == other and one.path == ((0,) if token == 2 else ())
