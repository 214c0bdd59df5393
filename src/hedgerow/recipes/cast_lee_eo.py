"""cast_lee_eo: one width for a deployment, bought node by node.

Title:     CAST: Cost-Aware Speculative Trees from One-Pass Block Drafters (2610.00321)
Idea:      the best fixed size follows from a line through step times and the mean survival of the n-th best node; no
           tuning at run time
Symbols:   their ρ_(N) is MASS, c_0 + c_1 (N + 1) the fitted line, eight ranks a position
Differs:   MASS is 0.9 / n^0.7 instead of logged rounds; the probe is the authors' own for an H100
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.cost.profiles import load
from hedgerow.policy.block import Block
from hedgerow.policy.price import cast_width
from hedgerow.policy.stop import Budget
from hedgerow.verify.match import Match

PROFILE = load("h100-nvl-qwen3-8b-hf")
ROWS = (16, 24, 32, 48, 64, 96, 128)
MASS = [0.9 / n**0.7 for n in range(1, 128)]
WIDTH = cast_width(MASS, ROWS, [PROFILE.curve("tree").seconds(rows, 1024.0) for rows in ROWS], PROFILE.draft.call_s)

RECIPE = Recipe(
    name="cast_lee_eo", version=1, title="CAST", paper="cast2026",
    sources=(DraftSource("block", "block", None, "a block drafter (DFlash), with --drafter"),),
    policy=Block(fanout=8, stop=Budget(WIDTH.nodes)), rule=Match(), nodes=127,
    differs="MASS is 0.9 / n^0.7 instead of logged rounds; the probe is the authors' own for an H100",
)
