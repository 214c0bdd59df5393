"""graft: a doubtful draft is pruned, and retrieval fills its place.

Title:     Draft Less, Retrieve More: Hybrid Tree Construction for Speculative Decoding (2605.20104)
Idea:      where the drafter is unsure early, most of its nodes are wasted: stop, keep a share, graft retrieved nodes
Symbols:   checkpoints 1, 2, 6 (there 0, 1, 5) with thresholds .35, .25, .15 and shares .13, .40, .67; successors k = 9
Differs:   equal children of both are one node
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.draft.recycle import RecycleDrafter
from hedgerow.policy.union import PruneGraft
from hedgerow.topology.sparse import graft_tree
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="graft", version=1, title="Draft Less, Retrieve More", paper="graft2026",
    sources=(
        DraftSource("eagle3", "autoregressive", None, "an EAGLE-3 head, with --drafter"),
        DraftSource("recycle", "retrieval", lambda built: RecycleDrafter(context=1)),
    ),
    policy=PruneGraft(graft_tree(60)), rule=Match(), nodes=60,
    differs="equal children of both are one node",
)
