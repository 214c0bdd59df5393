"""The checker behind the import hook of conftest.py: beartype, on array annotations only.

The rest is mypy's business: our seams are plain protocols, which cannot be checked at run time, and numpy's integers
are welcome where an int is asked for.
"""

import re
from collections.abc import Callable
from typing import Any

from beartype import beartype

_ARRAY = re.compile(r"\b(Float|Int|Bool|Num|Shaped|Row|Rows)\b")


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its array annotations enforced; jaxtyping binds the shape words of one call together."""
    if isinstance(function, type):
        return function
    shaped = {name: hint for name, hint in function.__annotations__.items() if _ARRAY.search(str(hint))}
    function.__annotations__ = shaped       # jaxtyping hands over a copy made for checking
    return beartype(function) if shaped else function
