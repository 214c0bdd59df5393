"""sam: the longest repeated ending, continued as a chain.

Title:     SAM Decoding: Speculative Decoding via Suffix Automaton (2411.10666)
Idea:      a suffix automaton over the text and finished texts finds the longest match at every step in constant time
Symbols:   their draft length is our nodes (16)
Differs:   counts choose the continuation of the match, and match lengths are mixed; no neural drafter takes over where
           the match is short
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.draft.suffix import SuffixDrafter
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="sam", version=1, title="SAM Decoding: Speculative Decoding via Suffix Automaton", paper="sam_decoding2024",
    sources=(DraftSource("suffix", "retrieval", lambda built: SuffixDrafter(built.corpus)),),
    policy=Fixed(chain(16), Selection.RETRIEVED), rule=Match(), nodes=16,
    differs=(
        "counts choose the continuation of the match, and match lengths are mixed; no neural drafter takes "
        "over where the match is short"
    ),
)
