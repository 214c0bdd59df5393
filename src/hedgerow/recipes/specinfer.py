"""specinfer: an expansion vector of i.i.d. draws, multi-step rejection.

Title:     SpecInfer: Accelerating Generative LLM Serving with Speculative Inference and Token Tree Verification
           (2305.09781)
Idea:      a token tree instead of a chain, verified in one pass, its siblings judged by recursive rejection
Symbols:   their expansion configuration <k_1, k_2, …> is our expansion vector 1/1/3/1/1/1/1/1
Differs:   siblings are tested in draw order, not in random order; one drafter instead of several
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import expansion
from hedgerow.verify.rejection import Rejection

RECIPE = Recipe(
    name="specinfer", version=1, title="SpecInfer", paper="specinfer2023",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(expansion([1, 1, 3, 1, 1, 1, 1, 1]), Selection.IID), rule=Rejection(), nodes=20,
    differs="siblings are tested in draw order, not in random order; one drafter instead of several",
)
