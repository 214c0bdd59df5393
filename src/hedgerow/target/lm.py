"""The target for any decoder: `core.parts.Target` over a runner."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Capacity, Feats, Needs, RowGroup, TargetInfo
from hedgerow.models import weights
from hedgerow.models.runner import Ran, Runner
from hedgerow.models.tokenizer import HFTokenizer
from hedgerow.systems.disk import Reading
from hedgerow.systems.kv import Kind
from hedgerow.target.remembered import RowNote, answers, joined, notes

_QUANTS = ("none", "int8", "int4")
_DTYPES = {"auto": torch.bfloat16, "bf16": torch.bfloat16, "fp32": torch.float32}


class LMTarget:
    """A language model as a target.

    The root's keys are not yet written when a step begins: a tree group is [root, nodes …], and `commit(slot, rows)`
    keeps the root's row and the accepted path's. A prompt is one prefill group, committed with `range(rows)`.
    """

    def __init__(self, runner: Runner, info: TargetInfo) -> None:
        self.runner, self.info = runner, info
        self._known: dict[int, list[RowNote]] = {}            # slot -> rows it did not have to run
        self._ran: dict[int, tuple[Needs, Feats]] = {}        # slot -> features of its last group

    def capacity(self) -> Capacity:
        """Free slots, most rows a slot may stage in one call, longest sequence."""
        kv = self.runner.kv
        return Capacity(kv.free_slots, kv.max_rows, kv.max_len)

    def acquire(self) -> int:
        """A free slot. Raises CapacityError when there is none."""
        return self.runner.kv.acquire()

    def reuse(self, slot: int, tokens: Sequence[int], needs: Needs, tenant: str = "") -> int:
        """Fill an empty slot with what earlier requests left of `tokens`; see `core.parts.Target`."""
        known = self.runner.kv.reuse(slot, tokens, tenant, answers(needs))
        self._known[slot] = known
        return len(known)

    def submit(self, groups: Sequence[RowGroup], needs: Needs) -> Ran:
        """Start the one call of a step; what slots had pending is dropped."""
        for g in groups:
            self._ran.pop(g.slot, None)
        return self.runner.run(groups, needs)

    def collect(self, ticket: Ran) -> tuple[Ran, list[Feats]]:
        """Rows and, per group, features. The ticket itself answers for the rows."""
        feats = [ticket.feats(i) for i in range(len(ticket.groups))]
        for i, g in enumerate(ticket.groups):
            self._ran[g.slot] = ticket.needs, feats[i]
            if g.kind == "prefill" and g.slot in self._known:
                feats[i] = joined(self._known.pop(g.slot), ticket.needs, feats[i])
        return ticket, feats

    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """Keep these rows of the slot's last group, in order, and drop the rest."""
        ran = self._ran.pop(slot, None)
        self.runner.kv.commit(slot, rows, None if ran is None else notes(*ran, rows))

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` committed tokens of `src`."""
        self.runner.kv.fork(src, dst, length)
        self._forget(dst)

    def release(self, slot: int) -> None:
        """Free a slot."""
        self.runner.kv.release(slot)
        self._forget(slot)

    def _forget(self, slot: int) -> None:
        self._known.pop(slot, None)
        self._ran.pop(slot, None)


def load_target(
    spec: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    quant: str = "none",
    compile: bool = True,
    threads: int | None = None,
    max_slots: int = 8,
    max_len: int | None = None,
    kv: Kind = "paged",
    stream_bytes: int | None = None,
    reading: Reading = Reading(),  # noqa: B008 - frozen
    report: Callable[[str], None] = lambda message: None,
) -> tuple[LMTarget, HFTokenizer]:
    """Load a model by directory, `.gguf` file, hub id or `demo`, and its tokenizer.

    `dtype`: bf16, fp32 or auto (bf16). `device`: auto is `cuda` where there is one. `quant`: none, int8
    (weights by output, activations by row), or int4 (weights only, in groups: least memory; `info.backend` says from
    how many rows it is slower than bf16). `compile`: run compiled layers where they fit the machine and the model.
    `threads` sets torch's threads for the process. `max_len`: tokens of a slot (None: the model's context, as far as
    memory allows).
    `kv`: paged re-uses what earlier requests left of a prompt, contiguous never does.

    `stream_bytes`: weights stay on disk and pass layer by layer through a window of so many bytes (`systems.stream`),
    read as `reading` says; a model that fits in the window is loaded as usual.

    Raises: ModelError when it cannot be loaded or served, UsageError for a value that is not allowed.
    """
    if dtype not in _DTYPES:
        raise UsageError(f"dtype is {dtype!r}; allowed: {', '.join(_DTYPES)}")
    if stream_bytes is not None:
        _check_stream(stream_bytes, quant, device)
    if quant not in _QUANTS:
        raise UsageError(f"quant is {quant!r}; allowed: {', '.join(_QUANTS)}")
    if threads is not None and threads < 1:
        raise UsageError(f"threads is {threads}; allowed: 1 or more")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() and stream_bytes is None else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        reason = str(e).splitlines()[0]
        raise UsageError(f"device {device!r} cannot be used ({reason}); allowed: auto, cpu, cuda") from None
    if threads is not None:
        torch.set_num_threads(threads)
    path, name = weights.resolve(spec, report), weights.name_of(spec)

    from hedgerow.models import convert, serve
    from hedgerow.models.opened import open_net

    tokenizer = HFTokenizer(*convert.read_tokenizer(path), name)
    net, backend = open_net(path, name, _DTYPES[dtype], device, quant, compile, stream_bytes, reading, report)
    longest = serve.longest(net.config)
    if max_len is None:
        token_bytes = 2 * net.layers * net.kv_heads * net.head_dim * net.dtype.itemsize
        longest = fitting(longest, max_slots * token_bytes, net.device)
    else:
        longest = min(longest, max_len)
    kind = "bf16" if net.dtype == torch.bfloat16 else "fp32"
    info = TargetInfo(name, net.vocab, longest, device, dtype=kind, quant=quant, backend=backend, eos=tokenizer.eos)
    return LMTarget(Runner(net, max_slots, longest, kv=kv), info), tokenizer


def _check_stream(stream_bytes: int, quant: str, device: str) -> None:
    """Raises UsageError for what does not go with streamed weights."""
    if stream_bytes < 1:
        raise UsageError(f"the window for streamed weights is {stream_bytes} bytes; allowed: 1 or more")
    if quant != "none":
        raise UsageError(
            f"quant is {quant!r} and weights are streamed, which run as they are on disk; leave one of the two out"
        )
    if device not in ("auto", "cpu"):
        raise UsageError(
            f"device is {device!r} and weights are streamed, which works on the CPU; leave one of the two out"
        )


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
