"""The forward pass in C: compiled once on the user's machine, kept on disk, loaded without torch's headers.

The source is plain C with OpenMP. It is linked against nothing: its parallel regions resolve to the OpenMP library that
torch has loaded, because a second one would bring its own threads and the two would fight for the cores.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

SOURCE = Path(__file__).with_name("native.c")
_FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fopenmp", "-fPIC")
_NEEDED = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_PATIENCE_S = 120


class Built(NamedTuple):
    """The loaded library, or None and why there is none."""

    library: ctypes.CDLL | None
    why_not: str = ""


def build(folder: Path, compilers: Sequence[str] = ("gcc", "cc")) -> Built:
    """Load the compiled forward pass from `folder`, compiling it first if this source was not compiled here yet.

    The source is one unit: native.c and the headers beside it. The file's name is a hash of them, the flags, the
    compiler's version and the processor's features, so a library never meets a machine it was not made for. It is
    written aside and renamed: whole or absent.
    """
    if platform.machine() not in ("x86_64", "AMD64") or platform.system() != "Linux":
        return Built(None, f"compiled layers are for Linux on x86-64; this is {platform.system()} {platform.machine()}")
    missing = sorted(set(_NEEDED) - set(_features()))
    if missing:
        return Built(None, f"compiled layers need a processor with {', '.join(missing)}, which this one lacks")
    compiler = next((path for name in compilers if (path := shutil.which(name))), None)
    if compiler is None:
        return Built(None, "compiled layers need a C compiler (gcc), and none was found")
    try:
        version = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        ).stdout
        texts = (path.read_text() for path in (SOURCE, *sorted(SOURCE.parent.glob("*.h"))))
        parts = (*texts, *_FLAGS, version, *_features())
        target = folder / f"native-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:20]}.so"
        if not target.is_file():
            _compile(compiler, target)
        return Built(_load(target))
    except subprocess.TimeoutExpired:
        return Built(None, f"the C compiler took longer than {_PATIENCE_S} s")
    except subprocess.CalledProcessError as e:
        return Built(None, f"the C compiler failed: {_first_line(e.stderr)}")
    except OSError as e:
        return Built(None, f"compiled layers could not be stored or loaded: {_first_line(str(e))}")


def _compile(compiler: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".tmp-native-") as work:
        thing, library = Path(work, "native.o"), Path(work, "native.so")
        # Compiled with OpenMP, linked without: the runtime's symbols are torch's.
        for command in (
            [compiler, *_FLAGS, "-c", str(SOURCE), "-o", str(thing)],
            [compiler, "-shared", str(thing), "-o", str(library), "-lm"],
        ):
            subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
        library.replace(target)


def _load(target: Path) -> ctypes.CDLL:
    for runtime in sorted(Path(torch.__file__).parent.glob("lib/lib*omp*.so*")):
        ctypes.CDLL(str(runtime), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(target))


def _features() -> tuple[str, ...]:
    """What the processor can do, by the names of /proc/cpuinfo."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return tuple(sorted(flags))


def _first_line(text: str | None) -> str:
    return next((line for line in (text or "").splitlines() if "error" in line.lower()), (text or "?").split("\n")[0])
