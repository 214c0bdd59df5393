"""Plain decoding: a plan of 0 nodes at every step.

Title:     none; the baseline every speed-up is measured against
Idea:      the same loop, target, sampler and stop conditions with nothing drafted
Compared:  token for token with transformers' generate
"""

from hedgerow.core.recipe import Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="plain", version=1, title="Plain decoding", paper="", sources=(), nodes=0,
    policy=BestFirst(selection=Selection.RETRIEVED), rule=Match(), compared="transformers generate, token for token",
)
