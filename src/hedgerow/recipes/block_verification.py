"""block_verification: a drawn chain judged as a whole.

Title:     Block Verification Accelerates Speculative Decoding (2403.10444)
Idea:      the longest prefix the block as a whole can keep is accepted; never fewer tokens than rejection token by
           token
Symbols:   their γ is our nodes (8)
Differs:   nothing known to us
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.verify.joint import Block as BlockRule

RECIPE = Recipe(
    name="block_verification", version=1, paper="block_verification2024",
    title="Block Verification Accelerates Speculative Decoding",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(chain(8), Selection.IID), rule=BlockRule(), nodes=8,
    differs="nothing known to us",
)
