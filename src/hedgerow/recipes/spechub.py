"""spechub: hub pairs and their transport.

Title:     SpecHub: Provable Acceleration to Multi-Draft Speculative Decoding (2411.05289)
Idea:      every pair of siblings holds the drafter's favourite, which makes the optimal transport a formula
Symbols:   their hub a is the most likely token of q; two drafts a node
Differs:   the pairs make a binary tree of depth 4
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import k_ary
from hedgerow.verify.transport import SpecHub

RECIPE = Recipe(
    name="spechub", version=1, title="SpecHub", paper="spechub2024",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(k_ary(2, 4), Selection.HUB), rule=SpecHub(), nodes=30,
    differs="the pairs make a binary tree of depth 4",
)
