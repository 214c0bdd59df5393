"""target.table: a target whose law is known exactly, and that is strict about rows."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.core.errors import CapacityError, InvariantError, UsageError
from hedgerow.core.parts import Needs, RowGroup, Sampling
from hedgerow.core.probs import law
from hedgerow.core.tree import TokenTree
from hedgerow.target.table import TableLaw, TableTarget

LAW = TableLaw.random(4, 2, seed=5)


def group(slot: int, tree: TokenTree, root: int, position: int) -> RowGroup:
    return RowGroup("tree", slot, np.concatenate([[root], tree.tokens]), tree.positions(position), tree.mask)


def prefill(slot: int, tokens: list[int], start: int = 0) -> RowGroup:
    n = len(tokens)
    return RowGroup("prefill", slot, np.array(tokens), np.arange(start, start + n), np.tri(n, dtype=np.bool_))


def started(target: TableTarget, tokens: list[int]) -> int:
    slot = target.acquire()
    target.submit([prefill(slot, tokens)], Needs())
    target.commit(slot, range(len(tokens)))
    return slot


def test_laws_look_at_the_longest_listed_suffix() -> None:
    law_ = TableLaw.of({(): [1, 1], (1,): [3, 1], (0, 1): [0, 5]})
    assert law_.vocab == 2 and law_.order == 2
    assert law_([]).tolist() == law_([0]).tolist() == [0.5, 0.5]
    assert law_([1, 1]).tolist() == [0.75, 0.25] and law_((1, 0, 1)).tolist() == [0.0, 1.0]


def test_random_laws_are_seeded_and_whole() -> None:
    assert LAW.order == 2 and len(LAW.rows) == 1 + 4 + 16
    assert np.array_equal(LAW([1, 2]), TableLaw.random(4, 2, seed=5)([1, 2]))
    assert not np.array_equal(LAW([1, 2]), LAW([2, 2])) and LAW([3]).sum() == pytest.approx(1.0)
    assert TableLaw.random(4, 0, 1, temperature=0.01)([]).max() > 0.99


@pytest.mark.parametrize("rows, words", [
    ({(0,): [1, 1]}, "no row for the empty context"), ({(): [1, 1], (0,): [1]}, "is no law over 2 tokens"),
    ({(): [0, 0]}, "is no law"), ({(): [1, -1]}, "is no law"), ({(): [1, float("inf")]}, "is no law"),
])
def test_what_is_no_table(rows: dict[tuple[int, ...], list[float]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        TableLaw.of(rows)


def test_rows_of_a_tree_are_the_laws_of_their_paths() -> None:
    target = TableTarget(LAW)
    slot = started(target, [3, 1])
    tree = TokenTree.of([0, 2, 1, 3], [-1, -1, 1, 0])
    rows, feats = target.collect(target.submit([group(slot, tree, 2, 2)], Needs(top_k=2)))
    for row, path in enumerate([(), (0,), (2,), (2, 1), (0, 3)]):
        want = LAW([3, 1, 2, *path])
        assert np.allclose(law(rows.logits(0, row), Sampling(temperature=1.0)), want, atol=1e-15)
        assert rows.argmax(0)[row] == np.argmax(want)
        assert feats[0].top_ids is not None and feats[0].top_logits is not None
        assert feats[0].top_ids[row].tolist() == np.lexsort((np.arange(4), -want))[:2].tolist()
        assert np.allclose(feats[0].top_logits[row], np.log(want[feats[0].top_ids[row]]))
    target.commit(slot, [0, 2, 3])
    assert target.tokens(slot) == [3, 1, 2, 2, 1]


def test_impossible_tokens_and_ties() -> None:
    target = TableTarget(TableLaw.of({(): [0, 2, 2]}))
    slot = started(target, [1])
    rows, feats = target.collect(target.submit([group(slot, TokenTree.empty(), 1, 1)], Needs()))
    assert rows.logits(0, 0)[0] == -np.inf and rows.argmax(0).tolist() == [1] and feats[0].top_ids is None


def test_slots() -> None:
    target = TableTarget(LAW, slots=2, max_len=9, eos=[0])
    assert target.info.eos == {0} and target.info.vocab == 4 and target.capacity().max_len == 9
    a, b = started(target, [1, 2, 3]), target.acquire()
    assert (a, b) == (0, 1) and target.capacity().slots == 0
    with pytest.raises(CapacityError, match="all 2 slots"):
        target.acquire()
    target.fork(a, b, 2)
    assert target.tokens(b) == [1, 2] and target.tokens(a) == [1, 2, 3]
    target.release(a)
    assert target.capacity().slots == 1 and target.acquire() == a and target.tokens(a) == []


def test_several_groups_in_one_call() -> None:
    target = TableTarget(LAW)
    a, b = started(target, [1]), started(target, [2, 3])
    window = RowGroup("aux", a, np.array([3, 0]), np.array([4, 7]), np.eye(2, dtype=np.bool_))
    call = [group(a, TokenTree.empty(), 0, 1), window, prefill(b, [1, 1], 2)]
    rows, feats = target.collect(target.submit(call, Needs()))
    assert np.allclose(np.exp(rows.logits(0, 0)), LAW([1, 0])) and len(feats) == 3
    assert np.allclose(np.exp(rows.logits(1, 1)), LAW([1, 0])), "a window row sees itself and what is committed"
    assert np.allclose(np.exp(rows.logits(2, 1)), LAW([1, 1]))
    target.commit(b, [0, 1])
    target.commit(a, [0])
    assert target.tokens(a) == [1, 0] and target.tokens(b) == [2, 3, 1, 1]


def test_the_contract_is_enforced() -> None:
    target = TableTarget(LAW, max_len=5)
    slot = started(target, [1, 2])
    tree = TokenTree.of([0, 1], [-1, 0])
    with pytest.raises(UsageError, match="no hidden states"):
        target.submit([], Needs(last_hidden=True))
    with pytest.raises(InvariantError, match="row 0 of slot 0 stands at position 3 with 0 ancestors after 2"):
        target.submit([group(slot, tree, 3, 3)], Needs())
    with pytest.raises(CapacityError, match="position 5; the context holds 5"):
        target.submit([group(slot, TokenTree.of([0, 1, 2], [-1, 0, 1]), 3, 2)], Needs())
    with pytest.raises(InvariantError, match="without rows pending"):
        target.commit(slot, [0])
    target.submit([group(slot, TokenTree.of([0, 1], [-1, -1]), 3, 2)], Needs())
    with pytest.raises(InvariantError, match=r"rows \[0, 1, 2\] of slot 0 are no path"):
        target.commit(slot, [0, 1, 2])
