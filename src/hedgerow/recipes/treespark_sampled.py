"""treespark_sampled: the same with drawn children: slots priced before their token is seen.

Title:     TreeSpark: Calibrated, Load-Adaptive Draft Trees for Semi-Autoregressive Speculative Decoding (2609.22098)
Idea:      a slot is worth at most the likeliest token not yet drawn, which is known before the draw
Symbols:   their θ is 0.05, branch cap 8, node cap 64; fit of Qwen3-4B
Differs:   θ is fixed instead of read from the load
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.score import Calibrated
from hedgerow.policy.slots import LargestLeft, Slots
from hedgerow.policy.stop import Threshold
from hedgerow.verify.rejection import Rejection

RECIPE = Recipe(
    name="treespark_sampled", version=1, title="TreeSpark", paper="treespark2026",
    sources=(
        DraftSource("treespark", "autoregressive", None, "a block drafter with a Markov head, with --drafter"),
    ),
    policy=Slots(8, value=LargestLeft(), score=Calibrated(), stop=Threshold(0.05, 64)), rule=Rejection(), nodes=64,
    differs="θ is fixed instead of read from the load",
)
