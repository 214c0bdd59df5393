"""Match: the target draws its own token at every node and the tree is followed as far as it holds those tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hedgerow.core.parts import Rows, Verdict
from hedgerow.core.rng import Source
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.verify.walk import DraftRows, Site, no_rows, walk


@dataclass(frozen=True)
class Match:
    """Greedy verification and sample-and-match in one: draw y ~ p(node); follow the child that carries y, else emit y.

    The draw at an absolute position uses plain decoding's own random number, so the output is plain decoding's token
    for token, whatever was drafted: lossless for every selection, and at temperature 0 (one-hot rows) exact match.
    For a tree that is a function of the context no lossless rule accepts more: E[accepted] = Σ_v Π p along the path to
    v. At most depth + 1 target rows are asked for; q never is.

    Source: SpecInfer (arXiv 2305.09781) "naive sampling"; MCSD (arXiv 2401.06706) section 3; SpecExec (arXiv
    2406.02532) section 4; Medusa (arXiv 2401.10774) for the greedy case. Differs from the papers in that the draw is an
    exponential race keyed by seed, position and token, so the same seed gives the same text with any tree.

    >>> import numpy as np
    >>> from hedgerow.core.rng import Rng
    >>> tree = TokenTree.of(tokens=[1, 2, 0], parent=[-1, -1, 1])
    >>> greedy = [[0, 0, 1], [1, 0, 0], [1, 0, 0], [0, 1, 0]]        # one-hot rows after the root and nodes 0, 1, 2
    >>> Match().verify(tree, lambda node: np.array(greedy[node + 1], float), None, Rng(0), position=4)
    Verdict(path=(1, 2), token=1, stop='bonus')
    """

    name: ClassVar[str] = "match"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[Selection]] = frozenset(Selection)
    needs_q: ClassVar[bool] = False

    def verify(self, tree: TokenTree, p: Rows, q: DraftRows | None, rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`; `q` is never asked for."""
        return walk(tree, p, no_rows, rng, position, Site.bonus)
