"""Law tests ask the research rules for the same programs thousands of times: solve each once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hedgerow.verify import selection, transport


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its answers kept, by the bytes of its array arguments."""
    known: dict[tuple[Any, ...], Any] = {}

    def call(*args: Any) -> Any:
        key = tuple(a.tobytes() if isinstance(a, np.ndarray) else repr(a) for a in args)
        if key not in known:
            known[key] = function(*args)
        return known[key]

    return call


@pytest.fixture(autouse=True, scope="package")
def solved_once() -> Any:
    """Keep the answers of the linear and convex programs."""
    patch = pytest.MonkeyPatch()
    patch.setattr(selection, "global_resolution", remembered(selection.global_resolution))
    patch.setattr(selection, "canonical_weights", remembered(selection.canonical_weights))
    patch.setattr(transport, "kseq", remembered(transport.kseq))
    patch.setattr(transport, "spechub", remembered(transport.spechub))
    yield
    patch.undo()
