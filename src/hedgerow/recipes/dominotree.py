"""dominotree: the best prefixes when each path corrects the block's law.

Title:     DominoTree: Conditional Tree-Structured Drafting with Domino for Speculative Decoding (2607.08642)
Idea:      a small recurrent head corrects the base law for the path, so that the heap's scores know the parent
Symbols:   M = 64 candidates a position, budget 16
Differs:   the head is the drafter's: it answers each popped node
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="dominotree", version=1, title="DominoTree", paper="dominotree2026",
    sources=(DraftSource("domino", "autoregressive", None, "a Domino head, with --drafter"),),
    policy=BestFirst(64, 1, Budget(16)), rule=Match(), nodes=16,
    differs="the head is the drafter's: it answers each popped node",
)
