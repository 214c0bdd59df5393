"""union_noisy_or: suffix matches, n-grams and recycled rows in one tree, independent sources.

Title:     none; our own composition
Idea:      sources err independently: a child two of them propose is surer than by either; equal children of the sources
           are one node
Differs:   the papers of the sources (2411.04975, 2408.08696) draft from one memory each
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.draft.ngram import NgramDrafter
from hedgerow.draft.recycle import RecycleDrafter
from hedgerow.draft.suffix import SuffixDrafter
from hedgerow.policy.graft import Graft, noisy_or
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="union_noisy_or", version=1, title="United memories: independent sources", paper="",
    sources=(
        DraftSource("suffix", "retrieval", lambda built: SuffixDrafter(built.corpus)),
        DraftSource("ngram", "retrieval", lambda built: NgramDrafter()),
        DraftSource("recycle", "retrieval", lambda built: RecycleDrafter(context=1)),
    ),
    policy=Graft((0, 1, 2), fanout=4, batch=8, combine=noisy_or), rule=Match(), nodes=15,
    differs="the papers of the sources (2411.04975, 2408.08696) draft from one memory each",
)
