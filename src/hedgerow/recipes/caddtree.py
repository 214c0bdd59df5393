"""caddtree: DDTree cut at the size with most tokens a second.

Title:     Cost-Aware Diffusion Draft Trees for Speculative Decoding (2606.01813)
Idea:      the size of the tree follows the drafter's confidence and the machine's cost of a row
Symbols:   their C_v(n) is step_s(n + 1), C_d the block's one draft call
Differs:   every size is scanned on the measured steps instead of a convex fit; the steps are a published profile's,
           whose cost jumps, and C_d, which it lacks, is 5 ms
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.cost.profiles import load
from hedgerow.policy.block import Block
from hedgerow.policy.stop import Throughput
from hedgerow.verify.match import Match


def step_s(rows: int) -> float:
    """Seconds of a step of the target."""
    return PROFILE.curve("tree").seconds(rows, 443.0)


PROFILE = load("m3pro-q8-tiles")

RECIPE = Recipe(
    name="caddtree", version=1, title="Cost-Aware Diffusion Draft Trees for Speculative Decoding", paper="caddtree2026",
    sources=(DraftSource("block", "block", None, "a block drafter (DFlash), with --drafter"),),
    policy=Block(stop=Throughput(step_s, draft_s=0.005)), rule=Match(), nodes=63,
    differs=(
        "every size is scanned on the measured steps instead of a convex fit; the steps are a published "
        "profile's, whose cost jumps, and C_d, which it lacks, is 5 ms"
    ),
)
