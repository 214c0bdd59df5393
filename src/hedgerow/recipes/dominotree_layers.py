"""dominotree_layers: DominoTree built a depth at a time.

Title:     DominoTree: Conditional Tree-Structured Drafting with Domino for Speculative Decoding (2607.08642)
Idea:      all lanes advance one depth together, and the best of all are kept: the same tree in as many calls as it is
           deep
Symbols:   16 lanes, block of 16
Differs:   16 candidates a node suffice for a budget of 16
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.gate import Lanes
from hedgerow.policy.halt import Depth
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="dominotree_layers", version=1, title="DominoTree", paper="dominotree2026",
    sources=(DraftSource("domino", "autoregressive", None, "a Domino head, with --drafter"),),
    policy=Layerwise(16, Lanes(16), Depth(15), Budget(16)), rule=Match(), nodes=16, alias_of="dominotree",
    differs="16 candidates a node suffice for a budget of 16",
)
