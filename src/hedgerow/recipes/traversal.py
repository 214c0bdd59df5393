"""traversal: a tree judged from its leaves up.

Title:     Traversal Verification for Speculative Tree Decoding (2505.12398)
Idea:      leaves are tested first, so that a good path is not lost to one bad node above it; on a chain it is block
           verification
Symbols:   their p is the path's acceptance, our P(u)
Differs:   the tree is MCSD's 4/2/2/1; the order of leaves is depth first
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import expansion
from hedgerow.verify.joint import Traversal

RECIPE = Recipe(
    name="traversal", version=1, title="Traversal Verification for Speculative Tree Decoding", paper="traversal2025",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(expansion([4, 2, 2, 1]), Selection.WITHOUT_REPLACEMENT), rule=Traversal(), nodes=44,
    differs="the tree is MCSD's 4/2/2/1; the order of leaves is depth first",
)
