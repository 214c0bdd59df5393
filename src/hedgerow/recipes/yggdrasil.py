"""yggdrasil: every drafting step adds the same number of nodes.

Title:     Yggdrasil: Bridging Dynamic Speculation and Static Runtime for Latency-Optimal Tree-Based LLM Decoding
           (2512.23858)
Idea:      equal growth keeps every tensor's shape, so that a dynamic tree can run inside captured graphs
Symbols:   their W = 8, D = 8, 64 verified rows
Differs:   where new nodes may attach is not stated there: anywhere, one kept for the deepest level; no depth predictor
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.bestfirst import EqualGrowth
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="yggdrasil", version=1, title="Yggdrasil", paper="yggdrasil2025",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=EqualGrowth(8, 8, Budget(63)), rule=Match(), nodes=63,
    differs=(
        "where new nodes may attach is not stated there: anywhere, one kept for the deepest level; no depth "
        "predictor"
    ),
)
