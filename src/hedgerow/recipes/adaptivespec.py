"""adaptivespec: confidence times recent acceptance moves between a wide tree and a chain.

Title:     Margins, Not Windows: Training-Free Per-Step Lossy Speculative Decoding (2609.02897)
Idea:      one number says how well drafting goes; it interpolates depth, children and size
Symbols:   their DCS = p_draft · RAR over d = 0.5; (3, 4, 4) to (7, 1, 8) count the root
Differs:   the tree axis alone, which is lossless; acceptance counts as 1 until somebody calls `Regime.observe`
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.adaptive import Adaptive, Regime
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="adaptivespec", version=1, title="Margins, Not Windows", paper="adaptivespec2026",
    sources=(DraftSource("eagle3", "autoregressive", None, "an EAGLE-3 head, with --drafter"),),
    policy=Adaptive(Regime()), rule=Match(), nodes=7,
    differs="the tree axis alone, which is lossless; acceptance counts as 1 until somebody calls `Regime.observe`",
)
