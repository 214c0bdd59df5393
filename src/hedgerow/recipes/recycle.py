"""recycle: Token Recycling, a static template filled from the target's own earlier rankings.

Title:     Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling
           (2408.08696)
Idea:      the best successors the target ranked after a token are drafted when that token comes again
Symbols:   their adjacency matrix M[token][rank] is our memory of context length 1
Differs:   the template's ranks are our own (level sizes 8/21/25/15/8/3 as published); cold rows are left out
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.draft.recycle import RecycleDrafter
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.sparse import recycling_tree
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="recycle", version=1, title="Token Recycling", paper="token_recycling2024",
    sources=(DraftSource("recycle", "retrieval", lambda built: RecycleDrafter(context=1)),),
    policy=Fixed(recycling_tree(), Selection.RETRIEVED, order="path"), rule=Match(), nodes=80,
    differs="the template's ranks are our own; cold rows are left out",
)
