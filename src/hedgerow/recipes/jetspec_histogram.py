"""jetspec_histogram: families as wide as ranks were accepted at that depth.

Title:     JetSpec: Breaking the Scaling Ceiling of Speculative Decoding with Parallel Tree Drafting (2606.18394)
Idea:      profiled acceptance by depth and rank sets how many children a position gets
Symbols:   depth_rank_histogram, τ = 0.02
Differs:   Medusa's measured rank accuracies stand in for a profile
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.block import Block, Families, HistogramFanout
from hedgerow.topology.sparse import medusa_accuracy
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="jetspec_histogram", version=1, title="JetSpec", paper="jetspec2026",
    sources=(DraftSource("jetspec", "block", None, "a JetSpec head, with --drafter"),),
    policy=Block(build=Families(HistogramFanout(tuple(map(tuple, medusa_accuracy("7b")))))), rule=Match(), nodes=127,
    differs="Medusa's measured rank accuracies stand in for a profile",
)
