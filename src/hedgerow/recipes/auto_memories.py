"""auto_memories: recipe auto without a learned drafter, to show what one earns; for models without one it is auto.

Title:     none; our own, for comparison
Idea:      suffix matches and recycled rows of the target in one mixture, grown best first; no model drafts
Differs:   from auto in that no learned drafter is heard, even where one is shipped
Compared:  no reference implementation exists
"""

from hedgerow.control.cost_aware import CostAware
from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.draft.blend import BlendDrafter
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="auto_memories", version=1, title="Suffix matches and recycled rows, mixed", paper="",
    sources=(DraftSource("blend", "retrieval", lambda built: BlendDrafter(built.corpus)),),
    policy=BestFirst(fanout=8, batch=4, selection=Selection.COUPLED), rule=Match(), nodes=15, controller=CostAware,
)
