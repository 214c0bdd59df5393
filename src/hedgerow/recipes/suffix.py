"""suffix: SuffixDecoding, one suffix structure per request and one over finished texts, grown best first by counts.

Title:     SuffixDecoding: A Model-Free Approach to Speeding Up Large Language Model Inference (2411.04975)
Idea:      what followed the current suffix before, in this text or an earlier one, follows it again
Symbols:   their token probability estimate from counts is our log q
Differs:   match lengths are mixed with weights learned online instead of one best match; a tree, not a chain
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.draft.suffix import SuffixDrafter
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="suffix", version=1, title="SuffixDecoding", paper="suffix_decoding2024",
    sources=(DraftSource("suffix", "retrieval", lambda built: SuffixDrafter(built.corpus)),),
    policy=BestFirst(fanout=8, batch=4, selection=Selection.RETRIEVED), rule=Match(), nodes=15,
    differs="match lengths are mixed with weights learned online; a tree instead of a chain",
)
