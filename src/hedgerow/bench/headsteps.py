"""What a call of a compiled drafter costs next to a plain step of its target, which drives its weights from the caches.

Steps of the target and calls of the drafter take turns, as in decoding: the first call after a step is *cold*, later
ones find some weights in the caches. *Calls* are the three of a step: committed rows, then two frontiers. A *step's
drafting* is the whole of it, with the drafter, the policy and the tree; *outside* is what of it was not spent in the
library. Weights are random: they change no time.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from hedgerow.bench.run import provenance
from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Feats, Needs, Plan, RowGroup, Sampling, Step, Verdict, View
from hedgerow.core.rng import Rng
from hedgerow.draft.base import Base
from hedgerow.draft.eagle import EagleDrafter
from hedgerow.draft.formats.head import Head, HeadConfig
from hedgerow.draft.nets.compiled import CompiledHead, compiled_head
from hedgerow.engine.lockstep import lockstep
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import Depth
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.systems import mask
from hedgerow.systems.attention import Span
from hedgerow.systems.kv import KVStore, open_store

ROWS = (1, 4, 8, 12)
ROUNDS = (3, 8, 8)                        # rows of the three calls of a step
_KINDS = {"none": "bf16", "int8": "int8"}


def random_head(net: Any, draft_vocab: int, seed: int = 0) -> Head:
    """An EAGLE-3 head of one layer like the target's own, with random weights."""
    source, w = torch.Generator().manual_seed(seed), net.decoder.weights
    taps = (2, net.layers // 2, net.layers - 3)
    config = HeadConfig(
        "eagle3", w.hidden, w.hidden, w.vocab, draft_vocab, heads=w.heads, kv_heads=w.kv_heads, head_dim=w.head_dim,
        inner=w.inner, eps=w.eps, taps=taps,
    )
    kv = w.kv_heads * w.head_dim
    shapes = {
        "fc": (w.hidden, len(taps) * w.hidden), "lm_head": (draft_vocab, w.hidden),
        "layers.0.self_attn.q_proj": (w.heads * w.head_dim, 2 * w.hidden),
        "layers.0.self_attn.k_proj": (kv, 2 * w.hidden), "layers.0.self_attn.v_proj": (kv, 2 * w.hidden),
        "layers.0.self_attn.o_proj": (w.hidden, w.heads * w.head_dim),
        "layers.0.mlp.gate_proj": (w.inner, w.hidden), "layers.0.mlp.up_proj": (w.inner, w.hidden),
        "layers.0.mlp.down_proj": (w.hidden, w.inner),
    }
    tensors = {f"{n}.weight": torch.randn(*s, generator=source).div_(s[1] ** 0.5) for n, s in shapes.items()}
    for name in ("norm", "layers.0.hidden_norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm"):
        tensors[f"{name}.weight"] = torch.ones(w.hidden)
    ids = torch.randperm(w.vocab, generator=source)[:draft_vocab].sort().values
    return Head(config, tensors, ids)


class _Clocked:
    """The compiled library; `spent` counts the seconds in a drafter's calls."""

    def __init__(self, library: Any) -> None:
        self._library, self.spent = library, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def _timed(self, call: Any, *given: Any) -> None:
        start = time.perf_counter()
        call(*given)
        self.spent += time.perf_counter() - start

    def head_forward(self, *given: Any) -> None:
        self._timed(self._library.head_forward, *given)

    def head_fuse(self, *given: Any) -> None:
        self._timed(self._library.head_fuse, *given)


def whole_steps(target: Any, head: CompiledHead, context: int, repetitions: int) -> dict[str, list[float]]:
    """Milliseconds of drafting 15 nodes in three rounds, between the target's steps over those nodes."""
    drafter = EagleDrafter(head, head.config, 1, context + 4 * repetitions + 64)
    clock = head.compiled.library = _Clocked(head.compiled.library)  # type: ignore[assignment]
    policy, needs = Layerwise(8, Beam(8), Depth(3), Budget(15)), drafter.needs
    ids = np.random.default_rng(1).integers(100, head.config.vocab, context)
    slot, at = target.acquire(), context
    prompt = RowGroup("prefill", slot, ids, np.arange(context), np.empty((context, 0), np.bool_))
    rows, feats = target.collect(target.submit([prompt], needs))
    target.commit(slot, range(context))
    root = int(rows.argmax(0)[-1])
    drafter.begin(slot, [*ids.tolist(), root], feats[0])
    found: dict[str, list[float]] = {"step's drafting": [], "outside": [], "recording": []}
    for turn in range(repetitions + 2):
        view = View(0, slot, root, at, 1 << 20, Sampling(temperature=0.0), Rng(0).at(at))
        clock.spent, start = 0.0, time.perf_counter()
        [tree] = lockstep(policy, [drafter], [view], [Plan(15)])
        drafted, inside = time.perf_counter(), clock.spent
        group = RowGroup("tree", slot, np.concatenate([[root], tree.tokens]), tree.positions(at), tree.mask)
        rows, feats = target.collect(target.submit([group], needs))
        verdict = Verdict((0,), int(rows.argmax(0)[1]), "residual")   # as if one node were accepted every time
        target.commit(slot, [0, 1])
        called = time.perf_counter()
        drafter.commit(slot, Step(tree, verdict, feats[0], root, at, called - drafted))
        done = time.perf_counter()
        root, at = verdict.token, at + 2
        if turn > 1:
            for name, seconds in zip(
                found, (drafted - start, drafted - start - inside, done - called), strict=True
            ):
                found[name].append(1e3 * seconds)
    target.release(slot)
    return found


class _Calls:
    """Timed calls of a head behind a context of random rows."""

    def __init__(self, head: CompiledHead, vocab: int, context: int, rng: np.random.Generator) -> None:
        self.head, self.vocab, self.rng = head, vocab, rng
        self.kv: KVStore = open_store("paged", head.layers, head.kv_heads, head.head_dim, 1, context + 64, 64,
                                      head.dtype, head.device)
        self.slot, self.context = self.kv.acquire(), context
        w = head.compiled.weights
        self.features = head.fuse(Feats(taps=torch.randn(w.taps, context, w.target_hidden)))
        self.run(context, 0)
        self.kv.commit(self.slot, range(context))

    def run(self, rows: int, at: int) -> float:
        """Seconds of a call with `rows` rows, each of them kept, on a chain."""
        self.kv.stage(self.slot, rows)
        tokens, features = self.rng.integers(0, self.vocab, rows), self.features[:rows]
        span = Span(self.slot, 0, rows, at, mask.causal(rows))
        positions, keep = np.arange(rows) + at, list(range(min(rows, 12)))
        start = time.perf_counter()
        self.head.run(self.kv, tokens, features, positions, [span], keep, 8)
        return time.perf_counter() - start

    def draft(self, rows: int) -> float:
        """`run` behind the context; what it wrote is dropped."""
        spent = self.run(rows, self.context)
        self.kv.drop(self.slot)
        return spent


def measure(target: Any, kind: str, draft_vocab: int, context: int, repetitions: int) -> dict[str, Any]:
    """Milliseconds of a plain step, of cold and later calls by rows, and of whole steps' drafting: all samples."""
    rng, net = np.random.default_rng(0), target.runner.net
    base = Base.of(target)
    head = compiled_head(random_head(net, draft_vocab), base, net.decoder.library, kind)
    calls = _Calls(head, net.vocab, context, rng)
    slot, ids = target.acquire(), rng.integers(100, net.vocab, context)
    target.submit([RowGroup("prefill", slot, ids, np.arange(context), np.empty((context, 0), np.bool_))], Needs())
    target.commit(slot, range(context))
    plain = RowGroup("tree", slot, np.array([5]), np.array([context]), np.ones((1, 1), np.bool_))

    def step() -> float:
        start = time.perf_counter()
        ticket, _ = target.collect(target.submit([plain], head.config.needs))
        ticket.argmax(0)
        return time.perf_counter() - start

    found: dict[str, list[float]] = {}
    for turn in range(repetitions + 2):
        sample = {}
        for rows in ROWS:
            step()
            sample[f"cold {rows}"] = calls.draft(rows)
            sample[f"next {rows}"] = calls.draft(rows)
        sample["plain"] = step()
        sample["calls"] = sum(calls.draft(rows) for rows in ROUNDS)
        if turn > 1:
            for name, seconds in sample.items():
                found.setdefault(name, []).append(1e3 * seconds)
    target.release(slot)
    return found | whole_steps(target, head, context, repetitions)


def main(
    out: Annotated[Path | None, typer.Option(help="Where the samples go (JSON).")] = None,
    model: Annotated[str, typer.Option(help="A model that runs in compiled layers.")] = "demo",
    quants: Annotated[str, typer.Option(help="Quantisations, by commas.")] = "none,int8",
    draft_vocab: Annotated[int, typer.Option(help="Tokens the drafter knows.")] = 8192,
    context: Annotated[int, typer.Option(help="Tokens before the rows.")] = 128,
    repetitions: Annotated[int, typer.Option(help="Timed rounds.")] = 40,
) -> None:
    """Time calls of a compiled EAGLE-3 head between plain steps of its target."""
    from hedgerow.target.lm import load_target

    result: dict[str, Any] = {"provenance": provenance("headsteps"), "context": context, "ms": {}}
    for quant in quants.split(","):
        target, _ = load_target(model, device="cpu", quant=quant, max_slots=1)
        if not hasattr(target.runner.net, "decoder"):
            raise UsageError(f"{model!r} does not run in compiled layers here: {target.info.backend}")
        found = result["ms"][quant] = measure(target, _KINDS[quant], draft_vocab, context, repetitions)
        plain = float(np.median(found["plain"]))
        for name, ms in found.items():
            low, mid, high = np.percentile(ms, [10, 50, 90])
            print(f"{_KINDS[quant]} {name}: {mid:.3f} ({low:.3f}-{high:.3f}) ms, {mid / plain:.3f} of a plain step")
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
