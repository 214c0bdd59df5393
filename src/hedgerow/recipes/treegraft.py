"""treegraft: a strong drafter rescores a weak drafter's tree and adds to it.

Title:     TreeGraft: Adaptive Multi-Drafter Grafting for Tree-Based Speculative Decoding (2608.26112)
Idea:      the weak drafter explores, the strong one judges all of it in one call
Symbols:   8 children, 6 weak layers, 32 weak nodes
Differs:   its scheduler is distilled; here sizes are fixed
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.union import Rescored
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="treegraft", version=1, title="TreeGraft", paper="treegraft2026",
    sources=(
        DraftSource("weak", "autoregressive", None, "two drafters, with --drafter"),
        DraftSource("strong", "autoregressive", None, "two drafters, with --drafter"),
    ),
    policy=Rescored(8, 6, 32), rule=Match(), nodes=60,
    differs="its scheduler is distilled; here sizes are fixed",
)
