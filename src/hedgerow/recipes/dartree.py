"""dartree: a supertree of fixed width, then the best of it.

Title:     DARTree: Speculative Diffusion Decoding with Autoregressive Draft Trees (2608.13524)
Idea:      an autoregressive correction scores a fixed number of nodes a depth in one batch; pruning comes afterwards
Symbols:   their W is 8, block of 16
Differs:   width and budget are ours
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.gate import Lanes
from hedgerow.policy.halt import Depth
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="dartree", version=1, title="DARTree", paper="dartree2026",
    sources=(
        DraftSource("dartree", "autoregressive", None, "a block drafter with a correction head, with --drafter"),
    ),
    policy=Layerwise(8, Lanes(8), Depth(15), Budget(63)), rule=Match(), nodes=63,
    differs="width and budget are ours",
)
