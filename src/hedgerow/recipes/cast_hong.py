"""cast_hong: breadth, depth and size by one marginal rule.

Title:     Inference-Cost-Aware Dynamic Tree Construction for Efficient Inference in Large Language Models (2510.26577)
Idea:      each of the three is enlarged while what it adds is worth its share of a plain step
Symbols:   their C_1, C_2, C_3 are 4, 3, 2.5; S_D and S_T are draft_s and step_s; R = 32 layers
Differs:   one request instead of the batch's mean; costs are those of a published profile; the window R is ours
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.cost.profiles import load
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.price import MarginalBeam, MarginalDepth, MarginalSize
from hedgerow.verify.match import Match


def step_s(rows: int) -> float:
    """Seconds of a step of the target."""
    return PROFILE.curve("tree").seconds(rows, 1024.0)


def draft_s(width: int) -> float:
    """Seconds of a draft call of this many rows: the profile's call, growing with rows as the target does."""
    return PROFILE.draft.call_s * step_s(width) / step_s(1)


PROFILE = load("rtxpro6000-qwen3-8b-hf")
PLAIN_S = step_s(1)

RECIPE = Recipe(
    name="cast_hong", version=1, paper="cast2025",
    title="Inference-Cost-Aware Dynamic Tree Construction for Efficient Inference in Large Language Models",
    sources=(DraftSource("eagle3", "autoregressive", None, "an EAGLE-3 head, with --drafter"),),
    policy=Layerwise(
        10, MarginalBeam(draft_s, PLAIN_S, 4.0), MarginalDepth(draft_s, PLAIN_S, 3.0), MarginalSize(step_s, 2.5)
    ),
    rule=Match(), nodes=60,
    differs=(
        "one request instead of the batch's mean; costs are those of a published profile; the window R is "
        "ours"
    ),
)
