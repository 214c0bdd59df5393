"""Cache entries that are whole or absent: a directory made aside, flushed to disk, then renamed in one step.

A lock lets two processes that want the same entry make it once. What a killed process left is swept away by the next.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from hedgerow.core.errors import CapacityError, HedgerowError, ModelError

Report = Callable[[str], None]

MARKER = "hedgerow.json"                  # written last by whoever makes an entry


def entry(folder: Path, key: str, size: int, make: Callable[[Path], None], report: Report) -> Path:
    """The directory `folder/key`; made by `make(directory)`, which writes `MARKER` last, if it is not there.

    `size`: bytes it will take, about; they must be free before `make` begins.

    Raises: CapacityError when the disk is full, ModelError when it cannot be written, and what `make` raises.
    """
    from filelock import FileLock, Timeout

    final = folder / key
    if (final / MARKER).is_file():
        return final
    with one_line(folder, key, size):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{key}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report("another process is preparing this model; waiting for it …")
            lock.acquire()
        try:
            if not (final / MARKER).is_file():
                _make(final, size, make)
        finally:
            lock.release()
    return final


def _make(final: Path, size: int, make: Callable[[Path], None]) -> None:
    for stale in [*final.parent.glob(f".tmp-{final.name}-*"), final]:
        if stale.is_dir():
            shutil.rmtree(stale)
        else:
            stale.unlink(missing_ok=True)
    if shutil.disk_usage(final.parent).free < size:
        raise OSError(errno.ENOSPC, "No space left on device")
    work = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".tmp-{final.name}-"))
    try:
        make(work)
        for file in work.iterdir():
            with file.open("rb+") as f:
                os.fsync(f.fileno())
        _flush(work)
        work.replace(final)
        _flush(final.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Make a directory's names durable, where the system lets a directory be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def one_line(folder: Path, what: str, size: int) -> Iterator[None]:
    """Turns a full or unwritable disk, however a library reports it, into one line."""
    try:
        yield
    except HedgerowError as e:
        if not _full(e):
            raise
        _no_room(folder, what, size)
    except PermissionError:
        raise ModelError(
            f"the cache {str(folder)!r} cannot be written; set XDG_CACHE_HOME to a directory of yours"
        ) from None
    except Exception as e:
        if not _full(e):
            raise
        _no_room(folder, what, size)


def _full(e: Exception) -> bool:
    return getattr(e, "errno", None) == errno.ENOSPC or "No space left" in str(e)


def _no_room(folder: Path, what: str, size: int) -> NoReturn:
    need = f" (about {size / 1e6:.0f} MB are needed)" if size else ""
    raise CapacityError(
        f"no room left on the disk of {str(folder)!r} for {what}{need}; "
        "free some space, or set XDG_CACHE_HOME to a larger disk"
    ) from None
