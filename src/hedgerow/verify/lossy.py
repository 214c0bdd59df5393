"""Rules that change what the model says, on purpose: `lossless = False`, off by default, never in an exact recipe.

Each has a knob, and at the knob's end it is an exact rule; the tests hold it to that. All read p as the request's law,
so at temperature 0 (one-hot rows) typical, margin and relaxed acceptance are exact match.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hedgerow.core.errors import InvariantError, UsageError
from hedgerow.core.parts import Row, Rows, Verdict
from hedgerow.core.probs import entropy
from hedgerow.core.rng import Purpose, Source
from hedgerow.core.select import top_ids
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.verify.residual import checked, unit
from hedgerow.verify.walk import DraftRows, Site, no_rows, walk

_ANY = frozenset(Selection)


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value}; allowed: {low} to {high}")


# ------------------------------------------------------------------------------------------------ typical acceptance

def typical_threshold(p: Row, epsilon: float, alpha: float) -> float:
    """min(ε, α·e^{−H(p)}), H in nats: a token is typical if p(x) exceeds it.

    >>> round(typical_threshold(np.array([0.5, 0.2, 0.15, 0.1, 0.05]), 0.09, 0.3), 7)
    0.0790996
    """
    return min(epsilon, alpha * float(np.exp(-entropy(unit(p)))))


@dataclass(frozen=True)
class Typical:
    """Typical acceptance: the longest path of typical tokens, ties by larger Σ log p; then one draw from the target.

    Lossy: it accepts whatever the target finds plausible. Rows are asked for along typical paths only. A first token
    that is not typical may follow the root's draw: the root's children are judged like all others.

    Source: Medusa (arXiv 2401.10774), section 2.3.1; defaults of its `generate`. Differs from its code, which adds 1e-5
    inside the logarithm.
    """

    epsilon: float = 0.09
    alpha: float = 0.3
    name: ClassVar[str] = "typical"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[Selection]] = _ANY
    needs_q: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _in_range("epsilon", self.epsilon, 0.0, 1.0)
        _in_range("alpha", self.alpha, 0.0, 1.0)

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows | None, rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`."""
        best: tuple[int, float, tuple[int, ...], Row] | None = None

        def visit(node: int, path: tuple[int, ...], score: float) -> None:
            nonlocal best
            row = unit(checked(p(node), f"the target row after node {node}"))
            if best is None or (len(path), score) > best[:2]:
                best = (len(path), score, path, row)
            threshold = typical_threshold(row, self.epsilon, self.alpha)
            for child in tree.children[node + 1]:
                chance = float(row[tree.tokens[child]])
                if chance > threshold:
                    visit(child, (*path, child), score + float(np.log(chance)))

        visit(ROOT, (), 0.0)
        assert best is not None
        length, _, path, row = best
        token = rng.categorical(row, position + length + 1, Purpose.TARGET)
        return Verdict(path, token, _stop(tree, path))


def _stop(tree: TokenTree, path: tuple[int, ...]) -> Literal["bonus", "residual"]:
    return "residual" if tree.children[(path[-1] if path else ROOT) + 1] else "bonus"


# ------------------------------------------------------------------------------------------------ admissible sets

