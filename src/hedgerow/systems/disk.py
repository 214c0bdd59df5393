"""Tensors of safetensors files read by place, at need, past the page cache on request.

Reads go into memory the caller owns and reuses, so that what is resident is what the caller holds; a memory map cannot
promise that. With `bypass` they use `O_DIRECT`: the disk writes into our memory, no copy is made, nothing is evicted
from the page cache, and every byte comes from the disk each time. Where a file system knows no `O_DIRECT` the pages are
dropped after use (`posix_fadvise`), or, where that is missing too, stay cached; `Disk.how` says which.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from hedgerow.core.errors import ModelError

ALIGN = 4096                              # places, sizes and memory of direct reads are multiples of this
PIECE = 1 << 20                           # bytes a call: larger ones are not faster, and a limit is kept smoothly
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}


class Stored(NamedTuple):
    """Where a tensor lies: `size` bytes from `begin` of a file, row-major."""

    file: Path
    begin: int
    size: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def rows(self, first: int, last: int) -> Stored:
        """Rows `first` to `last` of its first dimension.

        >>> Stored(Path("f"), 100, 24, torch.float32, (3, 2)).rows(1, 3)[1:]
        (108, 16, torch.float32, (2, 2))
        """
        row = self.size // self.shape[0]
        return Stored(self.file, self.begin + first * row, (last - first) * row, self.dtype,
                      (last - first, *self.shape[1:]))


class Stretch(NamedTuple):
    """Bytes of a file to read at once: `size` from `begin`, both aligned, to place `at` of the memory."""

    file: Path
    begin: int
    size: int
    at: int


@dataclass(frozen=True)
class Reading:
    """How weights are read. `bypass`: past the page cache. `limit_bytes_s`: no faster than this (a slower disk)."""

    bypass: bool = False
    limit_bytes_s: float | None = None


@dataclass
class Tally:
    """What was read since it was made: bytes, the seconds that took, and the seconds somebody had to wait for it."""

    bytes: int = 0
    read_s: float = 0.0
    waited_s: float = 0.0


def catalogue(folder: Path) -> dict[str, Stored]:
    """Every tensor of a model directory by its name in the files; an index, if there is one, names the files.

    Raises: ModelError for a file that is damaged or holds a type of number that is not known.
    """
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        else:
            single = folder / "model.safetensors"
            files = [single.name] if single.is_file() else sorted(p.name for p in folder.glob("*.safetensors"))
        found: dict[str, Stored] = {}
        for name in files:
            file = folder / name
            with file.open("rb") as f:
                (length,) = struct.unpack("<Q", f.read(8))
                header = json.loads(f.read(length))
            for key, entry in header.items():
                if key != "__metadata__":
                    begin, end = entry["data_offsets"]
                    found[key] = Stored(file, 8 + length + begin, end - begin, _DTYPES[entry["dtype"]],
                                        tuple(entry["shape"]))
    except KeyError as e:
        raise ModelError(f"{str(folder)!r} cannot be streamed: its files hold numbers of type {e}") from None
    except (OSError, ValueError, OverflowError, struct.error, AttributeError, TypeError) as e:
        raise ModelError(f"{str(folder)!r} cannot be streamed: its files are damaged ({e})") from None
    return found


def stretches(parts: Sequence[Stored], join: int = 1 << 17) -> tuple[list[Stretch], list[int], int]:
    """What to read for some tensors, where each then begins in the memory, and the size of that memory.

    Tensors less than `join` bytes apart are read together, what is between them too.

    >>> f = Path("f")
    >>> a, b = Stored(f, 5000, 100, torch.uint8, (100,)), Stored(f, 9000, 100, torch.uint8, (100,))
    >>> stretches([b, a])
    ([Stretch(file=PosixPath('f'), begin=4096, size=8192, at=0)], [4904, 904], 8192)
    """
    found: list[Stretch] = []
    for s in sorted(parts, key=lambda s: (str(s.file), s.begin)):
        begin, end = s.begin // ALIGN * ALIGN, -(-(s.begin + s.size) // ALIGN) * ALIGN
        last = found[-1] if found else None
        if last and last.file == s.file and begin <= last.begin + last.size + join:
            found[-1] = last._replace(size=max(last.size, end - last.begin))
        else:
            found.append(Stretch(s.file, begin, end - begin, last.at + last.size if last else 0))
    at = []
    for s in parts:
        home = next(x for x in found if x.file == s.file and x.begin <= s.begin < x.begin + x.size)
        at.append(home.at + s.begin - home.begin)
    return found, at, found[-1].at + found[-1].size if found else 0


def memory(size: int) -> mmap.mmap:
    """Anonymous memory on whole pages, as direct reads want it; freed with the last tensor over it."""
    return mmap.mmap(-1, max(-(-size // ALIGN) * ALIGN, ALIGN))


@dataclass
class Disk:
    """Open files and a way to read them. `how`: what the reads do about the page cache, in words."""

    reading: Reading = Reading()
    tally: Tally = field(default_factory=Tally)
    how: str = "page cache used"
    _open: dict[Path, int] = field(default_factory=dict)
    _due: float = 0.0                     # when the next read may begin under a limit
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, file: Path) -> int:
        """The descriptor of a file, opened once. Raises ModelError when it cannot be."""
        with self._lock:
            if file not in self._open:
                try:
                    self._open[file] = descriptor = self._descriptor(file)
                except OSError as e:
                    raise ModelError(f"weight file {str(file)!r} cannot be opened: {e.strerror}") from None
                weakref.finalize(self, os.close, descriptor)
            return self._open[file]

    def _descriptor(self, file: Path) -> int:
        if not self.reading.bypass:
            return os.open(file, os.O_RDONLY)
        if hasattr(os, "O_DIRECT"):
            try:
                descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
            except OSError:               # this file system does not know it
                descriptor = -1
            if descriptor >= 0:
                try:
                    os.preadv(descriptor, [memory(ALIGN)], 0)
                    self.how = "O_DIRECT, page cache bypassed"
                    return descriptor
                except OSError:
                    os.close(descriptor)
        self.how = "page cache dropped after use" if hasattr(os, "posix_fadvise") else "page cache cannot be bypassed"
        return os.open(file, os.O_RDONLY)

    def read(self, stretch: Stretch, into: memoryview, needed: int) -> None:
        """Fill `into` (on whole pages) from a stretch of a file; the first `needed` bytes must be there.

        Raises: ModelError when the file ends before or cannot be read.
        """
        descriptor, start, done = self.open(stretch.file), time.perf_counter(), 0
        while done < stretch.size:
            try:
                got = os.preadv(descriptor, [into[done : min(done + PIECE, stretch.size)]], stretch.begin + done)
            except OSError as e:
                raise ModelError(f"weight file {str(stretch.file)!r} cannot be read: {e.strerror}") from None
            done += got
            if self.reading.limit_bytes_s:
                self._hold_back(got / self.reading.limit_bytes_s)
            if got % ALIGN or not got:    # the end of the file
                break
        if done < needed:
            raise ModelError(
                f"weight file {str(stretch.file)!r} was cut short while it was in use: "
                f"{stretch.begin + done} bytes of at least {stretch.begin + needed}"
            )
        if self.how == "page cache dropped after use":
            os.posix_fadvise(descriptor, stretch.begin, stretch.size, os.POSIX_FADV_DONTNEED)
        with self._lock:
            self.tally.bytes += done
            self.tally.read_s += time.perf_counter() - start

    def _hold_back(self, seconds: float) -> None:
        """Sleep until a disk that takes `seconds` for what was just read would be done; idle time earns nothing."""
        with self._lock:
            now = time.perf_counter()
            self._due = max(self._due, now - seconds) + seconds
        time.sleep(max(self._due - now, 0.0))
