"""The two key-value stores side by side: step times, and what a prompt costs that was seen before.

    python -m hedgerow.bench.stores --contexts 128,1024,4096

Both run the same loaded model in turns. With `--long N` a prompt of N tokens is prefilled once and the peak memory of
the process is told; nothing else is measured then.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import numpy as np
import typer

from hedgerow.core.parts import Needs, RowGroup
from hedgerow.core.tree import TokenTree
from hedgerow.models.runner import Runner
from hedgerow.systems.kv_paged import PAGE
from hedgerow.target.lm import LMTarget, load_target


def main(
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    contexts: Annotated[str, typer.Option(help="Committed tokens behind a step.")] = "128,1024,4096",
    rows: Annotated[str, typer.Option(help="Rows of a step.")] = "1,4,16",
    repetitions: Annotated[int, typer.Option(help="Timed steps each.")] = 15,
    long: Annotated[int, typer.Option(help="Prefill one prompt of so many tokens instead.")] = 0,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
) -> None:
    """Time steps of both stores and prefills of the paged one."""
    sizes = [int(x) for x in contexts.split(",")]
    target, _ = load_target(model, threads=threads, max_slots=4, kv="paged")
    if long:
        spent = _timed(lambda: _prefilled(target, _words(target, long)))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"prefill of {long} tokens: {spent:.2f} s, {long / spent:.0f} tok/s, peak {peak / 1e3:.0f} MB")
        return
    _steps(target, sizes, [int(x) for x in rows.split(",")], repetitions)
    for context in sizes:
        prompt = _words(target, context + 1)
        first, again, more = (
            _timed(partial(_once, target, text)) for text in (prompt, prompt, [*prompt, *_words(target, 20)])
        )
        print(f"prefill of {len(prompt)}: new {first:.3f} s, the same again {again:.3f} s, and 20 more {more:.3f} s")


def _steps(target: LMTarget, sizes: Sequence[int], counts: Sequence[int], repetitions: int) -> None:
    """A table of step times, the stores in turns."""
    kv = target.runner.kv
    other = LMTarget(Runner(target.runner.net, kv.slots, kv.max_len, kv.max_rows, kv="contiguous"), target.info)
    variants = {"contiguous": other, "paged": target, "paged, scattered": target}
    print("context rows " + " ".join(f"{name:>22}" for name in variants) + "   (ms: median, quartiles)")
    for context in sizes:
        text = _words(target, context)
        slots = {name: _prefilled(t, text, scattered="scattered" in name) for name, t in variants.items()}
        for n in counts:
            tree = TokenTree.of([7] * (n - 1), [-1] * (n - 1))
            spent: dict[str, list[float]] = {name: [] for name in variants}
            for turn in range(repetitions + 1):
                for name, t in variants.items():
                    seconds = _timed(partial(_step, t, slots[name], context, tree))
                    spent[name] += [seconds] if turn else []  # the first round warms up
            cells = [" ".join(f"{1e3 * x:6.2f}" for x in np.percentile(s, [50, 25, 75])) for s in spent.values()]
            print(f"{context:7} {n:4} " + " ".join(f"{c:>22}" for c in cells))
        for name, t in variants.items():
            t.release(slots[name])


def _once(target: LMTarget, prompt: list[int]) -> None:
    target.release(_prefilled(target, prompt))


def _words(target: LMTarget, length: int) -> list[int]:
    return np.random.default_rng(length).integers(100, target.info.vocab - 100, length).tolist()


def _prefilled(target: LMTarget, prompt: list[int], scattered: bool = False) -> int:
    """A slot with a prompt; `scattered`: another slot takes every other page meanwhile."""
    slot = target.acquire()
    known = 0 if scattered else target.reuse(slot, prompt, Needs())
    if not scattered:
        _extend(target, slot, prompt, known, len(prompt))
        return slot
    other = target.acquire()
    for begin in range(0, len(prompt), PAGE):
        for each in (slot, other):
            _extend(target, each, prompt, begin, min(begin + PAGE, len(prompt)))
    target.release(other)
    return slot


def _extend(target: LMTarget, slot: int, prompt: list[int], begin: int, end: int) -> None:
    positions = np.arange(begin, end)
    group = RowGroup("prefill", slot, np.array(prompt[begin:end]), positions, np.empty((end - begin, 0), np.bool_))
    found, _ = target.collect(target.submit([group], Needs()))
    found.argmax(0)
    target.commit(slot, range(end - begin))


def _step(target: LMTarget, slot: int, context: int, tree: TokenTree) -> None:
    group = RowGroup("tree", slot, np.concatenate([[7], tree.tokens]), tree.positions(context), tree.mask)
    found, _ = target.collect(target.submit([group], Needs()))
    found.argmax(0)


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    typer.run(main)
