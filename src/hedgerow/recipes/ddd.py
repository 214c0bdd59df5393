"""ddd: EAGLE-2 with a depth that follows the beam's mass.

Title:     Dynamic Depth Decoding: Faster Speculative Decoding for LLMs (2409.00142)
Idea:      stop drafting when the beam has little chance left; look only after a few layers, to save synchronisation
Symbols:   their H is log Σ exp of the beam's scores; at most 11 layers
Differs:   threshold (log 0.25) and checks (5, 7, 9) are ours: the paper's are tuned per model and not printed
Compared:  no
"""

import math

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import BeamMass
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="ddd", version=1, title="Dynamic Depth Decoding: Faster Speculative Decoding for LLMs", paper="ddd2024",
    sources=(DraftSource("eagle", "autoregressive", None, "an EAGLE head, with --drafter"),),
    policy=Layerwise(10, Beam(10), BeamMass(math.log(0.25), (5, 7, 9), 11), Budget(59)), rule=Match(), nodes=59,
    differs="threshold (log 0.25) and checks (5, 7, 9) are ours: the paper's are tuned per model and not printed",
)
