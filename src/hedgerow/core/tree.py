"""The token tree: what a policy returns, the controller cuts, the target verifies and the rule judges.

A tree is a struct of arrays over its draft nodes. The root (the last committed token) is not among them: it is index -1
as a parent and row 0 of the forward pass. Everything else — depth, mask, positions, leaves, paths — is derived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from hedgerow.core.errors import InvariantError

ROOT = -1


class Selection(IntEnum):
    """How a node's token was picked from its drafter (law 3): decides which rules may judge it."""

    TOP_K = 0
    RETRIEVED = 1
    COUPLED = 2
    IID = 3
    WITHOUT_REPLACEMENT = 4
    HUB = 5
    GREEDY_PLUS_ONE = 6

    @property
    def drawn(self) -> bool:
        """Whether the token is a draw from q that no rule may see dropped or reordered for its identity."""
        return self >= Selection.IID

    @property
    def label(self) -> str:
        """The name used in recipes, errors and records, e.g. `without_replacement`."""
        return self.name.lower()


@dataclass(frozen=True, eq=False)
class TokenTree:
    """Draft nodes in order of survival; every prefix is a valid tree.

    Arrays of length `nodes`: `tokens`; `parent` (-1 = root, else < own index); `survival` in [0, 1]; `selection`
    (a `Selection`); `source` (which of the recipe's drafters); `origin` (the drafter's address of the q row the token
    was picked from); `mult` (i.i.d. draws merged in this node, 1 otherwise); `keep` (cut last).

    Raises: InvariantError if a parent does not come before its child or the lengths differ.

    >>> t = TokenTree.of(tokens=[7, 8, 9], parent=[-1, 0, 0])
    >>> t.depth.tolist(), t.leaves.tolist(), t.path(2)
    ([1, 2, 2], [1, 2], (0, 2))
    """

    tokens: Int[np.ndarray, " nodes"]
    parent: Int[np.ndarray, " nodes"]
    survival: Float[np.ndarray, " nodes"]
    selection: Int[np.ndarray, " nodes"]
    source: Int[np.ndarray, " nodes"]
    origin: Int[np.ndarray, " nodes"]
    mult: Int[np.ndarray, " nodes"]
    keep: Bool[np.ndarray, " nodes"]

    def __post_init__(self) -> None:
        if len({len(a) for a in self._arrays()}) != 1:
            raise InvariantError(f"tree arrays differ in length: {[len(a) for a in self._arrays()]}")
        for i, p in enumerate(self.parent.tolist()):
            if not ROOT <= p < i:
                raise InvariantError(f"node {i} has parent {p}: a parent is -1 (root) or comes before")

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return (self.tokens, self.parent, self.survival, self.selection, self.source, self.origin, self.mult, self.keep)

    @classmethod
    def of(
        cls,
        tokens: Sequence[int] | np.ndarray,
        parent: Sequence[int] | np.ndarray,
        survival: Sequence[float] | np.ndarray | None = None,
        selection: Selection | Sequence[int] | np.ndarray = Selection.TOP_K,
        source: int | Sequence[int] | np.ndarray = 0,
        origin: Sequence[int] | np.ndarray | None = None,
        mult: Sequence[int] | np.ndarray | None = None,
        keep: Sequence[bool] | np.ndarray | None = None,
    ) -> TokenTree:
        """A tree from plain sequences; what is not given gets its neutral value."""
        n = len(tokens)

        def full(value: object, dtype: type, neutral: float) -> np.ndarray:
            if value is None:
                return np.full(n, neutral, dtype)
            return np.full(n, value, dtype) if np.ndim(value) == 0 else np.asarray(value, dtype)  # type: ignore[arg-type]

        return cls(
            tokens=full(tokens, np.int64, 0), parent=full(parent, np.int64, ROOT),
            survival=full(survival, np.float64, 1.0),
            selection=full(selection, np.int64, 0), source=full(source, np.int64, 0), origin=full(origin, np.int64, -1),
            mult=full(mult, np.int64, 1), keep=full(keep, np.bool_, False),
        )

    @classmethod
    def empty(cls) -> TokenTree:
        """The tree of plain decoding: no draft nodes."""
        return _EMPTY

    @property
    def nodes(self) -> int:
        """Number of draft nodes, root excluded."""
        return len(self.tokens)

    @property
    def rows(self) -> int:
        """Rows of the forward pass: the root and every node."""
        return len(self.tokens) + 1

    @cached_property
    def depth(self) -> Int[np.ndarray, " nodes"]:
        """Edges from the root to each node; a child of the root has depth 1."""
        depth: list[int] = []
        for p in self.parent.tolist():
            depth.append(depth[p] + 1 if p >= 0 else 1)
        return np.array(depth, np.int64)

    @property
    def max_depth(self) -> int:
        """Longest root path in edges, 0 for the empty tree."""
        return int(self.depth.max()) if self.nodes else 0

    @property
    def width(self) -> int:
        """Most nodes at one depth, 0 for the empty tree."""
        return int(np.bincount(self.depth).max()) if self.nodes else 0

    @property
    def form(self) -> str:
        """`plain`, `chain` or `tree`."""
        return "plain" if not self.nodes else "chain" if self.width == 1 else "tree"

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of every row in draw order: entry 0 is the root's, entry i + 1 node i's."""
        out: list[list[int]] = [[] for _ in range(self.rows)]
        for i, p in enumerate(self.parent.tolist()):
            out[p + 1].append(i)
        return tuple(tuple(c) for c in out)

    @cached_property
    def mask(self) -> Bool[np.ndarray, "rows rows"]:
        """Ancestor matrix over rows (root = row 0): `mask[i, j]` iff row j is row i or one of its ancestors."""
        mask = np.zeros((self.rows, self.rows), np.bool_)
        mask[0, 0] = True
        for i, p in enumerate(self.parent.tolist()):
            mask[i + 1] = mask[p + 1]
            mask[i + 1, i + 1] = True
        return mask

    @cached_property
    def leaves(self) -> Int[np.ndarray, " leaves"]:
        """Nodes without children."""
        has_child = np.zeros(self.nodes + 1, np.bool_)
        has_child[self.parent] = True  # the root's entry, -1, is the spare last one
        return np.flatnonzero(~has_child[: self.nodes])

    def positions(self, root: int) -> Int[np.ndarray, " rows"]:
        """Absolute position of every row when the root stands at `root`: siblings share one (root + depth)."""
        out = np.full(self.rows, root, np.int64)
        out[1:] += self.depth
        return out

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root (excluded) to `node` (included); empty for the root."""
        path = []
        while node >= 0:
            path.append(node)
            node = int(self.parent[node])
        return tuple(reversed(path))

    def child(self, node: int, token: int) -> int | None:
        """The first child of `node` (-1 = root) that carries `token`, or None."""
        for c in self.children[node + 1]:
            if self.tokens[c] == token:
                return c
        return None

    def prefix(self, n: int) -> TokenTree:
        """The first `n` nodes: the only way to make a tree smaller without moving its root.

        A `greedy_plus_one` group that loses its last child, the drawn one, is a `top_k` group from then on.
        """
        if n >= self.nodes:
            return self
        arrays = [a[: max(n, 0)] for a in self._arrays()]
        lost = np.flatnonzero(self.selection == Selection.GREEDY_PLUS_ONE)
        if not len(lost):
            return TokenTree(*arrays)
        broken = {(int(self.parent[i]), int(self.source[i])) for i in lost[lost >= n]}
        if broken:
            arrays[3] = arrays[3].copy()
            for i in lost[lost < n]:
                if (int(self.parent[i]), int(self.source[i])) in broken:
                    arrays[3][i] = Selection.TOP_K
        return TokenTree(*arrays)

    def descend(self, node: int) -> tuple[TokenTree, Int[np.ndarray, " nodes"]]:
        """The subtree below `node`, which becomes the root, and the map old index → new index (-1 where dropped)."""
        inside = np.zeros(self.nodes, np.bool_)
        remap = np.full(self.nodes, ROOT, np.int64)
        count = 0
        for i, p in enumerate(self.parent.tolist()):
            if i != node and (p == node or (p >= 0 and inside[p])):
                inside[i], remap[i], count = True, count, count + 1
        kept = np.flatnonzero(inside)
        arrays = [a[kept] for a in self._arrays()]
        arrays[1] = np.where(arrays[1] == node, ROOT, remap[arrays[1]])
        return TokenTree(*arrays), remap

    def same(self, other: TokenTree) -> bool:
        """Whether both trees are equal in every array."""
        return all(np.array_equal(a, b) for a, b in zip(self._arrays(), other._arrays(), strict=True))


