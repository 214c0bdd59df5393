"""union_mixture: suffix matches, n-grams and recycled rows in one tree, fixed weights.

Title:     none; our own composition
Idea:      sources are experts with fixed weights, which sum to less than one: some tokens nobody knows; equal children
           of the sources are one node
Differs:   the papers of the sources (2411.04975, 2408.08696) draft from one memory each
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.draft.ngram import NgramDrafter
from hedgerow.draft.recycle import RecycleDrafter
from hedgerow.draft.suffix import SuffixDrafter
from hedgerow.policy.graft import Graft, Mixture
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="union_mixture", version=1, title="United memories: fixed weights", paper="",
    sources=(
        DraftSource("suffix", "retrieval", lambda built: SuffixDrafter(built.corpus)),
        DraftSource("ngram", "retrieval", lambda built: NgramDrafter()),
        DraftSource("recycle", "retrieval", lambda built: RecycleDrafter(context=1)),
    ),
    policy=Graft((0, 1, 2), fanout=4, batch=8, combine=Mixture((0.4, 0.15, 0.35))), rule=Match(), nodes=15,
    differs="the papers of the sources (2411.04975, 2408.08696) draft from one memory each",
)
