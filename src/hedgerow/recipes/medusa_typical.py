"""medusa_typical: Medusa with typical acceptance: not the target's law.

Title:     Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads (2401.10774)
Idea:      accept whatever the target finds plausible: p(x) > min(ε, δ exp(−H(p)))
Symbols:   their ε = 0.09, δ = 0.3 (our alpha)
Differs:   lossy, as the paper says; the entropy has no 1e-5 in its logarithm
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.sparse import medusa_accuracy, medusa_tree
from hedgerow.verify.lossy import Typical

RECIPE = Recipe(
    name="medusa_typical", version=1, title="Medusa", paper="medusa2024",
    sources=(DraftSource("medusa", "heads", None, "Medusa heads, with --drafter"),),
    policy=Fixed(medusa_tree(medusa_accuracy("7b"))), rule=Typical(), nodes=63,
    differs="lossy, as the paper says; the entropy has no 1e-5 in its logarithm",
)