@dataclass(frozen=True)
class Margin:
    """Greedy decoding with slack: follow argmax p if it is a child, else the likeliest child with p(x) ≥ e^{−m}·max p.

    Lossy for m > 0; with m = 0 greedy decoding of the rows. The slack is in nats of the request's law: run it at
    temperature 1, since temperature 0 leaves no margins to see.

    Source: ours, after the margin rules of arXiv 2601.15498 and 2609.02897 (whose exact thresholds we have not seen).
    """

    margin: float = 0.0
    name: ClassVar[str] = "margin"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[Selection]] = _ANY
    needs_q: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _in_range("margin", self.margin, 0.0, float("inf"))

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows | None, rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`; no random number is used."""
        node, path = ROOT, list[int]()
        while True:
            row = checked(p(node), f"the target row after node {node}")
            best = int(np.argmax(row))
            floor = float(row[best]) * float(np.exp(-self.margin))
            site = Site(tree, node, tree.children[node + 1], row, no_rows, rng, position + len(path) + 1)
            token = _likeliest(site, row, best, [t for t in _tokens(site) if row[t] >= floor])
            child = tree.child(node, token)
            if child is None:
                return Verdict(tuple(path), token, _stop(tree, tuple(path)))
            path.append(child)
            node = child


def _tokens(site: Site) -> list[int]:
    return [site.token(c) for c in site.children]


def _likeliest(site: Site, row: Row, drawn: int, admissible: list[int]) -> int:
    """The drawn token if it is a child or nothing is admissible, else the likeliest admissible child (lowest id)."""
    if not admissible or drawn in _tokens(site):
        return drawn
    return min(admissible, key=lambda t: (-row[t], t))


@dataclass(frozen=True)
class Relaxed:
    """Relaxed top-k: the target draws y; if y is no child, the likeliest child in its k best with p ≥ ρ·max p will do.

    Lossy unless k = 1 and ρ = 1 on one-hot rows.

    Source: the relaxed acceptance of TensorRT-LLM (and vLLM issue 43184). Differs in preferring the target's own draw.
    """

    k: int = 1
    ratio: float = 1.0
    name: ClassVar[str] = "relaxed"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[Selection]] = _ANY
    needs_q: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _in_range("k", self.k, 1, float("inf"))
        _in_range("ratio", self.ratio, 0.0, 1.0)

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows | None, rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`."""
        return walk(tree, p, no_rows, rng, position, self._judge)

    def _judge(self, site: Site) -> int:
        best = set(top_ids(site.p, self.k).tolist())
        floor = self.ratio * float(site.p.max())
        return _likeliest(site, site.p, site.bonus(), [t for t in _tokens(site) if t in best and site.p[t] >= floor])


# ------------------------------------------------------------------------------------------------ thresholds

@dataclass(frozen=True)
class Thresholds:
    """Target-only sampling with two thresholds: one coin against the siblings' cumulated p, helped along.

    Going through distinct siblings with c = p(x₁) + … + p(x_j): accept x_j if p(x_j) ≥ `single`, or if the node's coin
    is at most c/`acc`; else emit from p without the siblings. At 1 and 1 the law is p; below it is lossy.

    Source: the target-only kernel of SGLang and FlashInfer. Differs in that a token drafted twice counts once (there it
    biases even the exact setting).
    """

    single: float = 1.0
    acc: float = 1.0
    name: ClassVar[str] = "thresholds"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[Selection]] = _ANY
    needs_q: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _in_range("single", self.single, 0.0, 1.0)
        _in_range("acc", self.acc, 1e-9, 1.0)

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows | None, rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`."""
        return walk(tree, p, no_rows, rng, position, self._judge)

    def _judge(self, site: Site) -> int:
        p, past, mass = unit(site.p), 0.0, 0.0         # past: Pr[coin at most what was tried]
        tokens = list(dict.fromkeys(_tokens(site)))
        for number, token in enumerate(tokens):
            mass += float(p[token])
            reach = min(1.0, mass / self.acc)
            if p[token] >= self.single or site.accepts((reach - past) / (1.0 - past), number):
                return token
            past = reach
        rest = p.copy()
        rest[tokens] = 0.0
        return site.rest(rest, tokens)


# ------------------------------------------------------------------------------------------------ Cactus

def cactus_law(p: Row, drafted: int, delta: float) -> Row:
    """The law h that replaces p once n = `drafted` was drawn: h_n = min(1, p_n + √(2δ p_n(1 − p_n))), the rest ∝ p.

    To second order KL(h‖p) ≤ δ nats for this token; the output's own divergence from p can be larger.

    >>> round(float(cactus_law(np.array([0.35, 0.65]), 0, 0.2)[0]), 6)
    0.651662
    """
    p = unit(p)
    chance = float(p[drafted])
    if chance >= 1.0:
        return p
    raised = min(1.0, chance + float(np.sqrt(2.0 * delta * chance * (1.0 - chance))))
    h = p * ((1.0 - raised) / (1.0 - chance))
    h[drafted] = raised
    return h


@dataclass(frozen=True)
class Cactus:
    """Constrained acceptance of chains: single-draft rejection against `cactus_law` instead of p.

    δ = 0 is exact rejection, number by number. δ bounds the change per drafted token, not that of the output law: on
    p = (.5, .2, .15, .1, .05), q = (.3, .3, .2, .1, .1) δ = 0.01 gives KL(output‖p) = 0.044.

    Source: arXiv 2604.04987.

    Raises: InvariantError for more than one child a node, which the method does not define.
    """

    delta: float = 0.0
    name: ClassVar[str] = "cactus"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[Selection]] = frozenset({Selection.IID, Selection.WITHOUT_REPLACEMENT})
    needs_q: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _in_range("delta", self.delta, 0.0, float("inf"))

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows, rng: Source, position: int) -> Verdict:
        """Judge a chain whose root stands at `position`."""
        return walk(tree, p, q, rng, position, self._judge)

    def _judge(self, site: Site) -> int:
        if site.drawn != 1:
            raise InvariantError(f"Cactus judges chains; node {site.node} has {site.drawn} draws, 1 is allowed")
        token, q = site.token(site.children[0]), unit(site.only_q())
        h = cactus_law(site.p, token, self.delta)
        if site.accepts(float(h[token] / q[token]) if q[token] > 0.0 else 0.0, 0):
            return token
        left = np.maximum(h - q, 0.0)
        return site.rest(left if left.sum() > 0.0 else h, [token])
