"""opt_tree: the tree of largest expected acceptance, as deep as it gains.

Title:     OPT-Tree: Speculative Decoding with Adaptive Draft Tree Structure (2406.17276)
Idea:      keep the best nodes of the whole draft; draft another layer while it adds more than δ expected tokens
Symbols:   their n is 60 nodes, δ 0.5, at most 10 layers
Differs:   the depth limit is the plan's, not the recipe's
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import Gain
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="opt_tree", version=1, title="OPT-Tree", paper="opt_tree2024",
    sources=(DraftSource("eagle", "autoregressive", None, "an EAGLE head, with --drafter"),),
    policy=Layerwise(60, Beam(60), Gain(0.5), Budget(60)), rule=Match(), nodes=60,
    differs="the depth limit is the plan's, not the recipe's",
)
