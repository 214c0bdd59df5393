"""gsd: repeated endings borrow each other's continuation.

Title:     Graph-Structured Speculative Decoding (2407.16207)
Idea:      hypotheses that end alike are merged, so that no token is drafted twice
Symbols:   their repeat threshold is our match (1 token before the repeat)
Differs:   the graph is unrolled into a tree for the target and cut to the budget
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.merged import Merged
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="gsd", version=1, title="Graph-Structured Speculative Decoding", paper="gsd2024",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Merged(8, 8, match=1), rule=Match(), nodes=31,
    differs="the graph is unrolled into a tree for the target and cut to the budget",
)
