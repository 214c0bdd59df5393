"""leviathan: speculative decoding, a drawn chain judged by rejection.

Title:     Fast Inference from Transformers via Speculative Decoding (2211.17192)
Idea:      a small model draws a few tokens; each is kept with probability min(1, p/q), the first refused one is
           replaced by a draw from the residual, so that the law is the target's
Symbols:   their γ is our nodes (5 here); their p is the target, q the draft
Differs:   γ is fixed, not derived from measured acceptance
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.verify.rejection import Rejection

RECIPE = Recipe(
    name="leviathan", version=1, paper="leviathan2022",
    title="Fast Inference from Transformers via Speculative Decoding",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(chain(5), Selection.IID), rule=Rejection(), nodes=5,
    differs="γ is fixed, not derived from measured acceptance",
)
