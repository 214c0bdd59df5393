"""coupled_tree: a best-first tree of coupled draws.

Title:     Speculative Sampling via Exponential Races (2504.15475)
Idea:      the runners-up of the shared race are the likeliest draws of the target after the winner
Symbols:   the r-th finisher is worth RANKS[r], whatever its q: the noise has already decided
Differs:   the paper drafts chains and lists; RANKS are our own
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.score import ByRank
from hedgerow.verify.match import Match

RANKS = (0.6, 0.15, 0.07, 0.04, 0.03, 0.02, 0.015, 0.01)

RECIPE = Recipe(
    name="coupled_tree", version=1, title="Speculative Sampling via Exponential Races", paper="ersd2025",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=BestFirst(8, score=ByRank(RANKS), selection=Selection.COUPLED), rule=Match(), nodes=31,
    differs="the paper drafts chains and lists; RANKS are our own",
)
