"""adaptivespec_lossy: the same with a margin at verification: not the target's law.

Title:     Margins, Not Windows: Training-Free Per-Step Lossy Speculative Decoding (2609.02897)
Idea:      a draft token nearly as likely as the target's best is accepted in its place
Symbols:   their κ, p(draft)/p(best), is exp(−margin) = 0.8
Differs:   lossy; κ is ours; the margin holds at every node, not at the first mismatch only
Compared:  no
"""

import math

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.adaptive import Adaptive, Regime
from hedgerow.verify.lossy import Margin

RECIPE = Recipe(
    name="adaptivespec_lossy", version=1, title="Margins, Not Windows", paper="adaptivespec2026",
    sources=(DraftSource("eagle3", "autoregressive", None, "an EAGLE-3 head, with --drafter"),),
    policy=Adaptive(Regime()), rule=Margin(-math.log(0.8)), nodes=7,
    differs="lossy; κ is ours; the margin holds at every node, not at the first mismatch only",
)
