"""Ways to record a piece of work on fixed buffers once and repeat it without its Python.

`CudaRecorder` captures CUDA graphs. `TapeRecorder` is its twin for any device: it notes every operator with the very
tensors it was called on, and replays them in order. Both freeze what Python computed on the way — numbers, shapes,
branches — and both fail where the work asks a tensor for its value, so what runs right from a tape reads and writes
nothing but its buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Replay = Callable[[], None]
WARM_UPS = 2                              # runs before a capture: libraries choose kernels and take workspaces in them


class Recorder(Protocol):
    """Something that records work and repeats it."""

    @property
    def name(self) -> str:
        """What it makes, for messages."""

    def record(self, work: Callable[[], None]) -> Replay:
        """Run `work` and return what repeats it on the same buffers. Raises RuntimeError if it cannot be recorded."""


class CudaRecorder:
    """Records CUDA graphs, all in one memory pool: what a graph needs while it runs, the next may use again.

    They must therefore never run at the same time; one runner's steps do not. Record the largest first, and the pool
    never grows again.
    """

    name = "CUDA graphs"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: Any = None

    def record(self, work: Callable[[], None]) -> Replay:
        """Warm up on a side stream, then capture. Raises RuntimeError."""
        with torch.cuda.device(self.device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            side, here = torch.cuda.Stream(), torch.cuda.current_stream()
            side.wait_stream(here)
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    work()
            here.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile: only what this one does wrong ends the capture.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
        return graph.replay


# Operators that hand a tensor's value, or a shape that depends on it, to Python: a stream that is captured cannot wait.
_WAITS = frozenset({
    "_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2", "unique_dim",
    "unique_consecutive", "allclose", "bincount",
})


class _Tape(TorchDispatchMode):
    """Notes every operator that is called, with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        if name in _WAITS or (name == "index" and _by_mask(args)):
            raise RuntimeError(f"{name} waits for the value of a tensor, which a recording cannot")
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out


def _by_mask(args: Any) -> bool:
    return any(i is not None and i.dtype == torch.bool for i in args[1])


class TapeRecorder:
    """Records the operators of the work, and repeats them into the tensors they came out in the first time.

    >>> x = torch.ones(2); y = torch.zeros(2); factor = 2
    >>> def work(): y.copy_(x * factor)
    >>> replay = TapeRecorder().record(work); factor = 5; _ = x.fill_(3.0); replay(); y.tolist()
    [6.0, 6.0]
    """

    name = "recorded operators"

    def record(self, work: Callable[[], None]) -> Replay:
        """Warm up, then run once under the tape. Raises RuntimeError for work that waits for a value."""
        for _ in range(WARM_UPS):
            work()
        with _Tape() as tape:
            work()
        calls = tape.calls

        def replay() -> None:
            for func, args, kwargs, out in calls:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor) and not _same(old, new):
                        old.copy_(new)

        return replay


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are one view of one memory: the result of an operator in place, or of a view."""
    return a is b or (a.data_ptr() == b.data_ptr() and a.stride() == b.stride())
