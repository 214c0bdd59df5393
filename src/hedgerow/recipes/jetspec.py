"""jetspec: whole families of children at once.

Title:     JetSpec: Breaking the Scaling Ceiling of Speculative Decoding with Parallel Tree Drafting (2606.18394)
Idea:      the best node gets all its children together: cheap to build, weaker than the best prefixes
Symbols:   accum_logp, width 7; its budget of 128 counts the root
Differs:   nothing known to us
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.block import Block, Constant, Families
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="jetspec", version=1, title="JetSpec", paper="jetspec2026",
    sources=(DraftSource("jetspec", "block", None, "a JetSpec head, with --drafter"),),
    policy=Block(build=Families(Constant(7))), rule=Match(), nodes=127,
    differs="nothing known to us",
)
