"""caddtree_greedy: CaDDTree as published: a convex fit of the cost, and a stop at the first node that does not pay.

Title:     Cost-Aware Diffusion Draft Trees for Speculative Decoding (2606.01813)
Idea:      on a convex cost the first node that does not raise the rate is the last worth having
Symbols:   their monotone convex regression is our convex_fit; C_d is 5 ms
Differs:   slopes are fitted instead of values, through the few points of a published profile
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.cost.profiles import load
from hedgerow.policy.block import Block
from hedgerow.policy.price import convex_fit, curve
from hedgerow.policy.stop import Throughput
from hedgerow.verify.match import Match

PROFILE = load("m3pro-q8-tiles")
ROWS = (8, 16, 32, 47, 64)
FIT = convex_fit(ROWS, [PROFILE.curve("tree").seconds(rows, 443.0) for rows in ROWS]).tolist()

RECIPE = Recipe(
    name="caddtree_greedy", version=1, paper="caddtree2026",
    title="Cost-Aware Diffusion Draft Trees for Speculative Decoding",
    sources=(DraftSource("block", "block", None, "a block drafter (DFlash), with --drafter"),),
    policy=Block(stop=Throughput(curve(ROWS, FIT), draft_s=0.005, greedy=True)), rule=Match(), nodes=63,
    differs="slopes are fitted instead of values, through the few points of a published profile",
)
