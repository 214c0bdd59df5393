"""E[accepted] of one drafted tree, exactly: what `verify` would accept on average over its own coins.

A rule that walks down is taken node by node: its judgement of one group of siblings is enumerated (its tests are few),
and the chance of reaching a node is the product along its path. A rule that judges whole paths tests nodes in a fixed
order: refused on purpose at every test, it shows all its acceptance probabilities in one pass. How repeated i.i.d.
draws were dealt is not recorded in a tree; it is drawn, as the rules do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int

from hedgerow.core.parts import Row, Rule
from hedgerow.core.rng import Purpose, Rng, Source, Tape, enumerate_branches
from hedgerow.core.tree import ROOT, TokenTree

TokenLaw = Callable[[int, int], float]     # (node, token) -> p of the token after the node
RowPair = Callable[[int], tuple[Row, Row]]  # node -> (p, q) after it
_BINS, _WIDTH = 321, 0.125                 # of ln p/q, from −20 to 20


def match_accepted(tree: TokenTree, p: TokenLaw) -> list[float]:
    """The probability that match accepts each node: Π p along its path (of equal siblings the first is followed).

    >>> match_accepted(TokenTree.of([1, 2], [-1, 0]), lambda node, token: 0.5)
    [0.5, 0.25]
    """
    reach: list[float] = []
    seen: set[tuple[int, int]] = set()
    for parent, token in zip(tree.parent.tolist(), tree.tokens.tolist(), strict=True):
        above = reach[parent] if parent >= 0 else 1.0
        known = (parent, token) in seen
        seen.add((parent, token))
        reach.append(0.0 if known or above == 0.0 else above * p(parent, token))
    return reach


@dataclass
class _Judge:
    """A source that enumerates tests on a tape and keeps the law of the one token drawn at the root's children."""

    tape: Tape
    coins: Rng
    position: int
    law: Row | None = None

    def at(self, root: int) -> Source:
        """Itself: there is one step."""
        return self

    def bernoulli(self, p: float, position: int, purpose: Purpose = Purpose.ACCEPT, index: int = 0) -> bool:
        """Both answers, one after the other."""
        p = min(max(float(p), 0.0), 1.0)
        return bool(self.tape.branch(np.array([1.0 - p, p])))

    def categorical(
        self, w: Row, position: int, purpose: Purpose = Purpose.TARGET, index: int = 0
    ) -> int:
        """A rule's last draw at the node is kept as a law; how repeats are dealt is drawn."""
        if purpose is Purpose.ACCEPT:
            return self.coins.categorical(w, position, purpose, index)
        if position == self.position and self.law is None:
            self.law = np.asarray(w, np.float64)
        return int(np.argmax(w))

    def race(self, w: Row, k: int, position: int, purpose: Purpose = Purpose.DRAFT, index: int = 0) -> list[int]:
        """Rules never race."""
        raise NotImplementedError


def group_accepted(
    rule: Rule, group: TokenTree, p: Row, q: Row, rng: Rng | None = None
) -> list[float]:
    """The probability that each sibling of a one-level tree is the next token, exact up to how repeats are dealt."""
    out = [0.0] * group.nodes
    coins = rng or Rng(0)

    def run(tape: Tape) -> tuple[int, Row | None]:
        source = _Judge(tape, coins, 1)
        verdict = rule.verify(group, lambda node: p, lambda node, source: q, source, 0)
        return (verdict.path[0] if verdict.path else ROOT), source.law

    for weight, (node, law) in enumerate_branches(run):
        if law is None:
            out[node] += weight
            continue
        total = float(law.sum())
        for token in dict.fromkeys(group.tokens.tolist()):
            child = group.child(ROOT, token)
            assert child is not None
            out[child] += weight * float(law[token]) / total
    return out


def walked(rule: Rule, tree: TokenTree, rows: RowPair, rng: Rng | None = None) -> list[float]:
    """The probability that a top-down rule accepts each node, given the tree; `rows(node)` are p and q after a node.

    Tokens of children index into those rows.
    """
    reach = [0.0] * tree.nodes
    for node in range(-1, tree.nodes):
        children = tree.children[node + 1]
        above = reach[node] if node >= 0 else 1.0
        if not children or above == 0.0:
            continue
        at = list(children)
        group = TokenTree.of(
            tree.tokens[at], [ROOT] * len(at), selection=tree.selection[at], mult=tree.mult[at],
        )
        p, q = rows(node)
        for child, share in zip(at, group_accepted(rule, group, p, q, _keyed(rng, node)), strict=True):
            reach[child] = above * share
    return reach


def _keyed(rng: Rng | None, node: int) -> Rng:
    return Rng(rng.seed if rng else 0, rng.choice if rng else 0, node + 1)


