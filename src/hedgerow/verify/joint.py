"""Rules that judge whole paths at once: block verification on chains, traversal verification on trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Row, Rows, Verdict
from hedgerow.core.rng import Purpose, Source
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.verify.rejection import proposals_of
from hedgerow.verify.residual import Residual, checked, spare, unit
from hedgerow.verify.walk import DraftRows, Site, draws

_DRAWN = frozenset({Selection.IID, Selection.WITHOUT_REPLACEMENT})


@dataclass(frozen=True)
class Traversal:
    """Traversal verification: leaves first, in depth-first order with siblings in draw order.

    P(root) = 1 and P(child x of u) = min(1, P(u)·p_u(x)/q_u(x)), where p_u is what refusals below u have left of u's
    row. A node without untried children is accepted, with its whole path, with probability P; the next token then
    follows p_u. A refused child of u changes p_u ← norm(D), D = (P(u)·p_u − q_u)₊, and P(u) ← S/(S + 1 − P(u)) with
    S = ΣD; q_u then loses the child's token if it was drawn without replacement, while i.i.d. repeats (`mult`) are
    further refused children. The root is always accepted. On a chain this is block verification, on siblings of one
    node recursive rejection. Optimal among valid rules on chains; on trees better than top-down rejection wherever it
    was enumerated. Target rows are asked for nodes on the current path only; the accepted node's row last.

    Source: arXiv 2505.12398. Differs from public ports in the order of leaves (first in depth-first order, not the
    deepest) and in the update of P, both of which matter on trees of three tokens and depth two.

    Raises: InvariantError if a row is no law, or a child carries a token its draft row gives no mass.
    """

    name: ClassVar[str] = "traversal"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[Selection]] = _DRAWN
    needs_q: ClassVar[bool] = True

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows, rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`."""

        def visit(node: int, value: float, path: tuple[int, ...]) -> Verdict | None:
            """Judge the subtree of `node`, which P gives `value`; None: all of it is refused, the node too."""
            at, children = position + len(path) + 1, tree.children[node + 1]
            left: Residual | None = None
            if children:
                site = Site(tree, node, children, checked(p(node), f"the target row after node {node}"), q, rng, at)
                left, proposals = Residual(site.p), proposals_of(site)
                visited: set[int] = set()
                for child in draws(tree, children, rng, at, key=node + 1):
                    proposal = proposals[int(tree.source[child])]
                    token = site.token(child)
                    if child not in visited:
                        visited.add(child)
                        found = visit(child, min(1.0, value * left.ratio(token, proposal)), (*path, child))
                        if found is not None:
                            return found
                    rest = left.refuse(token, proposal, value)
                    value = 1.0 if node == ROOT else rest / (rest + 1.0 - value) if rest > 0.0 else 0.0
                    if tree.selection[child] == Selection.WITHOUT_REPLACEMENT:
                        proposal.remove(token)
            if node != ROOT and not rng.bernoulli(value, position + len(path), Purpose.ACCEPT, node):
                return None
            if left is None:
                row = checked(p(node), f"the target row after node {node}")
                return Verdict(path, rng.categorical(row, at, Purpose.TARGET), "bonus")
            return Verdict(path, rng.categorical(left.row, at, Purpose.RESIDUAL), "residual")

        verdict = visit(ROOT, 1.0, ())
        assert verdict is not None  # the root is never refused
        return verdict


@dataclass(frozen=True)
class Block:
    """Block verification of a chain x₁ … x_γ: the longest prefix that the block as a whole can keep.

    P₀ = 1, P_i = min(1, P_{i−1}·p_{i−1}(x_i)/q_{i−1}(x_i)); Z_i = Σ_x (P_i·p_i(x) − q_i(x))₊;
    h_i = Z_i/(Z_i + 1 − P_i) for i < γ and h_γ = P_γ. With independent tests, τ is the *last* i whose test passes
    (found from the end); the next token follows p_γ if τ = γ, else norm((P_τ·p_τ − q_τ)₊).
    Pr[τ ≥ i | x] = P_i, so E[accepted] = Σ_i E[P_i]: never less than token-wise rejection, and the most that any valid
    rule reaches on a chain. Needs the target's row of every inner node.

    Source: arXiv 2403.10444, algorithm 2. Differs from ports that keep the token-wise test or residual, stop at the
    first failure, or restrict the rule to γ ≥ 3: it already gains at γ = 2 (11/9 against 10/9 on the paper's example).

    Raises: InvariantError if the tree is not a chain of single draws or a row is no law.
    """

    name: ClassVar[str] = "block"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[Selection]] = _DRAWN
    needs_q: ClassVar[bool] = True

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows, rng: Source, position: int) -> Verdict:
        """Judge a chain whose root stands at `position`."""
        if tree.width > 1 or np.any(tree.mult > 1):
            raise InvariantError(
                f"block verification judges chains of single draws; this tree has width {tree.width} and up to "
                f"{int(tree.mult.max())} draws a node; use 'traversal'"
            )
        chain = range(tree.nodes)
        target, draft, value = [], [], [1.0]
        for node in chain:
            parent = node - 1
            row = unit(checked(p(parent), f"the target row after node {parent}"))
            site = Site(tree, parent, (node,), row, q, rng, position + node + 1)
            law = unit(proposals_of(site)[int(tree.source[node])].row)
            target.append(row)
            draft.append(law)
            value.append(min(1.0, value[-1] * float(row[site.token(node)] / law[site.token(node)])))
        kept = tree.nodes
        if not kept or rng.bernoulli(value[kept], position + kept, Purpose.ACCEPT, kept - 1):
            row = checked(p(kept - 1), f"the target row after node {kept - 1}")
            return Verdict(tuple(chain), rng.categorical(row, position + kept + 1, Purpose.TARGET), "bonus")
        while True:
            kept -= 1
            left = np.maximum(value[kept] * target[kept] - draft[kept], 0.0)
            mass = float(left.sum())
            keep = mass / (mass + 1.0 - value[kept]) if mass > 0.0 else 0.0
            if not kept or rng.bernoulli(keep, position + kept, Purpose.ACCEPT, kept - 1):
                break
        row = spare(left, target[kept], [int(tree.tokens[kept])])
        return Verdict(tuple(range(kept)), rng.categorical(row, position + kept + 1, Purpose.RESIDUAL), "residual")


def block_survival(p: Sequence[Row], q: Sequence[Row], tokens: Sequence[int]) -> list[float]:
    """P₁ … P_γ of a chain: the probability that block verification accepts at least i of its tokens.

    `p[i]` and `q[i]` are the laws after i tokens.

    >>> a, b = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
    >>> [round(x, 9) for x in block_survival([a, a], [b, b], [0, 1])]
    [0.5, 1.0]
    """
    out, value = [], 1.0
    for row, law, token in zip(p, q, tokens, strict=True):
        value = min(1.0, value * float(row[token] / law[token]))
        out.append(value)
    return out


def token_survival(p: Sequence[Row], q: Sequence[Row], tokens: Sequence[int]) -> list[float]:
    """The same for token-wise rejection: Π min(1, p/q), never more than `block_survival`."""
    out, value = [], 1.0
    for row, law, token in zip(p, q, tokens, strict=True):
        value *= min(1.0, float(row[token] / law[token]))
        out.append(value)
    return out