_EMPTY = TokenTree.of([], [])


class Growth:
    """The nodes of one request in order of arrival while its tree grows; the policy's and the drafter's common ground.

    Append-only. A node's arrival index names it in `Frontier.nodes` and everywhere until `tree()` puts the chosen
    nodes in order of survival. -1 is the root. Plain lists: at tens of nodes they beat arrays.

    >>> g = Growth()
    >>> g.add([-1], [2], token=[5, 6], log_q=[-0.1, -2.5])
    range(0, 2)
    >>> g.tree([0, 1], [0.9, 0.1]).tokens.tolist()
    [5, 6]
    """

    __slots__ = ("depth", "log_q", "mult", "origin", "parent", "score", "selection", "source", "token")

    def __init__(self) -> None:
        self.token: list[int] = []
        self.parent: list[int] = []
        self.log_q: list[float] = []
        self.score: list[float] = []      # log of the product of q along the path
        self.depth: list[int] = []
        self.origin: list[int] = []
        self.mult: list[int] = []
        self.source: list[int] = []
        self.selection: list[int] = []

    def __len__(self) -> int:
        return len(self.token)

    def add(
        self, nodes: Sequence[int], count: Sequence[int], token: Sequence[int], log_q: Sequence[float],
        origin: Sequence[int] | None = None, mult: Sequence[int] | None = None, source: int = 0,
        selection: Selection = Selection.TOP_K,
    ) -> range:
        """Append `count[i]` children below `nodes[i]`, in draw order, and return their arrival indices."""
        first, total = len(self.token), len(token)
        depth, score, at = self.depth, self.score, 0
        for node, c in zip(nodes, count, strict=True):
            below, above = (depth[node] + 1, score[node]) if node >= 0 else (1, 0.0)
            self.parent.extend([node] * c)
            depth.extend([below] * c)
            score.extend([above + x for x in log_q[at : at + c]])
            at += c
        self.token.extend(token)
        self.log_q.extend(log_q)
        self.origin.extend(origin if origin is not None else [-1] * total)
        self.mult.extend(mult if mult is not None else [1] * total)
        self.source.extend([source] * total)
        self.selection.extend([int(selection)] * total)
        return range(first, first + total)

    def tokens_to(self, node: int) -> tuple[int, ...]:
        """Tokens from below the root to `node`, `node` included."""
        out = []
        while node >= 0:
            out.append(self.token[node])
            node = self.parent[node]
        return tuple(reversed(out))

    def tree(self, nodes: Iterable[int], survival: Iterable[float], keep: Iterable[int] = ()) -> TokenTree:
        """The chosen nodes as a `TokenTree` in order of survival.

        The stored survival is the running minimum along the parent and, among drawn siblings, the draw order; ties go
        to the shallower node, then to the earlier arrival. Kept nodes and their ancestors come first.

        Raises: InvariantError if a chosen node's parent, or an earlier drawn sibling, was not chosen.
        """
        value = dict(zip(nodes, survival, strict=True))
        parent, depth = self.parent, self.depth
        first: set[int] = set()
        for v in keep:
            while v >= 0 and v not in first:
                first.add(v)
                v = parent[v]
        kept = set(keep)
        selection = self.selection
        before: dict[int, int] = {}                       # a drawn node -> the sibling drawn before it
        if any(how >= Selection.IID for how in selection):
            before, selection = self._drawn(value)
        for v in sorted(value):                           # parents and earlier draws come first: the running minimum
            p = parent[v]
            if p >= 0:
                if p not in value:
                    raise InvariantError(f"node {v} was chosen without its parent {p}")
                if value[p] < value[v]:
                    value[v] = value[p]
            if v in before and value[before[v]] < value[v]:
                value[v] = value[before[v]]
        ranked = sorted([(v not in first, -s, depth[v], v) for v, s in value.items()])
        order = [v for _, _, _, v in ranked]
        index = dict(zip(order, range(len(order)), strict=True))
        index[ROOT] = ROOT
        whole = np.array(
            [
                [self.token[v] for v in order], [index[parent[v]] for v in order], [selection[v] for v in order],
                [self.source[v] for v in order], [self.origin[v] for v in order], [self.mult[v] for v in order],
            ],
            np.int64,
        ).reshape(6, len(order))
        tokens, parents, how, source, origin, mult = whole
        return TokenTree(
            tokens, parents, np.array([-s for _, s, _, _ in ranked], np.float64), how, source, origin, mult,
            np.array([v in kept for v in order], np.bool_) if kept else np.zeros(len(order), np.bool_),
        )

    def _drawn(self, chosen_: Iterable[int]) -> tuple[dict[int, int], list[int]]:
        """For each chosen drawn node the sibling drawn before it, and every node's selection after the choice."""
        wanted = set(chosen_)
        groups: dict[tuple[int, int], list[int]] = {}     # drawn siblings, chosen or not
        for v, (p, source, how) in enumerate(zip(self.parent, self.source, self.selection, strict=True)):
            if how >= Selection.IID:
                groups.setdefault((p, source), []).append(v)
        selection = list(self.selection)
        before: dict[int, int] = {}
        for group in groups.values():
            chosen = [v for v in group if v in wanted]
            if chosen != group[: len(chosen)]:
                raise InvariantError(f"drawn siblings {group} may only lose their last; {chosen} were chosen")
            before.update(zip(chosen[1:], chosen, strict=False))
            if len(chosen) < len(group):
                for v in chosen:
                    if selection[v] == Selection.GREEDY_PLUS_ONE:
                        selection[v] = Selection.TOP_K    # the drawn child is gone
        return before, selection
