"""hu_greedy: greedy siblings with one draw, and their optimal verifier.

Title:     Towards Optimal Multi-draft Speculative Decoding (2502.18779)
Idea:      all siblings but the last are the most likely tokens; then the optimal verifier is as cheap as single-draft
           rejection
Symbols:   their K siblings are 4/2/2 by level, the last of each group the draw
Differs:   the tree is our choice
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import expansion
from hedgerow.verify.transport import GreedyPlusOne

RECIPE = Recipe(
    name="hu_greedy", version=1, title="Towards Optimal Multi-draft Speculative Decoding", paper="hu2025",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(expansion([4, 2, 2]), Selection.GREEDY_PLUS_ONE), rule=GreedyPlusOne(), nodes=28,
    differs="the tree is our choice",
)
