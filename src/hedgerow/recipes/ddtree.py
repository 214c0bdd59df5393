"""ddtree: the best prefixes of a block's position laws.

Title:     Accelerating Speculative Decoding with Block Diffusion Draft Trees (2604.12989)
Idea:      one pass gives a law for every position; a heap takes the most probable token paths
Symbols:   their budget B is our nodes (63)
Differs:   all ranks are open, not the best B of a position only
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.block import Block
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="ddtree", version=1, paper="ddtree2026",
    title="Accelerating Speculative Decoding with Block Diffusion Draft Trees",
    sources=(DraftSource("block", "block", None, "a block drafter (DFlash), with --drafter"),),
    policy=Block(), rule=Match(), nodes=63,
    differs="all ranks are open, not the best B of a position only",
)
