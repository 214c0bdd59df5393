"""dspark: a block with a correction along the path, cut where the drafter's confidence ends.

Title:     DSpark: Confidence-Scheduled Speculative Decoding with Semi-Autoregressive Generation (2607.05147)
Idea:      one pass fills a block, a low-rank head corrects each token for the one before it, a confidence head says how
           far the chain will live
Symbols:   blocks of 7 drafts; survival is the product of confidences
Differs:   match at every temperature; the chain ends at a fixed survival of 0.1 instead of one read from the load
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.score import Confident
from hedgerow.policy.stop import Threshold
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="dspark", version=1, title="DSpark", paper="dspark2026",
    sources=(DraftSource("dspark", "autoregressive", None, "a block drafter with a Markov head, with --drafter"),),
    policy=BestFirst(1, 1, Threshold(0.1, 7), Confident()), rule=Match(), nodes=7,
    differs="match at every temperature; the chain ends at a fixed survival of 0.1 instead of one read from the load",
)
