"""dyspec: slots: best-first growth that is exact with drawn children.

Title:     DySpec: Faster Speculative Decoding with Dynamic Token Tree Structure (2410.11744)
Idea:      a child's place is priced before its token is drawn, so that the tree may follow the drafter's confidence
           under rejection
Symbols:   their slot value is the chance that the rule gets there
Differs:   several slots are drafted a round; at most 8 children a node
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.slots import Slots
from hedgerow.verify.rejection import Rejection

RECIPE = Recipe(
    name="dyspec", version=1, title="DySpec", paper="dyspec2024",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Slots(), rule=Rejection(), nodes=63,
    differs="several slots are drafted a round; at most 8 children a node",
)
