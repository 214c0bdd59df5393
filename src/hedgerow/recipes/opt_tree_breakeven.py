"""opt_tree_breakeven: OPT-Tree that stops where the next layer no longer pays.

Title:     OPT-Tree: Speculative Decoding with Adaptive Draft Tree Structure (2406.17276)
Idea:      one more layer costs a draft call: it is worth it while its gain beats the step's rate times that cost
Symbols:   their constant δ is replaced by F · draft_s / (depth · draft_s + step_s)
Differs:   the break-even δ is ours; times are those of a published profile
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.cost.profiles import load
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import BreakEven
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match


def step_s(rows: int) -> float:
    """Seconds of a step of the target."""
    return PROFILE.curve("tree").seconds(rows, 1024.0)


PROFILE = load("rtxpro6000-qwen3-8b-hf")

RECIPE = Recipe(
    name="opt_tree_breakeven", version=1, title="OPT-Tree", paper="opt_tree2024",
    sources=(DraftSource("eagle", "autoregressive", None, "an EAGLE head, with --drafter"),),
    policy=Layerwise(60, Beam(60), BreakEven(PROFILE.draft.call_s, step_s), Budget(60)), rule=Match(), nodes=60,
    differs="the break-even δ is ours; times are those of a published profile",
)
