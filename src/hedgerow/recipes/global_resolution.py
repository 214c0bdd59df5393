"""global_resolution: the optimal verifier of several drafts a node.

Title:     Global Resolution: Optimal Multi-Draft Speculative Sampling via Convex Minimization (2511.15898)
Idea:      choose one of the drafts by weights that solve two convex programs, then test it: the optimum for any number
           of drafts
Symbols:   their K drafts are 3/2/1 by level
Differs:   the min-cut is found over sorted prefixes; all tuples of drafts are listed, so for laws of few tokens
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import expansion
from hedgerow.verify.selection import GlobalResolution

RECIPE = Recipe(
    name="global_resolution", version=1, title="Global Resolution", paper="global_resolution2025",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(expansion([3, 2, 1]), Selection.IID), rule=GlobalResolution(), nodes=15, offline=True,
    differs=(
        "the min-cut is found over sorted prefixes; all tuples of drafts are listed, so for laws of few "
        "tokens"
    ),
)
