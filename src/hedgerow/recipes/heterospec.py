"""heterospec: entropy along the best path chooses how much deeper and how many nodes.

Title:     HeteroSpec: Leveraging Contextual Heterogeneity for Efficient Speculative Decoding (2505.13254)
Idea:      easy contexts are drafted deeper and verified with fewer nodes
Symbols:   their cumulative meta-path top-K entropy, binned by a regression tree
Differs:   bin edges, extra depths and sizes are ours; fit them on a trace with `hedgerow train gate`
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import Bins
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="heterospec", version=1, title="HeteroSpec", paper="heterospec2025",
    sources=(DraftSource("eagle3", "autoregressive", None, "an EAGLE-3 head, with --drafter"),),
    policy=Layerwise(10, Beam(10), Bins(8, edges=(2.0, 5.0), extra=(4, 2, 0), nodes=(40, 50, 59)), Budget(59)),
    rule=Match(), nodes=59,
    differs="bin edges, extra depths and sizes are ours; fit them on a trace with `hedgerow train gate`",
)
