"""Fixtures every test may use, and shape checking: jaxtyping annotations of the pure packages are enforced in tests."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
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


# How long an example takes says something of the machine and of what else runs there, nothing of the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture
def rng() -> np.random.Generator:
    """Seeded numpy randomness for a test's own data."""
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def demo() -> Path:
    """The demo model as a directory, fetched and converted once into the user cache."""
    from hedgerow.models.weights import resolve

    return Path(resolve("demo"))


@pytest.fixture(scope="session")
def native_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the compiled library of this run lies: one folder for all workers of pytest-xdist, compiled once."""
    from hedgerow.systems import compiled

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "native"
    folder.mkdir(exist_ok=True)
    with FileLock(folder.with_name("native.lock")):
        if why_not := compiled.build(folder).why_not:
            pytest.skip(f"no compiled layers on this machine: {why_not}")
    return folder


@pytest.fixture(scope="session")
def library(native_folder: Path) -> ctypes.CDLL:
    """The compiled forward pass."""
    from hedgerow.systems import compiled

    built = compiled.build(native_folder).library
    assert built is not None
    return built
