"""The target for any decoder: `core.parts.Target` over a runner."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Capacity, Feats, Needs, RowGroup, TargetInfo
from hedgerow.models import weights
from hedgerow.models.runner import Ran, Runner
from hedgerow.models.tokenizer import HFTokenizer

_DTYPES = {"auto": torch.bfloat16, "bf16": torch.bfloat16, "fp32": torch.float32}


class LMTarget:
    """A language model as a target.

    The root's keys are not yet written when a step begins: a tree group is [root, nodes …], and `commit(slot, rows)`
    keeps the root's row and the accepted path's. A prompt is one prefill group, committed with `range(rows)`.
    """

    def __init__(self, runner: Runner, info: TargetInfo) -> None:
        self.runner, self.info = runner, info

    def capacity(self) -> Capacity:
        """Free slots, most rows a slot may stage in one call, longest sequence."""
        kv = self.runner.kv
        return Capacity(kv.free_slots, kv.max_rows, kv.max_len)

    def acquire(self) -> int:
        """A free slot. Raises CapacityError when there is none."""
        return self.runner.kv.acquire()

    def submit(self, groups: Sequence[RowGroup], needs: Needs) -> Ran:
        """Start the one call of a step; what slots had pending is dropped."""
        return self.runner.run(groups, needs)

    def collect(self, ticket: Ran) -> tuple[Ran, list[Feats]]:
        """Rows and, per group, features. The ticket itself answers for the rows."""
        return ticket, [ticket.feats(i) for i in range(len(ticket.groups))]

    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """Keep these rows of the slot's last group, in order, and drop the rest."""
        self.runner.kv.commit(slot, rows)

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` committed tokens of `src`."""
        self.runner.kv.fork(src, dst, length)

    def release(self, slot: int) -> None:
        """Free a slot."""
        self.runner.kv.release(slot)


def load_target(
    spec: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    quant: str = "none",
    threads: int | None = None,
    max_slots: int = 8,
    max_len: int | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> tuple[LMTarget, HFTokenizer]:
    """Load a model by directory, `.gguf` file, hub id or `demo`, and its tokenizer.

    `dtype`: bf16, fp32 or auto (bf16). `device`: auto is `cuda` where there is one. `quant`: none. `threads` sets
    torch's threads for the process. `max_len`: tokens of a slot (None: the model's context, as far as memory allows).

    Raises: ModelError when it cannot be loaded or served, UsageError for a value that is not allowed.
    """
    if dtype not in _DTYPES:
        raise UsageError(f"dtype is {dtype!r}; allowed: {', '.join(_DTYPES)}")
    if quant != "none":
        raise UsageError(f"quant is {quant!r}; allowed: none")
    if threads is not None and threads < 1:
        raise UsageError(f"threads is {threads}; allowed: 1 or more")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        reason = str(e).splitlines()[0]
        raise UsageError(f"device {device!r} cannot be used ({reason}); allowed: auto, cpu, cuda") from None
    if threads is not None:
        torch.set_num_threads(threads)
    path, name = weights.resolve(spec, report), weights.name_of(spec)

    from hedgerow.models import convert, hf, serve
    from hedgerow.systems.linear import fuse_norms, pack

    tokenizer = HFTokenizer(*convert.read_tokenizer(path), name)
    packed = []

    def prepare(model: Any) -> None:
        fuse_norms(model)
        packed.append(pack(model))

    net = hf.load(path, name, _DTYPES[dtype], device, prepare)
    longest = serve.longest(net.config)
    if max_len is None:
        token_bytes = 2 * net.layers * net.kv_heads * net.head_dim * net.dtype.itemsize
        longest = fitting(longest, max_slots * token_bytes, net.device)
    else:
        longest = min(longest, max_len)
    kind = "bf16" if net.dtype == torch.bfloat16 else "fp32"
    info = TargetInfo(name, net.vocab, longest, device, dtype=kind, backend=str(packed[0]), eos=tokenizer.eos)
    return LMTarget(Runner(net, max_slots, longest), info), tokenizer


def fitting(max_len: int, token_bytes: int, device: torch.device) -> int:
    """The longest context, halved from `max_len`, whose keys and values fit in half of the memory there is."""
    if device.type == "cuda":
        memory = torch.cuda.mem_get_info(device)[0]
    elif hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        return max_len
    while max_len > 1024 and max_len * token_bytes > memory // 2:
        max_len //= 2
    return max_len
