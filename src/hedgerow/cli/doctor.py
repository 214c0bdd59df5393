"""`hedgerow doctor`: what this machine has, what is used of it, and why the rest is not. Nothing missing stops it."""

from __future__ import annotations

import importlib
import importlib.metadata
import json as jsonlib
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hedgerow.cli import doctor_drafter
from hedgerow.cli.options import Debug, Device
from hedgerow.cli.render import table

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "gguf", "numpy", "scipy", "typer")
CPU_FLAGS = (                             # the kernel's name, ours; whichever the processor has
    ("avx2", "avx2"), ("avx512f", "avx512"), ("avx512_vnni", "avx512-vnni"), ("avx512_bf16", "avx512-bf16"),
    ("amx_bf16", "amx-bf16"), ("amx_int8", "amx-int8"), ("asimd", "neon"), ("bf16", "arm-bf16"), ("i8mm", "arm-i8mm"),
    ("sve", "sve"),
)
COMPILERS = ("c++", "g++", "clang++")
GIB = 1 << 30


def doctor(
    drafter: Annotated[str | None, typer.Option("--drafter", help="Check this drafter's directory instead.")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="The target that --drafter is checked with.")] = "demo",
    device: Device = "auto",
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    debug: Debug = False,
) -> None:
    """Show what this machine has, and what is used; or check a drafter.

    Versions, the device, which fast paths are active and why the others are not, the cache and the demo model. With
    --drafter: its layout and facts, whether it fits the target, and how often its first guess is right.
    """
    if drafter is not None:
        doctor_drafter.report(drafter, model, device, json)
        return
    found = examine()
    if json:
        print(jsonlib.dumps(found))
        return
    rows = [["hedgerow", found["versions"]["hedgerow"]], ["python", found["versions"]["python"]]]
    rows += [[name, found["versions"][name]] for name in LIBRARIES]
    rows += [
        ["system", found["system"]["platform"]],
        ["cpu", f"{found['cpu']['name']}, {found['cpu']['cores']} cores usable"],
        ["cpu features", ", ".join(found["cpu"]["features"]) or "none found"],
        ["memory", _size(found["system"]["memory_bytes"])],
        ["device", found["device"]["name"]],
        ["compiler", found["compiler"]["path"] or "none"],
        ["cache", f"{found['cache']['path']} ({found['cache']['state']}, {_size(found['cache']['free_bytes'])} free)"],
        ["demo model", found["demo"]["state"]],
    ]
    print("\n".join(table(["", ""], rows)[1:]))
    print()
    print("\n".join(table(
        ["backend", "active", "because"],
        [[b["name"], "yes" if b["active"] else "no", b["reason"]] for b in found["backends"]],
    )))


def examine() -> dict[str, Any]:
    """Everything `doctor` knows, as plain data; what cannot be found out is named instead."""
    cpu = _try(_cpu, {"name": "unknown", "cores": os.cpu_count(), "features": []})
    device = _try(_device, {"name": "unknown: torch cannot be imported", "cuda": False, "why_no_cuda": "no torch"})
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    return {
        "versions": {
            "hedgerow": _version("hedgerow"), "python": platform.python_version(),
            **{name: _version(name) for name in LIBRARIES},
        },
        "system": {"platform": platform.platform(), "machine": platform.machine(), "memory_bytes": _try(_memory, None)},
        "cpu": cpu,
        "device": device,
        "compiler": {
            "path": compiler,
            "effect": "found" if compiler else "none found: layers are not compiled",
        },
        "backends": _try(lambda: _backends(device), []),
        "cache": _try(_cache, {"path": "unknown", "state": "unknown", "free_bytes": None}),
        "demo": _try(_demo, {"state": "unknown", "ready": False, "path": None}),
    }


def _try(probe: Callable[[], Any], otherwise: Any) -> Any:
    """What a probe finds; `otherwise` when what it looks at is missing or broken in whatever way."""
    try:
        return probe()
    except Exception:  # noqa: BLE001 - a doctor that dies of the illness is no use
        return otherwise


def _version(name: str) -> str:
    return _try(lambda: importlib.metadata.version(name), "not installed")


def _cpu() -> dict[str, Any]:
    info: dict[str, str] = {}
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            info.setdefault(key.strip(), value.strip())
    flags = set((info.get("flags") or info.get("Features") or "").split())
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "name": info.get("model name") or platform.processor() or platform.machine(), "cores": usable,
        "features": [ours for flag, ours in CPU_FLAGS if flag in flags],
    }


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _device() -> dict[str, Any]:
    import torch

    if torch.cuda.is_available():
        return {"name": torch.cuda.get_device_name(0), "cuda": True, "why_no_cuda": ""}
    why = "this torch is a CPU build" if torch.version.cuda is None else "no CUDA device can be used"
    return {"name": f"cpu, {torch.get_num_threads()} threads ({why})", "cuda": False, "why_no_cuda": why}


def _backends(device: dict[str, Any]) -> list[dict[str, Any]]:
    """What a bf16 model would run on here: asked of the loader itself, with a model of one layer."""
    import torch

    from hedgerow.models.weights import cache_dir
    from hedgerow.systems import int4
    from hedgerow.systems.compiled import build
    from hedgerow.systems.linear import pack

    where = "cuda" if device["cuda"] else "cpu"
    packed = pack(torch.nn.Sequential(torch.nn.Linear(64, 32, dtype=torch.bfloat16, device=where)))
    slow = packed.why_not_faster
    library, why = build(cache_dir() / "native") if where == "cpu" else (None, "compiled layers are for the CPU")
    ready = library is not None
    no_four = int4.why_not(torch.zeros(1, dtype=torch.bfloat16, device=where))
    found = [
        ("compiled layers", ready, why or "bf16 models of the kinds they know; others run on torch's operators"),
        ("int8 weights", False, "when asked for: --quant int8" if ready else why),
        ("attention: torch's operators with a tree mask", not ready, "the reference; always there"),
        ("matrix products: torch", bool(slow) and not ready, "the reference" if slow else "packed weights are faster"),
        ("matrix products: weights packed once", not ready and not slow, slow or "where layers are not compiled"),
        ("weights streamed from disk", False, "when asked for: --stream MB"),
        ("cuda", device["cuda"], device["why_no_cuda"] or device["name"]),
        ("steps as CUDA graphs", device["cuda"], device["why_no_cuda"] or "what cannot be recorded runs eager"),
        ("int4 weights", False, no_four or "when asked for: --quant int4 (says where it is slower)"),
    ]
    return [{"name": name, "active": active, "reason": reason} for name, active, reason in found]


def _cache() -> dict[str, Any]:
    from hedgerow.models import weights

    path = Path(weights.cache_dir())
    existing = next(p for p in (path, *path.parents) if p.exists())
    writable = os.access(existing, os.W_OK)
    return {
        "path": str(path), "state": "writable" if writable else "not writable",
        "free_bytes": shutil.disk_usage(existing).free,
    }


def _demo() -> dict[str, Any]:
    from hedgerow.models import weights

    models = weights.cache_dir() / "models"
    ready = [p for p in models.glob(f"{weights.DEMO}-{weights.DEMO_VERSION}-*") if (p / weights.MARKER).is_file()]
    if ready:
        size = sum(f.stat().st_size for f in ready[0].iterdir())
        return {"state": f"ready ({_size(size)})", "ready": True, "path": str(ready[0])}
    return {"state": "not here yet: the first use fetches 93 MB and converts it", "ready": False, "path": None}


def _size(count: int | None) -> str:
    return "unknown" if count is None else f"{count / GIB:.1f} GiB"
