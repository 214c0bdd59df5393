"""chen: speculative sampling, found at the same time as leviathan and equal to it.

Title:     Accelerating Large Language Model Decoding with Speculative Sampling (2302.01318)
Idea:      modified rejection sampling of a drawn chain
Symbols:   their q is the target and p the draft: the other way round; their K is our nodes
Differs:   K is 5 here, so that it is leviathan to the last token
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.verify.rejection import Rejection

RECIPE = Recipe(
    name="chen", version=1, paper="chen2023",
    title="Accelerating Large Language Model Decoding with Speculative Sampling",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(chain(5), Selection.IID), rule=Rejection(), nodes=5, alias_of="leviathan",
    differs="K is 5 here, so that it is leviathan to the last token",
)
