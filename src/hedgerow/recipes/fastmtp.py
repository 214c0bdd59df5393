"""fastmtp: one multi-token module, used again and again.

Title:     FastMTP (2509.18362)
Idea:      one head with shared weights drafts several tokens recursively
Symbols:   their K = 3 draft steps
Differs:   its reduced draft vocabulary belongs to the head and is not seen here
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="fastmtp", version=1, title="FastMTP", paper="fastmtp2025",
    sources=(DraftSource("mtp", "autoregressive", None, "a target with a multi-token module"),),
    policy=Fixed(chain(3)), rule=Match(), nodes=3,
    differs="its reduced draft vocabulary belongs to the head and is not seen here",
)
