"""eagle1: EAGLE's static tree.

Title:     EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty (2401.15077)
Idea:      a one-layer head that continues the target's features, in a hand-made tree of 25 nodes
Symbols:   tree of levels 4/8/8/3/2
Differs:   greedy siblings and match at every temperature
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.sparse import eagle1_tree
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="eagle1", version=1, title="EAGLE", paper="eagle2024",
    sources=(DraftSource("eagle", "autoregressive", None, "an EAGLE head, with --drafter"),),
    policy=Fixed(eagle1_tree()), rule=Match(), nodes=25,
    differs="greedy siblings and match at every temperature",
)
