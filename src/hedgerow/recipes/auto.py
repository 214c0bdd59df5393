"""auto: suffix matches and recycled target rows in one mixture, grown best first.

Title:     none; our own composition, the default
Idea:      retrieval costs no model call, so every step may carry a tree: continuations of what the text repeats
           (SuffixDecoding, 2411.04975) and successors the target itself ranked high before (Token Recycling,
           2408.08696), weighed against each other node by node by what the target went on to commit
Differs:   the papers draft from one memory each, with a static template or a count threshold
Compared:  no reference implementation exists
"""

from hedgerow.control.cost_aware import CostAware
from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.draft.blend import BlendDrafter
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="auto", version=1, title="Suffix matches and recycled rows, mixed", paper="",
    sources=(DraftSource("blend", "retrieval", lambda built: BlendDrafter(built.corpus)),),
    policy=BestFirst(fanout=8, batch=4, selection=Selection.RETRIEVED), rule=Match(), nodes=15, controller=CostAware,
)
