"""Who can run a verification step: our own engine, and the step graph through eager PyTorch, inductor and OpenVINO.

An engine turns a step into a call without arguments that does the whole step and returns the logits of all rows as
they are: float32 or bf16, [rows, vocab].
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from hedgerow.bench.stepgraph import Dims, Step, StepGraph, ancestors, binary_tree
from hedgerow.core.errors import HedgerowError
from hedgerow.core.parts import Needs, RowGroup

Run = Callable[[], torch.Tensor]


class Missing(HedgerowError):
    """An engine cannot run here; the message says why."""


class Engine(Protocol):
    """An engine with the model loaded."""

    prepare_s: dict[str, float]           # what had to be made ready, and its seconds

    def ready(self, step: Step) -> Run:
        """A call that does this step; compiles what it needs first."""


@dataclass(frozen=True)
class Job:
    """What every engine is made from."""

    path: Path
    dims: Dims
    weights: dict[str, torch.Tensor]
    tokens: torch.Tensor                  # of a text: the context, then the tree's
    threads: int


class Ours:
    """The engine of this package: `target.submit` of one tree, to the rank of every row on the host."""

    def __init__(self, job: Job, quant: str) -> None:
        from hedgerow.core.errors import UsageError
        from hedgerow.target.lm import load_target

        start = time.perf_counter()
        try:
            self.target, _ = load_target(str(job.path), quant=quant, device="cpu", max_slots=1, max_len=2048)
        except UsageError as e:
            raise Missing(str(e)) from None
        self.prepare_s = {"load": time.perf_counter() - start}
        self.slot, self.tokens, self.context = self.target.acquire(), job.tokens.numpy(), -1

    def ready(self, step: Step) -> Run:
        """A call of the target; the context is prefilled now and not again."""
        rows = len(step.tokens)
        context = step.mask.shape[1] - rows
        if context != self.context:
            self.target.release(self.slot)
            self.slot, self.context = self.target.acquire(), context
            prompt = self.tokens[:context]
            self.target.submit(
                [RowGroup("prefill", self.slot, prompt, np.arange(context), np.empty((context, 0), np.bool_))], Needs()
            )
            self.target.commit(self.slot, range(context))
        tree = RowGroup(
            "tree", self.slot, step.tokens.numpy(), step.positions.numpy(), ancestors(binary_tree(rows)[:rows])
        )

        def run() -> torch.Tensor:
            ran, _ = self.target.collect(self.target.submit([tree], Needs()))
            ran.argmax(0)
            return ran.device_logits(0)

        return run


class Torch:
    """The step graph in PyTorch, eager or as one graph of inductor."""

    def __init__(self, job: Job, dtype: torch.dtype, compiled: bool) -> None:
        start = time.perf_counter()
        self.graph: Any = StepGraph(job.dims, job.weights, dtype).eval()
        self.dtype, self.compiled = dtype, compiled
        self._calls: dict[torch.Size, Any] = {}
        self.prepare_s = {"load": time.perf_counter() - start}

    def ready(self, step: Step) -> Run:
        """A call of the graph; compiled for exactly these shapes, with weights as constants inductor may pack."""
        step = step.to(self.dtype)
        shape, known = step.mask.shape, step.mask.shape in self._calls
        if not known:
            options: dict[str, Any] = {"freezing": True, "cpp_wrapper": True}
            self._calls[shape] = self.graph if not self.compiled else torch.compile(
                self.graph, dynamic=False, fullgraph=True, options=options
            )
        call = self._calls[shape]

        @torch.no_grad()                  # freezing wants no gradients, and refuses inference mode
        def run() -> torch.Tensor:
            logits: torch.Tensor = call(*step.flat)[0]
            logits.argmax(1)
            return logits

        if self.compiled and not known:
            start = time.perf_counter()
            run()
            self.prepare_s[f"compile {shape[0]} rows, context {shape[1] - shape[0]}"] = time.perf_counter() - start
        return run


class OpenVINO:
    """The step graph converted once for all shapes; weights as they are or compressed by nncf."""

    def __init__(self, job: Job, weights: str) -> None:
        try:
            import openvino as ov
        except ImportError:
            raise Missing("openvino is not installed") from None
        self.ov, self.prepare_s = ov, {}
        start = time.perf_counter()
        model = self._converted(job)
        self.prepare_s["convert"] = time.perf_counter() - start
        if weights != "bf16":
            start = time.perf_counter()
            model = self._compressed(model, weights)
            self.prepare_s["compress"] = time.perf_counter() - start
        start = time.perf_counter()
        compiled = ov.Core().compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": job.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16",
        })
        self.prepare_s["compile"] = time.perf_counter() - start
        self.request = compiled.create_infer_request()
        self._bound: list[Any] = []

    def _converted(self, job: Job) -> Any:
        """The graph with free rows and context; keys and values cross its border in bf16."""
        ov, d = self.ov, job.dims
        graph = StepGraph(d, job.weights, torch.float32).eval()
        some = [torch.zeros(d.kv_heads, 8, d.head_dim)] * (2 * d.layers)
        with torch.no_grad():
            model = ov.convert_model(
                graph, example_input=(torch.arange(4), torch.arange(4), torch.zeros(4, 12), *some)
            )
        free = [[-1], [-1], [-1, -1]] + [[d.kv_heads, -1, d.head_dim]] * len(some)
        model.reshape({port: ov.PartialShape(shape) for port, shape in zip(model.inputs, free, strict=True)})
        border = ov.preprocess.PrePostProcessor(model)
        for i in range(3, len(free)):
            border.input(i).tensor().set_element_type(ov.Type.bf16)
        for i in (1, 2):
            border.output(i).tensor().set_element_type(ov.Type.bf16)
        return border.build()

    @staticmethod
    def _compressed(model: Any, weights: str) -> Any:
        try:
            import nncf
        except ImportError:
            raise Missing("nncf, which compresses weights for OpenVINO, is not installed") from None
        mode = nncf.CompressWeightsMode
        if weights == "int8":
            return nncf.compress_weights(model, mode=mode.INT8_SYM)
        return nncf.compress_weights(model, mode=mode.INT4_ASYM, ratio=1.0, group_size=32, all_layers=True)

    def ready(self, step: Step) -> Run:
        """An inference of the request; inputs are bound anew only when another step had it before."""
        ov = self.ov
        past = [t.bfloat16().contiguous() for t in step.past]
        bound = [ov.Tensor(t.numpy()) for t in step.flat[:3]] + [
            ov.Tensor(t.view(torch.int16).numpy().view(np.uint16), list(t.shape), ov.Type.bf16) for t in past
        ]

        def run() -> torch.Tensor:
            if self._bound is not bound:
                self._bound = bound
                for i, tensor in enumerate(bound):
                    self.request.set_input_tensor(i, tensor)
            self.request.infer()
            logits = torch.from_numpy(self.request.get_output_tensor(0).data)
            logits.argmax(1)
            return logits

        return run


def _torch(dtype: torch.dtype, compiled: bool) -> Callable[[Job], Engine]:
    return lambda job: Torch(job, dtype, compiled)


ENGINES: dict[str, Callable[[Job], Engine]] = {
    "hedgerow bf16": lambda job: Ours(job, "none"),
    "hedgerow int8": lambda job: Ours(job, "int8"),
    "hedgerow int4": lambda job: Ours(job, "int4"),
    "eager bf16": _torch(torch.bfloat16, False),
    "inductor bf16": _torch(torch.bfloat16, True),
    "openvino bf16": lambda job: OpenVINO(job, "bf16"),
    "openvino int8": lambda job: OpenVINO(job, "int8"),
    "openvino int4": lambda job: OpenVINO(job, "int4"),
}


def rows_equal(run_of: Callable[[Step], Run], step: Step, counts: Sequence[int]) -> dict[str, float]:
    """Share of rows that come out bit for bit as in the whole step, for steps of its first `counts` rows."""
    whole = run_of(step)().clone()
    return {str(n): float((run_of(step.first(n))() == whole[:n]).all(1).float().mean()) for n in counts}
