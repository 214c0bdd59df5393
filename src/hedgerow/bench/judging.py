"""One drafted tree and the target's rows under it: what each rule would accept, rows folded once a path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hedgerow.bench.expected import Folded, in_order, match_accepted, relabelled, walked
from hedgerow.bench.paths import PathDrafter, TargetLaws
from hedgerow.core.parts import Row, Rule
from hedgerow.core.rng import Rng
from hedgerow.core.select import top_ids
from hedgerow.core.tree import ROOT, TokenTree
from hedgerow.verify.match import Match

NEAR = 64                                 # tokens of p and of q that keep outcomes of their own when folded


def paths_of(tree: TokenTree) -> dict[int, tuple[int, ...]]:
    """Token path of the root and of every node."""
    out: dict[int, tuple[int, ...]] = {ROOT: ()}
    for i, (p, t) in enumerate(zip(tree.parent.tolist(), tree.tokens.tolist(), strict=True)):
        out[i] = (*out[p], t)
    return out


def inner_paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """Token paths of the nodes that have children, the root among them."""
    paths = paths_of(tree)
    return [paths[v] for v in range(-1, tree.nodes) if tree.children[v + 1]]


def near(p: Row, q: Row, count: int) -> list[int]:
    """The `count` likeliest tokens of p and of q."""
    return [*top_ids(p, count).tolist(), *top_ids(q, count).tolist()]


class Folds:
    """Folded rows of a target and a drafter at one temperature, each path folded once."""

    def __init__(self, target: TargetLaws, drafter: PathDrafter, temperature: float) -> None:
        self.target, self.drafter, self.temperature = target, drafter, temperature
        self._known: dict[tuple[int, ...], Folded] = {}

    def whole(self, path: tuple[int, ...]) -> tuple[Row, Row]:
        """p and q after a path."""
        return self.target.row(path, self.temperature), self.drafter.law(path)

    def folded(self, path: tuple[int, ...], tokens: Sequence[int]) -> tuple[Row, Row, np.ndarray]:
        """p and q after a path, folded but for `tokens`, and the tokens kept."""
        if path not in self._known:
            p, q = self.whole(path)
            self._known[path] = Folded.of(p, q, near(p, q, NEAR))
        return self._known[path].rows(
            tokens, lambda t: self.target.p(path, t, self.temperature), lambda t: float(self.drafter.law(path)[t])
        )


def accepted(tree: TokenTree, rule: Rule, folds: Folds, rng: Rng) -> float:
    """E[accepted] of a rule given the tree."""
    paths = paths_of(tree)
    if rule.name == "match":
        return sum(match_accepted(tree, lambda node, token: folds.target.p(paths[node], token, folds.temperature)))
    if rule.name == "spechub":                            # it asks for q's favourite, which folding could hide
        return sum(walked(rule, tree, lambda node: folds.whole(paths[node]), rng))
    rows: dict[int, tuple[Row, Row]] = {}
    kept: list[np.ndarray] = []
    for node in range(-1, tree.nodes):
        children = list(tree.children[node + 1])
        if not children:
            kept.append(np.empty(0, np.int64))
            continue
        p, q, ids = folds.folded(paths[node], tree.tokens[children].tolist())
        rows[node] = p, q
        kept.append(ids)
    small = relabelled(tree, kept)
    if rule.name in ("traversal", "block"):
        return in_order(rule, small, rows.__getitem__, rng)
    return sum(walked(rule, small, rows.__getitem__, rng))


def matched(tree: TokenTree, target: TargetLaws, temperature: float, rng: Rng, position: int) -> int:
    """Tokens match accepts with one seed, the drafter's own."""
    paths = paths_of(tree)
    verdict = Match().verify(
        tree, lambda node: target.row(paths[node], temperature), None, rng.at(position), position
    )
    return len(verdict.path)
