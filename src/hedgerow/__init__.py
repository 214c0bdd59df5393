"""hedgerow: tree-based speculative decoding whose tree is a runtime decision. Importing it imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hedgerow.api import Result, Session, generate, load

__all__ = ["Result", "Session", "__version__", "generate", "load"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("Result", "Session", "generate", "load"):
        from hedgerow import api

        return getattr(api, name)
    raise AttributeError(f"module 'hedgerow' has no attribute {name!r}")
