"""eagle3: EAGLE-2's tree, deeper, for a drafter trained on its own output.

Title:     EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test (2503.01840)
Idea:      a better head earns a deeper tree
Symbols:   their depth is 8, top-k 10, total tokens 60 with the root
Differs:   match at every temperature
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import Depth
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="eagle3", version=1, title="EAGLE-3", paper="eagle3_2025",
    sources=(DraftSource("eagle3", "autoregressive", None, "an EAGLE-3 head, with --drafter"),),
    policy=Layerwise(10, Beam(10), Depth(8), Budget(59)), rule=Match(), nodes=59,
    differs="match at every temperature",
)
