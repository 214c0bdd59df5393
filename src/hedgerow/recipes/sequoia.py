"""sequoia: the optimal static tree for measured positional rates.

Title:     Sequoia: Scalable, Robust, and Hardware-aware Speculative Decoding (2402.12374)
Idea:      a dynamic programme finds the shape with most expected tokens; siblings are drawn without replacement
Symbols:   their p_k is RATES[k − 1], their budget n counts rows: 64, at most 8 levels of them drafted
Differs:   RATES stand in for rates measured on the user's pair of models; size and depth are fixed instead of chosen
           for the machine
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.optimal import sequoia_dp
from hedgerow.verify.rejection import Rejection

RATES = (0.6, 0.14, 0.07, 0.045, 0.03, 0.02, 0.015, 0.01)

RECIPE = Recipe(
    name="sequoia", version=1, title="Sequoia", paper="sequoia2024",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(sequoia_dp(RATES, 64, 8)[1], Selection.WITHOUT_REPLACEMENT), rule=Rejection(), nodes=63,
    differs=(
        "RATES stand in for rates measured on the user's pair of models; size and depth are fixed instead of "
        "chosen for the machine"
    ),
)
