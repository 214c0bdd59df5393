"""p_eagle: an EAGLE-3 head that drafts a whole chain in one pass.

Title:     P-EAGLE: Parallel-Drafting EAGLE with Scalable Training (2602.01469)
Idea:      rows behind the text carry a learned stand-in for the feature and a mask token: all depths come at once
Symbols:   their K = 7 drafted tokens
Differs:   match at every temperature
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="p_eagle", version=1, title="P-EAGLE", paper="p_eagle2026",
    sources=(DraftSource("p_eagle", "block", None, "a P-EAGLE head, with --drafter"),),
    policy=Fixed(chain(7)), rule=Match(), nodes=7,
    differs="match at every temperature",
)