@dataclass
class _Refuse:
    """A source that fails every test it can and remembers (probability, depth) of each."""

    coins: Rng
    tests: list[tuple[float, int]] = field(default_factory=list)

    def at(self, root: int) -> Source:
        """Itself: there is one step."""
        return self

    def bernoulli(self, p: float, position: int, purpose: Purpose = Purpose.ACCEPT, index: int = 0) -> bool:
        """False, unless p is 1."""
        p = min(max(float(p), 0.0), 1.0)
        self.tests.append((p, position))
        return p == 1.0

    def categorical(
        self, w: Row, position: int, purpose: Purpose = Purpose.TARGET, index: int = 0
    ) -> int:
        """How repeats are dealt is drawn; the token at the end does not matter."""
        if purpose is Purpose.ACCEPT:
            return self.coins.categorical(w, position, purpose, index)
        return int(np.argmax(w))

    def race(self, w: Row, k: int, position: int, purpose: Purpose = Purpose.DRAFT, index: int = 0) -> list[int]:
        """Rules never race."""
        raise NotImplementedError


def in_order(rule: Rule, tree: TokenTree, rows: RowPair, rng: Rng | None = None) -> float:
    """E[accepted] of a rule that accepts whole paths, testing nodes in an order that depends on refusals alone.

    Traversal and block verification are such rules: Σ over tests of Pr[all before failed] · p · depth.
    """
    if not tree.nodes:
        return 0.0
    source = _Refuse(rng or Rng(0))
    known: dict[int, tuple[Row, Row]] = {}

    def pair(node: int) -> tuple[Row, Row]:
        if node not in known:                             # a leaf's row only draws the token behind it
            known[node] = rows(node) if tree.children[node + 1] else (np.ones(1), np.ones(1))
        return known[node]

    rule.verify(tree, lambda node: pair(node)[0], lambda node, _: pair(node)[1], source, 0)
    alive, total = 1.0, 0.0
    for p, depth in source.tests:
        total += alive * p * depth
        alive *= 1.0 - p
    return total


# ------------------------------------------------------------------------------------------------ folded rows

@dataclass(frozen=True)
class Folded:
    """p and q after one path on fewer outcomes: kept tokens, then one outcome per eighth of ln p/q for all others.

    Totals are exact. Rules compare p with multiples of q, so only a bin that straddles such a multiple is judged
    inexactly, by at most an eighth of its mass.
    """

    kept: Int[np.ndarray, " kept"]
    p_kept: Float[np.ndarray, " kept"]
    q_kept: Float[np.ndarray, " kept"]
    bin_of: Int[np.ndarray, " vocab"]
    p_bins: Float[np.ndarray, " bins"]
    q_bins: Float[np.ndarray, " bins"]

    @classmethod
    def of(cls, p: Row, q: Row, keep: Iterable[int]) -> Folded:
        """Fold two laws; the tokens to `keep` stay outcomes of their own."""
        kept = np.unique(np.fromiter(keep, np.int64))
        with np.errstate(divide="ignore", invalid="ignore"):
            lift = (np.log(p) - np.log(q)) / _WIDTH
        middle = (_BINS - 1) // 2
        at = np.clip(np.nan_to_num(lift, nan=0.0, posinf=middle, neginf=-middle), -middle, middle)
        bins = np.rint(at).astype(np.int16) + np.int16(middle)
        bins[kept] = _BINS
        masses = (np.bincount(bins, row, minlength=_BINS + 1)[:_BINS] for row in (p, q))
        return cls(kept, p[kept].astype(np.float64), q[kept].astype(np.float64), bins, *masses)

    def rows(
        self, tokens: Iterable[int] = (), p: Callable[[int], float] | None = None,
        q: Callable[[int], float] | None = None,
    ) -> tuple[Row, Row, Int[np.ndarray, " kept"]]:
        """p, q and the tokens kept, rising: token kept[i] is outcome i. `tokens` are kept too, with p(t) and q(t)."""
        more = [t for t in dict.fromkeys(tokens) if self.bin_of[t] < _BINS]
        p_bins, q_bins = self.p_bins, self.q_bins
        p_more, q_more = [p(t) for t in more] if p else [], [q(t) for t in more] if q else []
        if more:
            p_bins, q_bins = p_bins.copy(), q_bins.copy()
            np.subtract.at(p_bins, self.bin_of[more], p_more)
            np.subtract.at(q_bins, self.bin_of[more], q_more)
            p_bins, q_bins = np.maximum(p_bins, 0.0), np.maximum(q_bins, 0.0)
        kept = np.concatenate([self.kept, np.array(more, np.int64)])
        order = np.argsort(kept)
        used = (p_bins > 0.0) | (q_bins > 0.0)
        return (
            np.concatenate([np.concatenate([self.p_kept, p_more])[order], p_bins[used]]),
            np.concatenate([np.concatenate([self.q_kept, q_more])[order], q_bins[used]]), kept[order],
        )


def relabelled(tree: TokenTree, kept: Sequence[np.ndarray]) -> TokenTree:
    """The tree with every token replaced by its place in what was kept of its parent's row; entry 0 is the root's."""
    pairs = zip(tree.parent.tolist(), tree.tokens.tolist(), strict=True)
    tokens = [int(np.searchsorted(kept[p + 1], t)) for p, t in pairs]
    return replace(tree, tokens=np.array(tokens, np.int64))
