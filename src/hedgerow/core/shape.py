"""Tree shapes: topology without tokens, written as rank paths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from hedgerow.core.errors import UsageError
from hedgerow.core.tree import ROOT


@dataclass(frozen=True, eq=False)
class TreeShape:
    """A fixed topology: node i is the `rank[i]`-th child (0-based) of `parent[i]`, in order of survival.

    `survival[i]` is the estimate the order came from (1 where a shape has none: then the order is breadth first).

    >>> s = TreeShape.from_paths([(0,), (1,), (0, 0)])
    >>> s.level_sizes, s.paths
    ((2, 1), ((0,), (1,), (0, 0)))
    """

    parent: Int[np.ndarray, " nodes"]
    rank: Int[np.ndarray, " nodes"]
    survival: Float[np.ndarray, " nodes"]

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]], survival: Sequence[float] | None = None) -> TreeShape:
        """A shape from 0-based rank paths; a parent may stand anywhere in the list, the order is kept otherwise.

        Raises: UsageError for a repeated path, a missing parent, or a rank whose earlier siblings are missing.
        """
        listed = [tuple(int(r) for r in p) for p in paths]
        weight = dict(zip(listed, survival if survival is not None else [1.0] * len(listed), strict=True))
        if len(weight) != len(listed):
            twice = next(p for p in listed if listed.count(p) > 1)
            raise UsageError(f"tree shape lists the path {twice} twice; every node may stand there once")
        for p in listed:
            if not p:
                raise UsageError("tree shape lists the root; only draft nodes are listed")
            if len(p) > 1 and p[:-1] not in weight:
                raise UsageError(f"tree shape has {p} but not its parent {p[:-1]}")
            if p[-1] > 0 and (*p[:-1], p[-1] - 1) not in weight:
                raise UsageError(f"tree shape has {p} but not its earlier sibling {(*p[:-1], p[-1] - 1)}")
        order: dict[tuple[int, ...], int] = {}

        def place(p: tuple[int, ...]) -> None:
            if p in order:
                return
            if len(p) > 1:
                place(p[:-1])
            if p[-1] > 0:
                place((*p[:-1], p[-1] - 1))
            order[p] = len(order)

        for p in listed:
            place(p)
        return cls(
            parent=np.array([order[p[:-1]] if len(p) > 1 else ROOT for p in order], np.int64),
            rank=np.array([p[-1] for p in order], np.int64),
            survival=np.array([weight[p] for p in order], np.float64),
        )

    @property
    def nodes(self) -> int:
        """Number of draft nodes."""
        return len(self.parent)

    @cached_property
    def depth(self) -> Int[np.ndarray, " nodes"]:
        """Edges from the root."""
        depth = np.ones(self.nodes, np.int64)
        for i, p in enumerate(self.parent.tolist()):
            if p >= 0:
                depth[i] = depth[p] + 1
        return depth

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Rank path of every node."""
        out: list[tuple[int, ...]] = []
        for p, r in zip(self.parent.tolist(), self.rank.tolist(), strict=True):
            out.append((*(out[p] if p >= 0 else ()), r))
        return tuple(out)

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """Nodes at depth 1, 2, …"""
        return tuple(np.bincount(self.depth, minlength=1)[1:].tolist()) if self.nodes else ()

    @property
    def max_depth(self) -> int:
        """Longest path in edges."""
        return len(self.level_sizes)

    @cached_property
    def child_counts(self) -> tuple[int, ...]:
        """Children of the root (entry 0) and of node i (entry i + 1)."""
        return tuple(np.bincount(self.parent + 1, minlength=self.nodes + 1).tolist())

    def prefix(self, n: int) -> TreeShape:
        """The first `n` nodes in order of survival."""
        return self if n >= self.nodes else TreeShape(self.parent[:n], self.rank[:n], self.survival[:n])
