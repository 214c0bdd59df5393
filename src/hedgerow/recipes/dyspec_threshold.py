"""dyspec_threshold: DySpec layer by layer: every slot above a threshold.

Title:     DySpec: Faster Speculative Decoding with Dynamic Token Tree Structure (2410.11744)
Idea:      all slots worth more than a threshold are drafted together, so that the calls are as many as the tree is deep
Symbols:   their threshold is 0.02
Differs:   the threshold is ours; at most 8 children a node
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.slots import Slots
from hedgerow.policy.stop import Threshold
from hedgerow.verify.rejection import Rejection

RECIPE = Recipe(
    name="dyspec_threshold", version=1, title="DySpec", paper="dyspec2024",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Slots(batch=999, stop=Threshold(0.02)), rule=Rejection(), nodes=63,
    differs="the threshold is ours; at most 8 children a node",
)
