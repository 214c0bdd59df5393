"""Where the seconds of a decode step go, next to the bytes it reads, the products it makes, and the ceilings.

Text is generated with a recipe; the compiled pass times its own parts, the loop times drafting and the call, the rule
is timed around `verify`. What is left of the call is the host's part of it (packing rows), what is left of the step the
loop's. Bytes are those a step must read once: every weight, and the keys and values of the context. The ceilings are
measured in the same run: reading a buffer larger than the caches, and a large bf16 matrix product.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer

from hedgerow.api import Session
from hedgerow.bench.run import provenance
from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Needs, RowGroup
from hedgerow.core.tree import TokenTree

PROMPT = "Explain in a few sentences why the sky is blue, then write a short poem about it."
_BUFFER_BYTES = 256 * 2**20
_SIDE = 1024


class TimedRule:
    """A rule that counts its seconds; everything else is the rule's own."""

    def __init__(self, rule: Any) -> None:
        self._rule, self.seconds = rule, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def verify(self, *args: Any) -> Any:
        """The rule's verdict."""
        start = time.perf_counter()
        try:
            return self._rule.verify(*args)
        finally:
            self.seconds += time.perf_counter() - start


def ceilings(device: str) -> dict[str, float]:
    """Bytes a second that are read and bf16 operations a second that are done here: the best of five."""
    buffer = torch.ones(_BUFFER_BYTES // 4, device=device)
    a, b = (torch.ones(_SIDE, _SIDE, dtype=torch.bfloat16, device=device) for _ in range(2))

    def best(call: Any) -> float:
        spent = []
        for _ in range(6):
            start = time.perf_counter()
            float(call())                 # a number on the host: the device is done
            spent.append(time.perf_counter() - start)
        return min(spent[1:])

    return {
        "read_bytes_s": _BUFFER_BYTES / best(lambda: buffer.sum()),
        "bf16_flop_s": 2 * _SIDE**3 / best(lambda: (a @ b)[0, 0]),
    }


def profile(session: Session, max_tokens: int = 128, prompt: str = PROMPT, repetitions: int = 3) -> dict[str, Any]:
    """Seconds of a step by part, medians over `repetitions` texts of one prompt after a first that warms up.

    Raises: UsageError if nothing was decoded.
    """
    net = session.target.runner.net  # type: ignore[attr-defined]
    compiled = hasattr(net, "decoder")
    rule = TimedRule(session.recipe.rule)
    timed = dataclasses.replace(session, recipe=dataclasses.replace(session.recipe, rule=rule))
    found: list[dict[str, float]] = []
    sizes: list[tuple[float, float]] = []
    for turn in range(repetitions + 1):
        one = timed.fresh()
        one.recipe = timed.recipe
        inside = np.zeros(4)
        if compiled:
            net.seconds = None
        rule.seconds = 0.0
        parts: dict[str, float] = {}
        start = time.perf_counter()
        for chunk in one.stream(prompt, max_tokens=max_tokens, ignore_eos=True):
            if compiled and net.seconds is None:  # the first piece comes with the prefill
                net.seconds = inside
            last = chunk
        wall = time.perf_counter() - start
        result = last.result
        if result is None or not result.steps:
            raise UsageError(f"nothing was decoded: {max_tokens} tokens were asked for; ask for 2 or more")
        if compiled:
            net.seconds = None
        steps, spent = result.steps, result.seconds
        decode = wall - spent["prefill"]
        if compiled:
            parts = dict(zip(("matmul", "attention", "head", "norms and rounding"), inside, strict=True))
        parts["call, host" if compiled else "call"] = spent["verify"] - sum(parts.values())
        parts |= {"draft": spent["draft"], "rule": rule.seconds}
        parts["loop, host"] = spent["overhead"] - rule.seconds
        if turn:
            found.append({name: s / steps for name, s in parts.items()} | {"step": decode / steps})
            sizes.append((1 + result.drafted / steps, result.prompt_tokens + result.completion_tokens / 2))
    rows, context = (float(np.mean(column)) for column in zip(*sizes, strict=True))
    step_s = median(f["step"] for f in found)
    shares = {name: median(f[name] for f in found) for name in found[0] if name != "step"}
    return {
        "model": session.target.info.name, "backend": session.target.info.backend, "recipe": session.recipe.name,
        "bf16": session.target.info.quant == "none", "threads": torch.get_num_threads(),
        "rows": rows, "context": context, "step_s": step_s, "parts_s": shares,
        "sum_to_wall": sum(shares.values()) / step_s, "work": _work(net, rows, context) if compiled else None,
        "ceilings": ceilings(session.target.info.device),
        "why_no_parts": "" if compiled else "only compiled layers time their parts",
    }


def _work(net: Any, rows: float, context: float) -> dict[str, dict[str, float]]:
    """Bytes to read and floating-point operations to do, by part."""
    matrices = net.decoder.weights.matrices
    body, head = matrices[:-1], matrices[-1]
    tokens = context + rows
    return {
        "matmul": {"bytes": sum(m.nbytes for m in body), "flop": sum(2 * rows * m.n * m.k for m in body)},
        "attention": {
            "bytes": 4 * net.layers * net.kv_heads * net.head_dim * tokens,
            "flop": 4 * rows * net.layers * net.heads * net.head_dim * tokens,
        },
        "head": {"bytes": head.nbytes, "flop": 2 * rows * head.n * head.k},
    }


# ----------------------------------------------------------------------------------------------- steps of a given size

ROWS, CONTEXTS = (1, 4, 8, 16, 32), (128, 1024, 4096)


def sweep(
    target: Any, rows: tuple[int, ...] = ROWS, contexts: tuple[int, ...] = CONTEXTS, repetitions: int = 9,
) -> list[dict[str, Any]]:
    """Whole steps of random trees, sizes and contexts in turns, the second of two alike; the pass times its parts."""
    rng, net, info = np.random.default_rng(0), target.runner.net, target.info
    slots = {}
    for context in contexts:
        slot = slots[context] = target.acquire()
        ids = rng.integers(100, info.vocab, context)
        target.submit([RowGroup("prefill", slot, ids, np.arange(context), np.empty((context, 0), np.bool_))], Needs())
        target.commit(slot, range(context))
    trees = {
        n: TokenTree.of(rng.integers(100, info.vocab, n - 1), [int(rng.integers(-1, i)) for i in range(n - 1)])
        for n in rows
    }
    spent: dict[tuple[int, int], list[list[float]]] = {(c, n): [] for c in contexts for n in rows}
    for turn in range(repetitions + 1):
        for (context, n), found in spent.items():
            tree = trees[n]
            tokens = np.concatenate([[5], tree.tokens])
            group = RowGroup("tree", slots[context], tokens, tree.positions(context), tree.mask)
            target.submit([group], Needs())  # a step follows one of its own context, in decoding too
            net.seconds = np.zeros(4)
            start = time.perf_counter()
            ticket, _ = target.collect(target.submit([group], Needs()))
            ticket.argmax(0)
            if turn:
                found.append([time.perf_counter() - start, *net.seconds])
    net.seconds = None
    for slot in slots.values():
        target.release(slot)
    out = []
    for (context, n), found in spent.items():
        whole, products, attention, head, _ = (median(column) for column in zip(*found, strict=True))
        out.append({
            "context": context, "rows": n, "step_s": whole, "step_s_low": min(f[0] for f in found),
            "step_s_high": max(f[0] for f in found), "products_s": products + head, "attention_s": attention,
            "step_to_products": median(f[0] / (f[1] + f[3]) for f in found),
            "keys_bytes": 4 * net.layers * net.kv_heads * net.head_dim * (context + n),
        })
    return out


def main(
    out: Annotated[Path, typer.Option(help="Where the results go (JSON).")],
    model: Annotated[str, typer.Option(help="A model that runs in compiled layers.")] = "demo",
    quants: Annotated[str, typer.Option(help="Quantisations, by commas.")] = "none,int8",
    repetitions: Annotated[int, typer.Option(help="Timed steps of each size.")] = 9,
) -> None:
    """Time whole steps by rows and context, next to their products, their attention and the ceilings."""
    from hedgerow.target.lm import load_target

    found: dict[str, Any] = {
        "table": "steps", "provenance": provenance("steps"), "repetitions": repetitions,
        "threads": torch.get_num_threads(), "ceilings": ceilings("cpu"), "quants": {},
    }
    for quant in quants.split(","):
        target, _ = load_target(model, device="cpu", quant=quant, max_slots=len(CONTEXTS))
        if not hasattr(target.runner.net, "decoder"):
            raise UsageError(f"{model!r} does not run in compiled layers here: {target.info.backend}")
        found["quants"][quant] = sweep(target, repetitions=repetitions)
        out.write_text(json.dumps(found, indent=1) + "\n")
    for quant, steps in found["quants"].items():
        for s in steps:
            print(
                f"{quant} context {s['context']} rows {s['rows']}: {s['step_s'] * 1e3:.2f} "
                f"({s['step_s_low'] * 1e3:.2f}-{s['step_s_high'] * 1e3:.2f}) ms, products {s['products_s'] * 1e3:.2f}, "
                f"attention {s['attention_s'] * 1e3:.2f}, step / products {s['step_to_products']:.2f}"
            )
    print({k: f"{v / 1e9:.1f} G/s" for k, v in found["ceilings"].items()})


if __name__ == "__main__":
    typer.run(main)
