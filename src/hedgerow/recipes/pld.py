"""pld: prompt lookup, a chain of what followed the last tokens before.

Title:     Prompt lookup decoding (a software repository)
Idea:      the newest place where the text's last tokens stood before tells what comes next
Symbols:   n-grams of at most 3 tokens, 10 tokens drafted
Differs:   shares become probabilities by learned weights, which a chain does not need
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.draft.ngram import NgramDrafter
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="pld", version=1, title="Prompt lookup decoding", paper="pld2023",
    sources=(DraftSource("ngram", "retrieval", lambda built: NgramDrafter(matches=1)),),
    policy=Fixed(chain(10), Selection.RETRIEVED), rule=Match(), nodes=10,
    differs="shares become probabilities by learned weights, which a chain does not need",
)
