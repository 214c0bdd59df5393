"""The top-down walk: one-node rules become tree rules.

A one-node rule answers one question: given the target row `p` and the drafted siblings, what is the next token? If that
token is a sibling the walk descends into it, otherwise the step ends there. Only the joint law of (siblings, token)
matters: a one-node rule whose token follows `p` whatever was drafted makes a lossless tree rule, by induction on depth,
because the subtree below a child was drafted from a law that depends on nothing but the path to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Row, Rows, Verdict
from hedgerow.core.rng import Purpose, Source
from hedgerow.core.tree import ROOT, TokenTree
from hedgerow.verify.residual import checked, spare, unit

DraftRows = Callable[[int, int], Row]      # (node, source) -> the law the node's children were drawn from
_REPEATS = 1 << 20                         # index base of the keys that place repeated draws


@dataclass(frozen=True)
class Site:
    """One node of the tree as a one-node rule sees it.

    `p` is the target's row after the node; `children` are its children's node indices in draw order; `position` is the
    absolute position of the token to decide and, with the child's number, keys every random number of the node.
    """

    tree: TokenTree
    node: int
    children: tuple[int, ...]
    p: Row
    rows: DraftRows
    rng: Source
    position: int

    def token(self, child: int) -> int:
        """The token of a child."""
        return int(self.tree.tokens[child])

    @property
    def drawn(self) -> int:
        """How many draws stand behind the children, repeats counted."""
        return int(self.tree.mult[list(self.children)].sum())

    def q(self, source: int) -> Row:
        """The law a source drew this node's children from.

        Raises: InvariantError if it is no law, or not over the target's vocabulary.
        """
        row = checked(self.rows(self.node, source), f"the draft row of source {source} at node {self.node}")
        last = max(self.token(c) for c in self.children)
        if len(row) != len(self.p) or last >= len(row):
            raise InvariantError(
                f"at node {self.node} the target row has {len(self.p)} entries, the draft row of source {source} "
                f"{len(row)}, and the last child token is {last}; both rows must be over one vocabulary that holds "
                "every child: cut or pad the drafter's rows to the target's vocabulary"
            )
        return row

    def only_q(self) -> Row:
        """The draft row of a node whose children come from one source.

        Raises: InvariantError where several sources drafted here.
        """
        sources = {int(self.tree.source[c]) for c in self.children}
        if len(sources) > 1:
            raise InvariantError(
                f"node {self.node} has children from sources {sorted(sources)}; this rule judges children of one "
                "source, 'rejection' and 'traversal' judge several"
            )
        return self.q(sources.pop())

    def accepts(self, probability: float, number: int) -> bool:
        """An accept test: true with `probability`; `number` tells the tests of one node apart."""
        return self.rng.bernoulli(probability, self.position, Purpose.ACCEPT, number)

    def bonus(self) -> int:
        """The target's own draw at this position: plain decoding's token."""
        return self.rng.categorical(self.p, self.position, Purpose.TARGET)

    def rest(self, row: Row, tried: list[int]) -> int:
        """A token from the residual `row`, or, where rounding left it no mass, from p without the refused tokens."""
        return self.rng.categorical(spare(row, self.p, tried), self.position, Purpose.RESIDUAL)


Judge = Callable[[Site], int]


def no_rows(node: int, source: int) -> Row:
    """The draft rows of rules that look at p alone. Raises AssertionError: asking is a bug."""
    raise AssertionError(f"a rule that needs no q asked for the draft row of source {source} at node {node}")


def walk(tree: TokenTree, p: Rows, q: DraftRows, rng: Source, position: int, judge: Judge) -> Verdict:
    """Descend from the root as long as `judge` names a child; at most depth + 1 target rows are asked for.

    Where several siblings carry the token the first is followed.
    """
    node = ROOT
    path: list[int] = []
    while True:
        row = checked(p(node), f"the target row after node {node}")
        site = Site(tree, node, tree.children[node + 1], row, q, rng, position + len(path) + 1)
        if not site.children:
            return Verdict(tuple(path), site.bonus(), "bonus")
        token = judge(site)
        child = tree.child(node, token)
        if child is None:
            return Verdict(tuple(path), token, "residual")
        path.append(child)
        node = child


def draws(tree: TokenTree, children: tuple[int, ...], rng: Source, position: int, key: int = 0) -> Iterator[int]:
    """The children in the order of the draws behind them, repeats included; one source after the other.

    `mult` says how many i.i.d. draws fell on a child but not when. Given the order of first appearance and the counts
    every arrangement of a source's draws is equally likely, so repeats are dealt out again at random: before each first
    appearance, a draw that is still to come is a repeat in proportion to the repeats left. (Repeats taken right after
    their first draw, or last, would bias groups of three draws.) Without repeats no random number is used. `key` tells
    the nodes of one position apart.
    """
    source = {c: int(tree.source[c]) for c in children}
    if all(tree.mult[c] == 1 for c in children):
        yield from sorted(children, key=source.__getitem__)
        return
    number = count(1)
    for this in sorted(set(source.values())):
        coming = [c for c in children if source[c] == this]
        shown: list[int] = []
        left = {c: int(tree.mult[c]) - 1 for c in coming}       # repeats not dealt yet
        while coming or any(left.values()):
            new = sum(1 + left[c] for c in coming)
            weights = np.array([*(left[c] for c in shown), new], np.float64)
            at = rng.categorical(weights, position, Purpose.ACCEPT, _REPEATS * next(number) + key)
            if at < len(shown):
                left[shown[at]] -= 1
                yield shown[at]
            else:
                shown.append(coming.pop(0))
                yield shown[-1]


def single(site: Site, token: int, s: Row, number: int) -> int:
    """Single-draft rejection of a token with marginal law `s`: accept with min(1, p/s), else norm((p − s)₊)."""
    p, s = unit(site.p), unit(s)
    if site.accepts(float(p[token] / s[token]) if s[token] > 0.0 else 0.0, number):
        return token
    return site.rest(np.maximum(p - s, 0.0), [token])
