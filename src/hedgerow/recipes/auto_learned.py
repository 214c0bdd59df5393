"""auto_learned: recipe auto without memories, to show what they earn: the learned drafter alone, grown best first.

Title:     none; our own, for comparison
Idea:      the drafter's own confidence shapes the tree (as in EAGLE-2), in at most four calls
Differs:   from auto in that nothing is retrieved; from EAGLE-2 in growing by the best nodes anywhere
Compared:  no reference implementation exists
"""

from dataclasses import replace

from hedgerow.control.cost_aware import CostAware
from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Drafter
from hedgerow.core.recipe import Built, DraftSource, Recipe
from hedgerow.draft.opening import open_drafter
from hedgerow.draft.shipped import shipped
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.verify.match import Match


def learned(built: Built) -> Drafter:
    """The user's drafter, or the one shipped for the model. Raises UsageError where there is neither."""
    path = built.drafter or shipped(built.info.name)
    if path is None:
        raise UsageError(
            f"no drafter is shipped for {built.info.name!r}: give one with --drafter, or train one (`hedgerow train`)"
        )
    return open_drafter(replace(built, drafter=str(path)))


RECIPE = Recipe(
    name="auto_learned", version=1, title="The learned drafter alone, grown best first", paper="",
    sources=(DraftSource("learned", "autoregressive", learned, "a shipped drafter, or one with --drafter"),),
    policy=BestFirst(fanout=8, batch=6, rounds=4), rule=Match(), nodes=15, controller=CostAware,
)
