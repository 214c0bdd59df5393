"""Device twins against their references: the same verdicts from the same numbers, and no row on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import InvariantError
from hedgerow.core.rng import Purpose, Rng
from hedgerow.core.select import pick
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.verify import device
from hedgerow.verify.joint import Traversal
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection

IID, WITHOUT = Selection.IID, Selection.WITHOUT_REPLACEMENT


class Case:
    """A batch of random trees with rows of p and q, on the host and as tensors."""

    def __init__(self, seed: int, vocab: int = 6, how: Selection = WITHOUT, near: float = 1.0) -> None:
        rng = np.random.default_rng(seed)
        self.rngs = [Rng(seed * 100 + b, root=b + 3) for b in range(4)]
        self.positions = [b + 3 for b in range(4)]
        self.trees, self.p, self.q = list[TokenTree](), list[np.ndarray](), list[np.ndarray]()
        self.q_row: list[list[int]] = []
        for b in range(4):
            tokens, parent, level = list[int](), list[int](), [ROOT]
            address = {ROOT: len(self.q)}
            self.q.append(self.row(rng, vocab))
            for depth, width in enumerate([[], [2], [1, 1, 1], [3, 2, 1], [2, 2, 2], [4, 1]][rng.integers(6)]):
                below = []
                for node in level:
                    row, at = self.q[address[node]], (node + 2) * 9
                    if how is IID:         # repeats stay siblings of their own
                        got = [self.rngs[b].categorical(row, depth, Purpose.DRAFT, at + j) for j in range(width)]
                    else:
                        got = pick(row, width, how, self.rngs[b], depth, at).token
                    for token in got:
                        address[len(tokens)] = len(self.q)
                        self.q.append(self.row(rng, vocab))
                        below.append(len(tokens))
                        tokens.append(token)
                        parent.append(node)
                level = below
            self.trees.append(TokenTree.of(tokens, parent, selection=how))
            self.q_row.append([address[v] for v in range(-1, len(tokens))])
            for v in range(-1, len(tokens)):
                mixed = (1 - near) * self.q[address[v]] + near * self.row(rng, vocab)
                self.p.append(mixed / mixed.sum())
        self.first = np.cumsum([0, *(t.rows for t in self.trees)])

    @staticmethod
    def row(rng: np.random.Generator, vocab: int) -> np.ndarray:
        row = rng.random(vocab) ** 3
        row[rng.random(vocab) < 0.15] = 0.0
        return (row + (row.sum() == 0)) / (row + (row.sum() == 0)).sum()

    def reference(self, rule: Any) -> list[Any]:
        return [
            rule.verify(
                tree, lambda v, b=b: self.p[self.first[b] + v + 1], lambda v, s, b=b: self.q[self.q_row[b][v + 1]],
                self.rngs[b], self.positions[b],
            )
            for b, tree in enumerate(self.trees)
        ]

    def tensors(self, dtype: torch.dtype = torch.double) -> tuple[Any, ...]:
        batch = device.TreeBatch.of(self.trees, self.rngs, self.positions, "cpu")
        q_row = torch.full(tuple(batch.tokens.shape), -1)
        for b, rows in enumerate(self.q_row):
            q_row[b, : len(rows)] = torch.tensor(rows)
        return batch, torch.tensor(np.array(self.p)).to(dtype), torch.tensor(np.array(self.q)).to(dtype), q_row


def test_noise_is_the_hosts_noise() -> None:
    for position in range(20):
        rng = Rng(position, 1, 2)
        key = torch.tensor([device._signed(rng._key(position, Purpose.RESIDUAL, 0))])
        want = rng.noise(np.arange(700), position, Purpose.RESIDUAL, 0)
        assert np.allclose(device.noise(key, 700)[0].numpy(), want, rtol=1e-15)
        w = np.random.default_rng(position).random(700) * (np.arange(700) % 3 > 0)
        assert int(device.draw(torch.tensor(w)[None], key)[0]) == rng.categorical(w, position, Purpose.RESIDUAL)


@pytest.mark.parametrize("near", [1.0, 0.3, 0.0], ids=["far", "near", "equal"])
@pytest.mark.parametrize("how", [IID, WITHOUT], ids=lambda s: s.label)
def test_every_verdict_is_the_references(how: Selection, near: float) -> None:
    kinds = set()
    for seed in range(60):
        case = Case(seed, how=how, near=near)
        batch, p, q, q_row = case.tensors()
        assert device.match(batch, p) == case.reference(Match())
        assert device.rejection(batch, p, q, q_row) == case.reference(Rejection())
        found = device.traversal(batch, p, q, q_row)
        assert found == case.reference(Traversal())
        kinds |= {(len(v.path), v.stop) for v in found}
    assert len(kinds) > 3, "paths of several lengths, ended both ways"


def test_single_precision_rows() -> None:
    case = Case(5)
    batch, p, q, q_row = case.tensors(torch.float32)
    case.p, case.q = [np.float32(r) for r in case.p], [np.float32(r) for r in case.q]
    assert device.match(batch, p) == case.reference(Match())
    assert device.rejection(batch, p, q, q_row) == case.reference(Rejection())
    assert device.traversal(batch, p, q, q_row) == case.reference(Traversal())


def test_a_draft_that_is_used_up() -> None:
    """A repeat under draws without replacement: the proposal has no mass left, the residual stays."""
    case = Case(1)
    case.trees = [TokenTree.of([1, 1], [-1, -1], selection=WITHOUT)]
    case.rngs, case.positions, case.q_row = case.rngs[:1], [3], [[0, 0, 0]]
    case.q = [np.array([0.0, 1.0, 0.0])]
    case.p = [np.array([0.6, 0.1, 0.3])] * 3
    case.first = np.array([0, 3])
    batch, p, q, q_row = case.tensors()
    assert device.rejection(batch, p, q, q_row) == case.reference(Rejection())
    assert device.traversal(batch, p, q, q_row) == case.reference(Traversal())


def test_only_decisions_reach_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    real = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: (moved.append(self.numel()), real(self))[1])
    monkeypatch.setattr(torch.Tensor, "numpy", lambda self: pytest.fail("a row went to the host"))
    case = Case(3, vocab=500)
    batch, p, q, q_row = case.tensors()
    device.match(batch, p)
    device.rejection(batch, p, q, q_row)
    device.traversal(batch, p, q, q_row)
    assert moved == [sum(t.rows for t in case.trees), 12, 12]


def test_what_the_twins_do_not_judge() -> None:
    merged = TokenTree.of([1], [-1], selection=IID, mult=[2])
    with pytest.raises(InvariantError, match="merged repeats"):
        device.TreeBatch.of([merged], [Rng(0)], [0], "cpu")
    several = TokenTree.of([1, 2], [-1, -1], selection=IID, source=[0, 1])
    with pytest.raises(InvariantError, match="several sources"):
        device.TreeBatch.of([several], [Rng(0)], [0], "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_every_verdict_is_the_references_on_an_accelerator() -> None:
    for seed in range(20):
        case = Case(seed, vocab=1000)
        _, p, q, q_row = case.tensors()
        batch = device.TreeBatch.of(case.trees, case.rngs, case.positions, "cuda")
        p, q, q_row = p.cuda(), q.cuda(), q_row.cuda()
        assert device.match(batch, p) == case.reference(Match())
        assert device.rejection(batch, p, q, q_row) == case.reference(Rejection())
        assert device.traversal(batch, p, q, q_row) == case.reference(Traversal())
