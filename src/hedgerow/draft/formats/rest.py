"""Datastores of REST: text as little-endian tokens with their suffix array, read into memory by mapping the file.

    one sub-index: u32 2·n, n × u16 tokens, u32 4·n, n × i32 suffixes; any number behind one another

Tokens have 16 bits, so that vocabularies beyond 65536 do not fit; nothing separates documents.
Source: REST (2311.08252).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from hedgerow.core.errors import ModelError, UsageError

MOST = 512 << 20                          # tokens of a sub-index


class SubIndex(NamedTuple):
    """Tokens of a stretch of text, and the positions where its suffixes begin, in the order of the suffixes."""

    tokens: Int[np.ndarray, " n"]
    suffixes: Int[np.ndarray, " n"]


def read(file: Path | str) -> list[SubIndex]:
    """Every sub-index of a datastore. Raises ModelError for a file that is no such thing, or cut short."""
    path = Path(file)
    if not path.is_file():
        raise ModelError(f"datastore {str(path)!r} does not exist")
    data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    out, at = [], 0
    while at < len(data):
        tokens, at = _block(data, at, "<u2", path)
        suffixes, at = _block(data, at, "<i4", path)
        n = len(tokens)
        if len(suffixes) != n or (n and not 0 <= int(suffixes.min()) <= int(suffixes.max()) < n):
            raise ModelError(f"datastore {str(path)!r} is damaged: {n} tokens have {len(suffixes)} suffixes")
        out.append(SubIndex(tokens, suffixes))
    return out


def _block(data: np.ndarray, at: int, kind: str, path: Path) -> tuple[np.ndarray, int]:
    if at + 4 > len(data):
        raise ModelError(f"datastore {str(path)!r} ends inside a length, at byte {at} of {len(data)}")
    size = int(data[at : at + 4].view("<u4")[0])
    end = at + 4 + size
    if end > len(data) or size % np.dtype(kind).itemsize:
        raise ModelError(f"datastore {str(path)!r} is cut short: a block needs bytes to {end}, it has {len(data)}")
    return np.frombuffer(data[at + 4 : end], kind), end


def write(file: Path | str, parts: Sequence[SubIndex]) -> None:
    """Write sub-indices as REST reads them. Raises UsageError for tokens beyond 16 bits or a part too long."""
    for part in parts:
        if len(part.tokens) and not 0 <= int(part.tokens.min()) <= int(part.tokens.max()) < 1 << 16:
            raise UsageError(f"a token is {int(part.tokens.max())}; REST's files hold 0 to 65535")
        if len(part.tokens) > MOST:
            raise UsageError(f"a part has {len(part.tokens)} tokens; REST's files hold {MOST} in one")
    with Path(file).open("wb") as out:
        for part in parts:
            for values, kind in ((part.tokens, "<u2"), (part.suffixes, "<i4")):
                raw = np.ascontiguousarray(values, kind).tobytes()
                out.write(np.array(len(raw), "<u4").tobytes() + raw)
