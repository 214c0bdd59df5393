"""eagle2: the drafter's confidence shapes the tree.

Title:     EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees (2406.16858)
Idea:      expand the ten best nodes of each layer, then keep the best of all that was drafted
Symbols:   their top-k is 10, depth 6, total tokens 60 with the root: 59 nodes
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
    name="eagle2", version=1, title="EAGLE-2", paper="eagle2_2024",
    sources=(DraftSource("eagle", "autoregressive", None, "an EAGLE head, with --drafter"),),
    policy=Layerwise(10, Beam(10), Depth(6), Budget(59)), rule=Match(), nodes=59,
    differs="match at every temperature",
)
