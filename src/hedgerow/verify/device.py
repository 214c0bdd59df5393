"""Device twins of match, rejection and traversal: a whole batch of trees judged where the rows are.

Rows of p and q stay on the device; to the host come, per request, the last accepted node, the next token and how the
step ended. Every random number is the reference's: accept uniforms are made by the requests' own `Rng` on the host,
the noise of a draw on the device from the host's key (`core.rng`: one key a draw, one hash a token). So each twin
decides like its reference, token by token, up to the last bit of a sum. Float64 on the device, as in the reference.

Trees are padded to the largest of the batch; children of one node come from one source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Verdict
from hedgerow.core.rng import Purpose, Rng
from hedgerow.core.tree import ROOT, Selection, TokenTree

_TINY = 1e-12
_SIGNED = 1 << 64


def _signed(x: int) -> int:
    """A 64-bit pattern as torch's int64."""
    return x - _SIGNED if x >= _SIGNED >> 1 else x


_GOLDEN, _M1, _M2 = (_signed(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def noise(keys: Int[Tensor, " draws"], vocab: int) -> Float[Tensor, "draws vocab"]:
    """`Rng.noise` of every token for each key: the same numbers, made on the keys' device."""
    x = (torch.arange(1, vocab + 1, device=keys.device) * _GOLDEN)[None, :] + keys[:, None]
    x = (x ^ _shift(x, 30)) * _M1
    x = (x ^ _shift(x, 27)) * _M2
    x = x ^ _shift(x, 31)
    return -torch.log((_shift(x, 11).double() + 0.5) * 2.0**-53)


def draw(w: Float[Tensor, "draws vocab"], keys: Int[Tensor, " draws"]) -> Int[Tensor, " draws"]:
    """`Rng.categorical` of every row: argmin of noise/w over the support."""
    time = noise(keys, w.shape[1]) / w
    return torch.where(w > 0, time, torch.inf).argmin(dim=1)


@dataclass(frozen=True)
class TreeBatch:
    """A batch of trees on a device: structure, addresses of rows, and the random numbers their rules may ask for.

    Rows of the target stand one request after the other, the root's first: node v of request b has row
    `offset[b] + v + 1`. Index 0 of the `rows` axis is the root, v + 1 node v; missing children and padding are -1.
    """

    trees: Sequence[TokenTree]
    rngs: Sequence[Rng]
    positions: Sequence[int]
    offset: Int[Tensor, " batch"]
    tokens: Int[Tensor, "batch rows"]
    parent: Int[Tensor, "batch rows"]
    children: Int[Tensor, "batch rows width"]      # in draw order, as indices of the rows axis
    replaced: Bool[Tensor, "batch rows"]           # drawn with replacement
    finish: Int[Tensor, "batch depths purposes"]   # keys of the last draw after so many accepted: bonus, residual

    @classmethod
    def of(
        cls, trees: Sequence[TokenTree], rngs: Sequence[Rng], positions: Sequence[int], device: torch.device | str
    ) -> TreeBatch:
        """Lay out a batch; `rngs` are keyed for the step, as `verify` gets them.

        Raises: InvariantError for merged repeats or siblings of several sources, which the twins do not judge.
        """
        rows = 1 + max(t.nodes for t in trees)
        width = max([len(c) for t in trees for c in t.children])
        depth = max(t.max_depth for t in trees)
        tokens, parent = np.zeros((len(trees), rows), np.int64), np.full((len(trees), rows), ROOT)
        children = np.full((len(trees), rows, max(width, 1)), -1)
        replaced = np.zeros((len(trees), rows), np.bool_)
        finish = np.zeros((len(trees), depth + 1, 2), np.int64)
        for b, (tree, rng, position) in enumerate(zip(trees, rngs, positions, strict=True)):
            n = tree.nodes
            if np.any(tree.mult > 1):
                raise InvariantError(f"tree {b} has merged repeats; device twins judge single draws: use the reference")
            tokens[b, 1 : n + 1], parent[b, 1 : n + 1] = tree.tokens, tree.parent + 1
            replaced[b, 1 : n + 1] = tree.selection == Selection.IID
            for row, group in enumerate(tree.children):
                if len({int(tree.source[c]) for c in group}) > 1:
                    raise InvariantError(f"node {row - 1} of tree {b} has several sources; use the reference")
                children[b, row, : len(group)] = np.array(group, np.int64) + 1
            for d in range(depth + 1):
                for k, purpose in enumerate((Purpose.TARGET, Purpose.RESIDUAL)):
                    finish[b, d, k] = _signed(rng._key(position + d + 1, purpose, 0))
        sizes = np.array([t.rows for t in trees])

        def put(a: np.ndarray) -> Tensor:
            return torch.from_numpy(a).to(device)

        return cls(
            trees, rngs, positions, put(np.cumsum(sizes) - sizes), put(tokens), put(parent), put(children),
            put(replaced), put(finish),
        )

    def uniforms(self, number: Callable[[TokenTree, int], int]) -> Float[Tensor, "batch rows"]:
        """The accept uniform of every node; `number` is the index its test is keyed by."""
        out = np.zeros(tuple(self.tokens.shape))
        for b, (tree, rng, position) in enumerate(zip(self.trees, self.rngs, self.positions, strict=True)):
            for v, d in enumerate(tree.depth.tolist()):
                out[b, v + 1] = rng.uniform(position + d, Purpose.ACCEPT, number(tree, v))
        return torch.from_numpy(out).to(self.tokens.device)

    def verdicts(self, last: Tensor, token: Tensor, bonus: Tensor) -> list[Verdict]:
        """Verdicts from three numbers a request: the only transfer to the host."""
        found = torch.stack([last, token, bonus.long()]).cpu().tolist()
        return [
            Verdict(tree.path(row - 1), t, "bonus" if leaf else "residual")
            for tree, row, t, leaf in zip(self.trees, *found, strict=True)
        ]


def match(batch: TreeBatch, p: Float[Tensor, "all vocab"]) -> list[Verdict]:
    """`verify.match.Match` for a batch: one draw a row, then the tree is followed as far as it holds them."""
    known: dict[tuple[int, int], int] = {}               # (request, position) -> its noise
    place = [
        known.setdefault((b, at), len(known))
        for b, (tree, root) in enumerate(zip(batch.trees, batch.positions, strict=True))
        for at in tree.positions(root).tolist()
    ]
    keys = torch.tensor([_signed(batch.rngs[b]._key(at + 1, Purpose.TARGET, 0)) for b, at in known])
    at = torch.tensor(place, device=p.device)
    time = noise(keys.to(p.device), p.shape[1])[at] / p.double()          # one noise vector a request and depth
    drawn = torch.where(p > 0, time, torch.inf).argmin(dim=1).cpu().tolist()
    out, first = [], 0
    for tree in batch.trees:
        node, path = ROOT, list[int]()
        while (child := tree.child(node, drawn[first + node + 1])) is not None:
            path.append(child)
            node = child
        leaf = not tree.children[node + 1]
        out.append(Verdict(tuple(path), drawn[first + node + 1], "bonus" if leaf else "residual"))
        first += tree.rows
    return out


class _Rows:
    """Residuals and proposals of one node per request, as `verify.residual` keeps them."""

    def __init__(self, p: Tensor, q: Tensor) -> None:
        self.p, self.row, self.q = p, p.clone(), q.clone()
        self.tried = torch.zeros_like(p, dtype=torch.bool)

    def ratio(self, token: Tensor) -> Tensor:
        """r(token)/q(token), both normalised, 0 where q has none."""
        r, s = (a.gather(1, token[:, None])[:, 0] for a in (self.row, self.q))
        value = r * self.q.sum(1) / (s * self.row.sum(1))
        return torch.where(s > 0, value, 0.0)

    def refuse(self, token: Tensor, share: Tensor, replaced: Tensor, where: Tensor) -> Tensor:
        """Take the proposal out of the residual where asked; the mass left before normalising."""
        mass, total = self.q.sum(1), self.row.sum(1)
        left = (self.row * (share * mass / total)[:, None] - self.q).clamp_min(0.0)
        rest = left.sum(1)
        dry, used = rest <= _TINY * left.shape[1] * mass, mass <= 0
        here = torch.zeros_like(self.tried).scatter_(1, token[:, None], True) & where[:, None]
        self.tried |= here
        spare = torch.where(self.tried, 0.0, self.p)
        spare = torch.where((spare.sum(1) > 0)[:, None], spare, self.p)
        left = torch.where(dry[:, None], spare, left)
        self.row = torch.where((where & ~used)[:, None], left, self.row)
        self.q = torch.where(here & ~replaced[:, None], 0.0, self.q)
        return torch.where(used, share, torch.where(dry, 0.0, rest / mass))


def rejection(
    batch: TreeBatch, p: Float[Tensor, "all vocab"], q: Float[Tensor, "drafts vocab"], q_row: Int[Tensor, "batch rows"]
) -> list[Verdict]:
    """`verify.rejection.Rejection` for a batch; `q_row[b, v + 1]` addresses the draft row below node v in `q`."""
    uniform = batch.uniforms(lambda tree, v: tree.children[int(tree.parent[v]) + 1].index(v))
    each = torch.arange(len(batch.trees), device=p.device)
    node, alive = torch.zeros_like(each), torch.ones_like(each, dtype=torch.bool)
    accepted, final = torch.zeros_like(each), torch.zeros_like(p[: len(each)], dtype=torch.double)
    bonus = torch.zeros_like(alive)
    for _ in range(batch.finish.shape[1]):
        here = p[batch.offset + node].double()
        at = _Rows(here, q[q_row[each, node].clamp_min(0)].double())
        group = batch.children[each, node]
        moved, target = torch.zeros_like(alive), node.clone()
        for child in group.unbind(1):
            test = alive & ~moved & (child >= 0)
            token = batch.tokens[each, child.clamp_min(0)]
            yes = test & (uniform[each, child.clamp_min(0)] < at.ratio(token))
            target, moved = torch.where(yes, child, target), moved | yes
            at.refuse(token, torch.ones_like(at.p[:, 0]), batch.replaced[each, child.clamp_min(0)], test & ~yes)
        leaf = group[:, 0] < 0
        final = torch.where((alive & ~moved)[:, None], torch.where(leaf[:, None], here, at.row), final)
        bonus |= alive & leaf
        alive, accepted, node = alive & moved, accepted + moved.long(), target
    token = draw(final, batch.finish[each, accepted, (~bonus).long()])
    return batch.verdicts(node, token, bonus)


def traversal(
    batch: TreeBatch, p: Float[Tensor, "all vocab"], q: Float[Tensor, "drafts vocab"], q_row: Int[Tensor, "batch rows"]
) -> list[Verdict]:
    """`verify.joint.Traversal` for a batch: a depth-first search of every tree in step, one row per level kept.

    Needs levels × batch × vocab numbers of residual and proposal; ends when every request has accepted a path.
    """
    uniform = batch.uniforms(lambda tree, v: v)
    size, levels = len(batch.trees), batch.finish.shape[1]
    each = torch.arange(size, device=p.device)
    node, depth = torch.zeros_like(each), torch.zeros_like(each)
    alive, bonus = torch.ones_like(each, dtype=torch.bool), torch.zeros_like(each, dtype=torch.bool)
    value = torch.ones((size, levels), dtype=torch.double, device=p.device)
    turn = torch.zeros(tuple(batch.tokens.shape), dtype=torch.long, device=p.device)   # children visited, by node
    stack = [_Rows(*_load(batch, p, q, q_row, each, node)) for _ in range(levels)]
    final = torch.zeros_like(stack[0].p)
    while bool(alive.any()):
        group = batch.children[each, node]
        visited, most = turn[each, node], group.shape[1]
        child = torch.where(visited < most, group[each, visited.clamp_max(most - 1)], -1)
        down = alive & (child >= 0)
        keep = alive & ~down & ((node == 0) | (uniform[each, node] < value[each, depth]))
        up = alive & ~down & ~keep
        leaf = group[:, 0] < 0
        own = torch.where(leaf[:, None], p[batch.offset + node].double(), _pick(stack, depth, "row"))
        final, bonus, alive = torch.where(keep[:, None], own, final), bonus | (keep & leaf), alive & ~keep
        turn[each, node] += down.long()
        above = (depth - 1).clamp_min(0)
        next_node = torch.where(down, child.clamp_min(0), torch.where(up, batch.parent[each, node], node))
        for level, rows in enumerate(stack):
            here = up & (above == level)
            token = batch.tokens[each, torch.where(here, node, 0)]
            rest = rows.refuse(token, value[:, level], batch.replaced[each, node], here)
            updated = torch.where(rest > 0, rest / (rest + 1.0 - value[:, level]), 0.0)
            value[:, level] = torch.where(here & (above > 0), updated, value[:, level])
            enter = down & (depth == level)
            reach = torch.clamp(value[:, level] * rows.ratio(batch.tokens[each, child.clamp_min(0)]), max=1.0)
            if level + 1 < levels:
                value[:, level + 1] = torch.where(enter, reach, value[:, level + 1])
                _enter(stack[level + 1], enter, *_load(batch, p, q, q_row, each, next_node))
        depth = depth + down.long() - up.long()
        node = next_node
    token = draw(final, batch.finish[each, depth, (~bonus).long()])
    return batch.verdicts(node, token, bonus)


def _load(batch: TreeBatch, p: Tensor, q: Tensor, q_row: Tensor, each: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
    """The target's and the draft's row at each request's node."""
    return p[batch.offset + node].double(), q[q_row[each, node].clamp_min(0)].double()


def _pick(stack: list[_Rows], depth: Tensor, name: str) -> Tensor:
    """One level's array for each request."""
    whole = torch.stack([getattr(rows, name) for rows in stack])
    return whole[depth, torch.arange(len(depth), device=depth.device)]


def _enter(rows: _Rows, where: Tensor, p: Tensor, q: Tensor) -> None:
    """Start a level anew for the requests that step down into it."""
    at = where[:, None]
    rows.p, rows.row, rows.q = (torch.where(at, new, old) for new, old in ((p, rows.p), (p, rows.row), (q, rows.q)))
    rows.tried &= ~at
