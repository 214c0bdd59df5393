"""rsd_c: recursive rejection over a constant branching tree.

Title:     Recursive Speculative Decoding: Accelerating LLM Inference via Sampling Without Replacement (2402.14160)
Idea:      siblings are draws without replacement, so that no draft is spent on a repeat
Symbols:   their branching factors b are our expansion vector 2/2/2
Differs:   nodes are ordered by the drafter's own slot values
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import expansion
from hedgerow.verify.rejection import Rejection

RECIPE = Recipe(
    name="rsd_c", version=1, title="Recursive Speculative Decoding", paper="rsd2024",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(expansion([2, 2, 2]), Selection.WITHOUT_REPLACEMENT, order="path"), rule=Rejection(), nodes=14,
    differs="nodes are ordered by the drafter's own slot values",
)
