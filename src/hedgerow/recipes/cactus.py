"""cactus: rejection against a raised law: not the target's law.

Title:     Cactus: Accelerating Auto-Regressive Decoding with Constrained Acceptance Speculative Sampling (2604.04987)
Idea:      raise the drafted token's probability as far as a bound on the divergence allows, then judge by rejection
Symbols:   their δ is 0.05 nats a token
Differs:   lossy; δ bounds the change a drafted token, not that of the text
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.verify.lossy import Cactus

RECIPE = Recipe(
    name="cactus", version=1, title="Cactus", paper="cactus2026",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(chain(5), Selection.IID), rule=Cactus(0.05), nodes=5,
    differs="lossy; δ bounds the change a drafted token, not that of the text",
)
