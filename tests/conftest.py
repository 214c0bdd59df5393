"""Fixtures every test may use, and shape checking: jaxtyping annotations of the pure packages are enforced in tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jaxtyping import install_import_hook

from tests import shapes  # noqa: F401  (the hook below looks it up by name)

# Before anything of ours is imported: from here on a wrong shape or dtype in these modules is an error. Not core.tree,
# core.rng and the rules: the law tests enumerate millions of their calls, which checking would make six times slower.
install_import_hook(
    [
        *(f"hedgerow.core.{name}" for name in ("parts", "probs", "select", "shape", "recipe", "record")),
        *(f"hedgerow.verify.{name}" for name in ("lossy", "offline", "selection", "theory")),
        "hedgerow.policy", "hedgerow.topology",
    ],
    "tests.shapes.check",
)


@pytest.fixture
def rng() -> np.random.Generator:
    """Seeded numpy randomness for a test's own data."""
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def demo() -> Path:
    """The demo model as a directory, fetched and converted once into the user cache."""
    from hedgerow.models.weights import resolve

    return Path(resolve("demo"))
