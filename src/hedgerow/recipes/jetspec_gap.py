"""jetspec_gap: families as wide as the drafter wavers.

Title:     JetSpec: Breaking the Scaling Ceiling of Speculative Decoding with Parallel Tree Drafting (2606.18394)
Idea:      the gap of a position's two best tokens sets how many children it gets
Symbols:   top2gap_fanout, β = 1, g_0 = 1, K = 7
Differs:   nothing known to us
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.block import Block, Families, GapFanout
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="jetspec_gap", version=1, title="JetSpec", paper="jetspec2026",
    sources=(DraftSource("jetspec", "block", None, "a JetSpec head, with --drafter"),),
    policy=Block(build=Families(GapFanout(7))), rule=Match(), nodes=127,
    differs="nothing known to us",
)
