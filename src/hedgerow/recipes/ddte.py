"""ddte: one path, then rollouts from its end.

Title:     Dynamic Delayed Tree Expansion For Improved Multi-Path Speculative Decoding (2602.16994)
Idea:      branching pays later than at the root: draft one path for L1 tokens, then K rollouts of L2
Symbols:   (L1, K, L2) = (2, 4, 4)
Differs:   the paper's network chooses (L1, K, L2) at every step; here they are given
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.sampled import Rollouts
from hedgerow.verify.rejection import Rejection

RECIPE = Recipe(
    name="ddte", version=1, paper="ddte2026",
    title="Dynamic Delayed Tree Expansion For Improved Multi-Path Speculative Decoding",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Rollouts(2, 4, 4), rule=Rejection(), nodes=18,
    differs="the paper's network chooses (L1, K, L2) at every step; here they are given",
)
