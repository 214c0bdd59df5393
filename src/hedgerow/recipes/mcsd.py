"""mcsd: several candidates a node, drawn without replacement.

Title:     Multi-Candidate Speculative Decoding (2401.06706)
Idea:      each drafted node gets several candidates, and verification goes through them one by one
Symbols:   their k-config is our expansion vector, 4/2/2/1 here
Differs:   one of several configurations of the paper's kind
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import expansion
from hedgerow.verify.rejection import Rejection

RECIPE = Recipe(
    name="mcsd", version=1, title="Multi-Candidate Speculative Decoding", paper="mcsd2024",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(expansion([4, 2, 2, 1]), Selection.WITHOUT_REPLACEMENT), rule=Rejection(), nodes=44,
    differs="one of several configurations of the paper's kind",
)
