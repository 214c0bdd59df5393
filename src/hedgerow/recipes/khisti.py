"""khisti: two drafts a node, judged by the canonical decomposition.

Title:     Multi-Draft Speculative Sampling: Canonical Architectures and Theoretical Limits (2410.18234)
Idea:      first choose one of the two drafts by weights from a linear program, then test it alone: optimal
Symbols:   their w(i, j) are solved over the 64 tokens of largest |p − q|
Differs:   pairs outside the program choose by p/q; the tree is our choice; one program a node, so for research
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import expansion
from hedgerow.verify.selection import Canonical

RECIPE = Recipe(
    name="khisti", version=1, title="Multi-Draft Speculative Sampling", paper="khisti2024",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(expansion([2, 2, 1, 1]), Selection.IID), rule=Canonical(), nodes=14, offline=True,
    differs="pairs outside the program choose by p/q; the tree is our choice; one program a node, so for research",
)
