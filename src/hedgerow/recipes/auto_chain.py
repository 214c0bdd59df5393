"""auto_chain: recipe auto at width 1, to show what the width of its trees earns.

Title:     none; our own, for comparison
Idea:      the same memories, mixture and controller; only the likeliest child of every node is drafted
Differs:   from auto in one number, the fan-out
Compared:  no reference implementation exists
"""

from hedgerow.control.cost_aware import CostAware
from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.draft.blend import BlendDrafter
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="auto_chain", version=1, title="Suffix matches and recycled rows, mixed, one path", paper="",
    sources=(DraftSource("blend", "retrieval", lambda built: BlendDrafter(built.corpus)),),
    policy=BestFirst(fanout=1, batch=1, selection=Selection.RETRIEVED), rule=Match(), nodes=15, controller=CostAware,
)
