"""falcon: blocks of two tokens a pass, in a static tree of eight levels.

Title:     Falcon: Faster and Parallel Inference of Large Language Models through Enhanced Semi-Autoregressive Drafting
           and Custom-Designed Decoding Tree (2412.12639)
Idea:      a semi-autoregressive head gives two levels a pass; the second level of a pair knows its block only
Symbols:   their k = 2; first and second level of a pair have the rates FIRST and SECOND
Differs:   grown from rates of our own, as the shipped lists repeat paths; level sizes as published
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.sparse import falcon_tree
from hedgerow.verify.match import Match

FIRST = [0.5 * 0.62**rank for rank in range(20)]
SECOND = [0.4 * 0.66**rank for rank in range(20)]

RECIPE = Recipe(
    name="falcon", version=1, title="Falcon", paper="falcon2024",
    sources=(DraftSource("falcon", "autoregressive", None, "a Falcon head, with --drafter"),),
    policy=Fixed(falcon_tree([FIRST, SECOND] * 4)), rule=Match(), nodes=116,
    differs="grown from rates of our own, as the shipped lists repeat paths; level sizes as published",
)
