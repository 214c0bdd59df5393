"""auto: suffix matches, recycled target rows and a learned drafter in one mixture, grown best first.

Title:     none; our own composition, the default
Idea:      retrieval costs no model call, so every step may carry a tree: continuations of what the text repeats
           (SuffixDecoding, 2411.04975) and successors the target itself ranked high before (Token Recycling,
           2408.08696); where a learned drafter is at hand (the user's, or one shipped for the model) it is heard for
           the first rounds of a step. All are weighed against each other node by node by what the target committed
Differs:   the papers draft from one source each, with a static template or a count threshold
Compared:  no reference implementation exists
"""

from dataclasses import replace

from hedgerow.control.cost_aware import CostAware
from hedgerow.core.parts import Drafter
from hedgerow.core.recipe import Built, DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.draft.blend import BlendDrafter
from hedgerow.draft.shipped import shipped
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.verify.match import Match

CALLS = 3                                  # of the learned drafter a step


def mixed(built: Built) -> Drafter:
    """Memories, advised by the user's drafter or the one shipped for the model, where there is one."""
    path = built.drafter or shipped(built.info.name)
    if path is None or built.target is None:
        return BlendDrafter(built.corpus)

    from hedgerow.draft.advised import Advised, voice
    from hedgerow.draft.formats import OtherTarget
    from hedgerow.draft.opening import open_drafter

    try:
        learned = open_drafter(replace(built, drafter=str(path)))
    except OtherTarget:
        if built.drafter:
            raise
        return BlendDrafter(built.corpus)  # another model under the same name
    return Advised(BlendDrafter(built.corpus, more=[voice(CALLS)]), learned, CALLS)


RECIPE = Recipe(
    name="auto", version=2, title="Suffix matches, recycled rows and a learned drafter, mixed", paper="",
    sources=(DraftSource("blend", "retrieval", mixed),),
    policy=BestFirst(fanout=8, batch=4, selection=Selection.COUPLED), rule=Match(), nodes=15, controller=CostAware,
)
