"""Linear programs with a certificate: exact where one can compute by hand, refused where the certificate fails."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core.errors import InvariantError
from hedgerow.core.tree import Selection
from hedgerow.testing.law import Grown, Request, trees
from hedgerow.verify import offline
from hedgerow.verify.program import Program

masses = st.lists(st.integers(1, 9), min_size=2, max_size=5).map(lambda w: np.array(w, float) / sum(w))


@given(masses, masses)
@settings(max_examples=40, deadline=None)
def test_the_overlap_of_two_laws(p: np.ndarray, q: np.ndarray) -> None:
    """Keeping mass where it is gains one: the optimum is Σ min(p, q), the solution a coupling."""
    n = min(len(p), len(q))
    p, q = p[:n] / p[:n].sum(), q[:n] / q[:n].sum()
    program = Program(q.tolist(), p.tolist())
    for i in range(n):
        for y in range(n):
            program.column(i, float(i == y), [y], [1.0])
    best = program.solve()
    assert best.value == pytest.approx(np.minimum(p, q).sum(), abs=1e-14) and best.gap < 1e-13
    coupling = best.x.reshape(n, n)
    assert np.allclose(coupling.sum(axis=0), p, atol=1e-14) and np.allclose(coupling.sum(axis=1), q, atol=1e-14)
    assert np.all(coupling > -1e-14)


@pytest.mark.parametrize("tiny", [1e-3, 1e-9, 1e-13])
def test_masses_below_the_solvers_tolerance_count(tiny: float) -> None:
    """One unit of each tiny mass is worth as much as it weighs; HiGHS by itself calls such rows zero or infeasible."""
    program = Program([1.0 - tiny, tiny], [1.0 - 2 * tiny, 2 * tiny])
    for i in range(2):
        for y in range(2):
            program.column(i, float(i == y == 1), [y], [1.0])
    assert program.solve().value == pytest.approx(tiny, rel=1e-3)


def test_what_cannot_be_solved_or_certified_is_refused() -> None:
    lonely = Program([1.0], [0.4, 0.6])
    lonely.column(0, 1.0, [0], [1.0])
    with pytest.raises(InvariantError, match=r"of 3 rows and 1 columns was not solved \(.*nfeasible"):
        lonely.solve()
    uneven = Program([1.0], [0.5, 0.6])                   # more to receive than there is
    uneven.column(0, 1.0, [0], [1.0])
    uneven.column(0, 0.0, [1], [1.0])
    with pytest.raises(InvariantError, match=r"duality gap 0\.13, 1e-10 is allowed"):
        uneven.solve()


def test_joint_optima_of_steep_laws() -> None:
    """Logits of a real model: probabilities down to 1e-9. Shrinking them to nothing changes the optimum as little."""
    steep = np.array([1.0, 1e-5, 1e-9])
    flat = np.array([0.5, 0.3, 0.2])
    values = []
    for p in (steep / steep.sum(), np.array([1.0, 1e-5, 0.0]) / (1.0 + 1e-5)):
        request = Request(Grown.levels(2, 1, selection=Selection.IID), lambda path, p=p: p, lambda path: flat)
        values.append(offline.joint_optimum(trees(request), lambda path, p=p: p))
    assert values[0] == pytest.approx(values[1], abs=1e-8)
    assert 0.0 < values[0] <= 2.0
