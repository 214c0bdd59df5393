"""sage: deep and narrow after a sure token, shallow and wide after an unsure one.

Title:     SAGE: Accelerating Vision-Language Models via Entropy-Guided Adaptive Speculative Decoding (2602.00523)
Idea:      the entropy of the target's last law foretells how far drafts will hold
Symbols:   three settings of equal size by entropy in nats
Differs:   the paper's map is not printed: edges and settings are ours
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.adaptive import ByEntropy
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import Depth
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="sage", version=1, title="SAGE", paper="sage2026",
    sources=(DraftSource("eagle3", "autoregressive", None, "an EAGLE-3 head, with --drafter"),),
    policy=ByEntropy(
        (0.3, 1.5),
        (
            Layerwise(6, Beam(6), Depth(10), Budget(59)), Layerwise(10, Beam(10), Depth(7), Budget(59)),
            Layerwise(16, Beam(16), Depth(4), Budget(59)),
        ),
    ),
    rule=Match(), nodes=59,
    differs="the paper's map is not printed: edges and settings are ours",
)
