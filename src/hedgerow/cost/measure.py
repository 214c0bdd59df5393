"""Timing a target's steps on this machine: what a step of so many rows costs next to a plain one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from hedgerow.core.errors import CapacityError
from hedgerow.core.parts import Needs, RowGroup, Target
from hedgerow.core.tree import TokenTree

CONTEXT = 64  # tokens of the made-up prompt the steps stand behind


def step_seconds(
    target: Target, rows: Sequence[int], repetitions: int = 3, clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Median seconds of a target call with so many rows (root and children), the sizes taken in turns.

    Uses and frees one slot; nothing is committed behind its prompt.

    Raises: CapacityError when no slot is free.
    """
    slot = target.acquire()
    try:
        context = max(1, min(CONTEXT, target.info.max_len - max(rows) - 1))
        prompt = np.arange(context) % target.info.vocab
        causal = np.empty((context, 0), np.bool_)
        target.collect(target.submit([RowGroup("prefill", slot, prompt, np.arange(context), causal)], Needs()))
        target.commit(slot, range(context))
        spent: dict[int, list[float]] = {n: [] for n in rows}
        for turn in range(repetitions + 1):
            for n in rows:
                star = TokenTree.of(tokens=prompt[:1].repeat(n - 1), parent=[-1] * (n - 1))
                group = RowGroup("tree", slot, prompt[:1].repeat(n), star.positions(context), star.mask)
                start = clock()
                found, _ = target.collect(target.submit([group], Needs()))
                found.argmax(0)
                if turn:  # the first round warms up
                    spent[n].append(clock() - start)
        return {n: median(s) for n, s in spent.items()}
    finally:
        target.release(slot)


@dataclass
class Prices:
    """Step times of one loaded target, measured when first asked for and shared by all its sessions."""

    target: Target
    seconds: dict[int, float] = field(default_factory=dict)
    _ratios: dict[int, float] = field(default_factory=dict)  # asked for at every step

    def pricer(self, usual: int) -> Callable[..., float]:
        """`ratio` as a controller takes it: of so many rows, or of the usual number where none is given."""

        def price(rows: int = usual) -> float:
            return self.ratio(rows)

        return price

    def ratio(self, rows: int) -> float:
        """T(rows) / T(1), at least 1: the tokens per step above which a step of `rows` rows pays.

        Sizes that double are measured, and lines drawn between them; 1 while all slots are taken.
        """
        if rows <= 1:
            return 1.0
        if (known := self._ratios.get(rows)) is not None:
            return known
        if not self.seconds or max(self.seconds) < rows:
            largest = max([4, *self.seconds])
            sizes = [1]
            while sizes[-1] < rows or len(sizes) == 1:
                sizes.append(largest if len(sizes) == 1 else 2 * sizes[-1])
            try:
                self.seconds |= step_seconds(self.target, sizes)
            except CapacityError:
                return 1.0
            self._ratios.clear()
        sizes = sorted(self.seconds)
        ratio = max(1.0, float(np.interp(rows, sizes, [self.seconds[n] for n in sizes])) / self.seconds[1])
        self._ratios[rows] = ratio
        return ratio
