"""A rule at one node, exactly: the law of the next token and how often it is a drafted sibling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hedgerow.core.parts import Row, Rule
from hedgerow.core.rng import Tape, enumerate_branches
from hedgerow.core.select import pick
from hedgerow.core.tree import ROOT, Selection, TokenTree

Drafted = list[tuple[float, TokenTree]]    # every tree that can be drafted, with its probability


@dataclass(frozen=True)
class OneNode:
    """What a rule does with `k` children of one node, by enumeration of every draw and test."""

    law: Row                              # of the next token
    acceptance: float                     # probability that it is a drafted sibling
    leaves: int                           # branches enumerated


def draft_group(q: Row, k: int, selection: Selection) -> Drafted:
    """Every group of `k` children that `core.select.pick` can make of q, as one-level trees with probabilities.

    >>> [(round(w, 2), t.tokens.tolist()) for w, t in draft_group(np.array([0.5, 0.5]), 2, Selection.TOP_K)]
    [(1.0, [0, 1])]
    """

    def draw(tape: Tape) -> TokenTree:
        got = pick(q, k, selection, tape.request(0), position=1)
        return TokenTree.of(got.token, [ROOT] * len(got.token), selection=selection, mult=got.mult)

    return merged((w, t) for w, t in enumerate_branches(draw))


def merged(drafted: Iterable[tuple[float, TokenTree]]) -> Drafted:
    """Equal trees once, with their probabilities added."""
    out: dict[tuple[bytes, ...], tuple[float, TokenTree]] = {}
    for weight, tree in drafted:
        key = tree_key(tree)
        out[key] = (out[key][0] + weight if key in out else weight, tree)
    return list(out.values())


def tree_key(tree: TokenTree) -> tuple[bytes, ...]:
    """A hashable name of a tree, equal for trees that are equal in every array."""
    return tuple(a.tobytes() for a in (
        tree.tokens, tree.parent, tree.survival, tree.selection, tree.source, tree.origin, tree.mult, tree.keep,
    ))


def judge_group(rule: Rule, p: Row, q: Row, drafted: Drafted, verify_q: Row | None = None) -> OneNode:
    """A rule on given one-level trees; `verify_q` is the draft row shown to the rule, if it is not the true one."""
    p = np.asarray(p, np.float64)
    shown = q if verify_q is None else verify_q
    after = np.full(len(p), 1.0 / len(p))
    law, acceptance, leaves = np.zeros(len(p)), 0.0, 0
    for weight, tree in drafted:
        for chance, verdict in enumerate_branches(
            lambda tape, tree=tree: rule.verify(  # type: ignore[misc]
                tree, lambda node: p if node < 0 else after, lambda node, source: shown, tape.request(0), 0
            )
        ):
            token = int(tree.tokens[verdict.path[0]]) if verdict.path else verdict.token
            law[token] += weight * chance
            acceptance += weight * chance * (tree.child(ROOT, token) is not None)
            leaves += 1
    return OneNode(law, acceptance, leaves)


def one_node(rule: Rule, p: Row, q: Row, k: int, selection: Selection) -> OneNode:
    """Draft `k` children from q, judge them with the rule, and add up every branch."""
    return judge_group(rule, p, q, draft_group(np.asarray(q, np.float64), k, selection))


def acceptance(rule: Rule, p: Row, q: Row, k: int, selection: Selection) -> float:
    """Probability that the next token is one of `k` drafted siblings, exact.

    >>> from hedgerow.verify.rejection import Rejection
    >>> p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    >>> round(acceptance(Rejection(), p, q, 2, Selection.IID), 9)
    0.72
    """
    return one_node(rule, p, q, k, selection).acceptance


def output_law(rule: Rule, p: Row, q: Row, k: int, selection: Selection) -> Row:
    """Law of the next token, exact: p itself if the rule is lossless for this selection."""
    return one_node(rule, p, q, k, selection).law
