"""Timing whole steps of a network with random weights: rows × batch × context, eager and recorded, and their host part.

A step goes from token ids to the best token of every row; the root is committed, as plain decoding would. Slots are
filled without running their prompts: keys are random numbers, which take as long to read as any.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from hedgerow.core.parts import Needs, RowGroup, TargetInfo
from hedgerow.core.tree import TokenTree
from hedgerow.models.hf import HFNet
from hedgerow.models.runner import Network, Runner
from hedgerow.systems import mask
from hedgerow.systems.attention import Span
from hedgerow.systems.captured import Captured, bucket_of
from hedgerow.systems.kv import Kind
from hedgerow.systems.recorders import Recorder, Replay, TapeRecorder
from hedgerow.target.lm import LMTarget
from hedgerow.target.tiny import TinyNet

NEEDS = Needs()
WARM, MARGIN = 2, 96                      # untimed steps of each kind; places behind the context
EAGER = 3                                 # timed steps of the eager kind: they take long and vary little


class Size(NamedTuple):
    """A step: rows of each request (root included), requests, committed tokens of each, the store they lie in."""

    rows: int
    batch: int
    context: int
    kv: Kind = "paged"


def sizes(rows: Sequence[int], batches: Sequence[int], contexts: Sequence[int], most_rows: int) -> list[Size]:
    """Every combination with at most so many rows in all; the contiguous store at the longest context only.

    >>> [tuple(s) for s in sizes([1, 8], [1, 2], [50], 8)]
    [(1, 1, 50, 'paged'), (8, 1, 50, 'paged'), (1, 2, 50, 'paged'), (1, 1, 50, 'contiguous'), ...
    """
    fits = [(r, b) for b in batches for r in rows if r * b <= most_rows]
    paged = [Size(r, b, c) for c in contexts for r, b in fits]
    return paged + [Size(r, b, max(contexts), "contiguous") for r, b in fits]


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Bed:
    """A network with a store of its own for one batch and context, and its steps."""

    def __init__(self, net: Network, batch: int, context: int, kv: Kind, widest: int) -> None:
        self.net, self.batch, self.context = net, batch, context
        room = context + widest + MARGIN
        self.runner = Runner(net, batch, room, max_rows=widest, kv=kv)
        kind = "bf16" if net.dtype == torch.bfloat16 else "fp32"
        info = TargetInfo("random", net.vocab, room, str(net.device), kind, "torch")
        self.target = LMTarget(self.runner, info)
        with torch.inference_mode():
            self.runner.kv.pool.normal_()
        self._rng = np.random.default_rng(0)

    @contextmanager
    def filled(self) -> Iterator[list[int]]:
        """Slots of `context` tokens each, freed at the end."""
        kv, slots = self.runner.kv, []
        for _ in range(self.batch):
            slots.append(kv.acquire())
            kv.stage(slots[-1], self.context)
            kv.commit(slots[-1], range(self.context))
        yield slots
        for slot in reversed(slots):      # the next to be filled get the same, and meet the same keys
            self.target.release(slot)

    def tree(self, rows: int) -> TokenTree:
        """A random tree of so many rows with its root."""
        rng, nodes = self._rng, rows - 1
        return TokenTree.of(rng.integers(0, self.net.vocab, nodes), [int(rng.integers(-1, i)) for i in range(nodes)])

    def groups(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> list[RowGroup]:
        """The groups of a step."""
        out = []
        for slot, tree in zip(slots, trees, strict=True):
            at = self.runner.kv.length(slot)
            out.append(RowGroup("tree", slot, np.concatenate([[5], tree.tokens]), tree.positions(at), tree.mask))
        return out

    def step(self, groups: Sequence[RowGroup]) -> tuple[float, float, Any]:
        """Seconds of a step in all, and of those the host's; and its rows.

        The host's are what passes before the device has everything, and after it is done: what it computes between is
        waited for.
        """
        device = self.net.device
        wait(device)
        start = time.perf_counter()
        ticket = self.target.submit(groups, NEEDS)
        given = time.perf_counter()
        wait(device)
        done = time.perf_counter()
        rows, _ = self.target.collect(ticket)
        for i in range(len(groups)):
            rows.argmax(i)
        for g in groups:
            self.target.commit(g.slot, [0])
        end = time.perf_counter()
        return end - start, end - done + given - start, rows

    def prepare(self, rows: Sequence[int]) -> float:
        """Record the buckets of these rows, the largest first; seconds."""
        start, kept = time.perf_counter(), self.net.captured
        assert kept is not None
        # A step commits its root, so a size may meet two buckets of keys; both ends are recorded.
        ends = (self.context, self.context + MARGIN - 1)
        spans = [[Span(i, i * n, n, at, mask.causal(n)) for i in range(self.batch)] for n in rows for at in ends]
        buckets = {b for s in spans if (b := bucket_of(self.runner.kv, s)) is not None}
        kept.prepare(self.net.static(NEEDS), self.runner.kv, self.net.heads, buckets, NEEDS)
        wait(self.net.device)
        return time.perf_counter() - start


def far(a: torch.Tensor, b: torch.Tensor) -> float:
    """Root mean square of a difference, in units of the spread of the second."""
    return float((a - b).pow(2).mean().sqrt() / b.std().clamp_min(1e-6))


def measure(
    net: HFNet, todo: Sequence[Size], recorder: Callable[[], Recorder], repetitions: int, stop: Callable[[], bool],
    done: Callable[[dict[str, Any]], None],
) -> None:
    """Time every size, eager and recorded in turns; `done` gets each as it is finished. Ends early when `stop` says so.

    Sizes that share a store (batch, context, kind) stand together.
    """
    beds: dict[tuple[int, int, Kind], list[int]] = {}
    for s in todo:
        beds.setdefault((s.batch, s.context, s.kv), []).append(s.rows)
    for (batch, context, kv), rows in beds.items():
        if stop():
            return
        need = 2 * net.layers * net.kv_heads * net.head_dim * net.dtype.itemsize * batch * (context + 512)
        if (free := memory(net.device)) is not None and need > 0.8 * free:
            done({"batch": batch, "context": context, "kv": kv, "left_out": f"{need / 1e9:.1f} GB of keys and values"})
            continue
        net.captured = kept = Captured(recorder())
        bed = Bed(net, batch, context, kv, max(rows))
        prepare_s = bed.prepare(rows)
        for n in rows:
            if stop():
                return
            cell = _cell(bed, kept, n, repetitions)
            done({
                "rows": n, "batch": batch, "context": context, "kv": kv, **cell,
                "prepare_s": prepare_s, "recordings": kept.count(bed.runner.kv), "why_not": kept.why_not,
            })
        net.captured = None
        del bed, kept                     # or the next store would have to fit beside this one
        release(net.device)


def _cell(bed: Bed, kept: Captured, rows: int, repetitions: int) -> dict[str, Any]:
    net, apart, same = bed.net, 0.0, 1.0
    spent: dict[str, list[tuple[float, float]]] = {"eager": [], "recorded": []}
    for turn in range(WARM + repetitions):
        trees = [bed.tree(rows) for _ in range(bed.batch)]
        found = {}
        for how, each in spent.items():
            if how == "eager" and turn >= WARM + EAGER:
                continue
            net.captured = kept if how == "recorded" else None
            with bed.filled() as slots:
                whole, host, result = bed.step(bed.groups(slots, trees))
                found[how] = torch.cat([result.device_logits(i) for i in range(bed.batch)])
            if turn >= WARM:
                each.append((whole, host))
        if "eager" in found:
            apart = max(apart, far(found["recorded"], found["eager"]))
            same = min(same, float((found["recorded"].argmax(1) == found["eager"].argmax(1)).float().mean()))
    return {
        how: {
            "step_s": median(w for w, _ in each), "step_s_low": min(w for w, _ in each),
            "step_s_high": max(w for w, _ in each), "host_s": median(h for _, h in each),
        }
        for how, each in spent.items()
    } | {"apart": apart, "same_best": same}


def reading(device: torch.device, nbytes: int) -> float:
    """Bytes a second at which a buffer of so many is summed: the best of five."""
    buffer, best = torch.ones(nbytes // 4, device=device), float("inf")
    for _ in range(6):
        wait(device)
        start = time.perf_counter()
        buffer.sum()
        wait(device)
        best = min(best, time.perf_counter() - start)
    return nbytes / best


def release(device: torch.device) -> None:
    """Give memory that nobody uses back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def memory(device: torch.device) -> int | None:
    """Bytes that are free on the device, None where that is not asked."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


# ----------------------------------------------------------------------------------------------- the host's part alone


class _Nothing(TapeRecorder):
    """Records and then replays nothing: what is left of a step is the host's."""

    name = "nothing"

    def record(self, work: Callable[[], None]) -> Replay:
        """Run it once."""
        work()
        return lambda: None


def host(device: torch.device, batches: Sequence[int], rows: Sequence[int], repetitions: int) -> list[dict[str, Any]]:
    """Seconds of a recorded step without the device's work: packing, copies, and reading the best tokens.

    The network is tiny, since its layers run in the recording only; its size changes nothing here.
    """
    net = TinyNet(0, 64, 1, 2, 1, 8, 4.0, device)
    out = []
    for batch in batches:
        bed = Bed(net, batch, 100, "paged", max(rows))
        net.captured = Captured(_Nothing())
        for n in rows:
            if batch * n > 512:
                continue
            trees, spent = [bed.tree(n) for _ in range(batch)], []
            for turn in range(WARM + repetitions):
                with bed.filled() as slots:
                    seconds = bed.step(bed.groups(slots, trees))[1]
                if turn >= WARM:
                    spent.append(seconds)
            out.append({
                "batch": batch, "rows": n, "host_s": median(spent), "host_s_low": min(spent), "host_s_high": max(spent)
            })
    return out
