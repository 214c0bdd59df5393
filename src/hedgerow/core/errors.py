"""Every error a user can meet, as one hierarchy.

::

    HedgerowError            exit 1   something went wrong: what happened, the value, what is allowed, what to do
    ├── UsageError           exit 2   the call was wrong
    │   ├── UnknownName      exit 2   a name that is not known (with a did-you-mean)
    │   └── RecipeError      exit 2   parts that do not fit together
    ├── ModelError           exit 1   a model, tokenizer or drafter cannot be loaded or served
    ├── CapacityError        exit 1   no room: context limit, key-value slots, disk
    └── InvariantError       exit 1   a bug of ours or of a plug-in: a contract of core/parts.py was broken
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HedgerowError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(HedgerowError):
    """The caller asked for something that is not allowed."""

    exit_code = 2


class UnknownName(UsageError):
    """A name is not in a table; the message offers the nearest ones.

    >>> str(UnknownName("recipe", "sufix", ["suffix", "ngram"], "`hedgerow recipes` lists them"))
    "unknown recipe 'sufix'. Did you mean 'suffix'? `hedgerow recipes` lists them."
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        known = sorted(known)
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        guess = f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(known)}."
        super().__init__(f"unknown {kind} {name!r}.{guess}{' ' + hint.rstrip('.') + '.' if hint else ''}")


class RecipeError(UsageError):
    """Parts were combined that cannot be exact, or cannot work, together."""


class ModelError(HedgerowError):
    """A model cannot be loaded or served."""


class CapacityError(HedgerowError):
    """There is no room left: context, key-value slots or disk."""


class InvariantError(HedgerowError):
    """A part broke its contract."""
