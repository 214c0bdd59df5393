"""A model directory as a running network, by the fastest way that fits the machine, the model and the wishes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hedgerow.core.errors import ModelError, UsageError
from hedgerow.models import hf, streamed, weights
from hedgerow.models.hf import HFNet
from hedgerow.models.native import NativeNet, compiled_net
from hedgerow.models.serve import probe
from hedgerow.systems.captured import Captured
from hedgerow.systems.compiled import build as build_library
from hedgerow.systems.disk import Reading
from hedgerow.systems.linear import fuse_norms, pack
from hedgerow.systems.recorders import CudaRecorder, Recorder


class Opened(NamedTuple):
    """A network, and in words how it runs and why not faster."""

    net: HFNet | NativeNet
    backend: str


def open_net(
    path: Path, name: str, dtype: torch.dtype, device: str, quant: str = "none", compile: bool = True,
    stream_bytes: int | None = None, reading: Reading = Reading(),  # noqa: B008 - frozen
    report: Callable[[str], None] = lambda message: None, recorder: Recorder | None = None,
) -> Opened:
    """Load the network in a directory; `compile`, `quant` and `stream_bytes` as `target.lm.load_target` has them.

    `recorder`: how steps are recorded where layers are not compiled (None: as CUDA graphs on CUDA, elsewhere not).

    Raises: ModelError when it cannot be loaded or served, UsageError for a `quant` that is only compiled where nothing
    is.
    """
    packed: list[Any] = []                # how its matrix products run, in words
    why_not: list[str] = []               # why its layers do not run compiled

    def prepare(model: Any) -> None:
        fuse_norms(model)
        if build is None:
            packed.append(pack(model, "int4" if quant == "int4" else "none"))

    build = None
    if stream_bytes is not None:
        build = streamed.builder(path, dtype, stream_bytes, reading, packed.append, report)

    def fast(model: Any) -> NativeNet | None:
        if build is not None:
            return None
        if torch.device(device).type != "cpu" or dtype != torch.bfloat16:
            kind = "bf16" if dtype == torch.bfloat16 else "fp32"
            why_not.append(f"compiled layers are for bf16 on the CPU, not {kind} on {device}")
            return None
        if quant == "int4":
            why_not.append("int4 weights run on torch's operators")
            return None
        if not compile:
            why_not.append("not compiled, as asked")
            return None
        library, reason = build_library(weights.cache_dir() / "native")
        try:
            if library is not None:
                return compiled_net(model, library, quant)
        except ModelError as e:
            reason = f"layers like its are not compiled: {e}"
        why_not.append(reason)
        return None

    net = hf.load(path, name, dtype, device, prepare, build, fast, why_not.append)
    if isinstance(net, NativeNet):
        return Opened(net, f"compiled {'bf16' if quant == 'none' else quant}")
    if quant == "int8":
        raise UsageError(
            f"quant is {quant!r}, which runs in compiled layers only; here {'; '.join(why_not) or 'there are none'}; "
            "leave --quant out"
        )
    if quant == "int4":
        if packed[0].why_not_faster:
            raise UsageError(f"quant is 'int4', which cannot run here: {packed[0].why_not_faster}; leave --quant out")
        why_not = []
    net.streamed = packed[0] if build else None
    if compile and build is None and (recorder or net.device.type == "cuda"):
        return Opened(net, f"{packed[0]}; {capture(net, recorder or CudaRecorder(net.device), report)}")
    return Opened(net, "; ".join([str(packed[0]), *why_not]))


def capture(net: HFNet, recorder: Recorder, report: Callable[[str], None]) -> str:
    """Let the network's steps be recorded, if recorded steps pass the self-test; says in words what became of it.

    `report` hears why not, now or later.
    """
    net.captured = kept = Captured(recorder, report)
    reason = probe(net)
    if kept.why_not:
        return kept.why_not
    if reason:
        net.captured = None
        reason = f"steps run without {recorder.name}: recorded, {reason}"
        report(reason)
        return reason
    return f"steps recorded as {recorder.name}"
