"""mars: EAGLE-3's tree with a margin at verification: not the target's law.

Title:     MARS: Unleashing the Power of Speculative Decoding via Margin-Aware Verification (2601.15498)
Idea:      where the target itself barely prefers its best token, a drafted runner-up will do
Symbols:   the margin is 0.1 nats of the request's law
Differs:   lossy; the margin is ours, as is its form
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import Depth
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.verify.lossy import Margin

RECIPE = Recipe(
    name="mars", version=1, title="MARS", paper="mars2026",
    sources=(DraftSource("eagle3", "autoregressive", None, "an EAGLE-3 head, with --drafter"),),
    policy=Layerwise(10, Beam(10), Depth(8), Budget(59)), rule=Margin(0.1), nodes=59,
    differs="lossy; the margin is ours, as is its form",
)
