"""hass: EAGLE-2's tree for a head trained with aligned contexts.

Title:     Harmonized Speculative Sampling (2408.15766)
Idea:      train the head on its own features, so that deep drafts stay good; the tree is EAGLE-2's
Symbols:   as in eagle2
Differs:   only the weights of the head differ from eagle2
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import Depth
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="hass", version=1, title="Harmonized Speculative Sampling", paper="hass2024",
    sources=(DraftSource("eagle", "autoregressive", None, "an EAGLE head, with --drafter"),),
    policy=Layerwise(10, Beam(10), Depth(6), Budget(59)), rule=Match(), nodes=59, alias_of="eagle2",
    differs="only the weights of the head differ from eagle2",
)
