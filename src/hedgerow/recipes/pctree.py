"""pctree: parent-conditioned block drafting.

Title:     From Chains to Trees: Parent-Conditioned Drafting for Semi-Autoregressive Speculative Decoding (2608.02123)
Idea:      a low-rank head conditions each position on its parent token; a frontier of parents is scored a depth
Symbols:   block of 8, frontier 16
Differs:   frontier and budget are ours
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.gate import Lanes
from hedgerow.policy.halt import Depth
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="pctree", version=1, title="From Chains to Trees", paper="pctree2026",
    sources=(DraftSource("pctree", "autoregressive", None, "a block drafter with a Markov head, with --drafter"),),
    policy=Layerwise(16, Lanes(16), Depth(7), Budget(31)), rule=Match(), nodes=31,
    differs="frontier and budget are ours",
)
