"""talon: a gate relative to the layer's best node.

Title:     TALON: Confidence-Aware Speculative Decoding with Adaptive Token Trees (2601.07353)
Idea:      a sure drafter gets a long thin tree, an unsure one a wide flat one, at the same size
Symbols:   their μ is 0.03, K 10, N 60
Differs:   depth is capped at 20
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.gate import RelativeGate
from hedgerow.policy.halt import Depth
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="talon", version=1, title="TALON", paper="talon2026",
    sources=(DraftSource("eagle3", "autoregressive", None, "an EAGLE-3 head, with --drafter"),),
    policy=Layerwise(10, RelativeGate(0.03), Depth(20), Budget(60)), rule=Match(), nodes=60,
    differs="depth is capped at 20",
)
