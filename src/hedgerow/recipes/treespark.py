"""treespark: calibrated survival against a price, greedy.

Title:     TreeSpark: Calibrated, Load-Adaptive Draft Trees for Semi-Autoregressive Speculative Decoding (2609.22098)
Idea:      a fitted correction makes survivals true probabilities, so that a price in accepted tokens can end the tree
Symbols:   their θ is 0.02 (batch of at most 4), branch cap 8, node cap 64; fit of Qwen3-4B
Differs:   θ is fixed instead of read from the load
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.score import Calibrated
from hedgerow.policy.stop import Threshold
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="treespark", version=1, title="TreeSpark", paper="treespark2026",
    sources=(
        DraftSource("treespark", "autoregressive", None, "a block drafter with a Markov head, with --drafter"),
    ),
    policy=BestFirst(8, score=Calibrated(), stop=Threshold(0.02, 64)), rule=Match(), nodes=64,
    differs="θ is fixed instead of read from the load",
)
