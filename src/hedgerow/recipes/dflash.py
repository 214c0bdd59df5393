"""dflash: a whole block from one pass, as a chain.

Title:     DFlash: Block Diffusion for Speculative Decoding (2602.06036)
Idea:      a small diffusion model fills a block of tokens at once from the target's features
Symbols:   blocks of 16 with the root: 15 nodes
Differs:   match at every temperature
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="dflash", version=1, title="DFlash: Block Diffusion for Speculative Decoding", paper="dflash2026",
    sources=(DraftSource("block", "block", None, "a block drafter (DFlash), with --drafter"),),
    policy=Fixed(chain(15)), rule=Match(), nodes=15,
    differs="match at every temperature",
)
