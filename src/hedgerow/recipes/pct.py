"""pct: nodes whose expected gain in time pays for them.

Title:     Faster Speculative Decoding via Effective Draft Decoder with Pruned Candidate Tree (ACL 2025, long paper 486)
Idea:      a node is kept if its survival times the time a token saves is more than the time it costs
Symbols:   saved_s is a plain step, node_s the slope of a step from 4 to 64 rows
Differs:   one cost for all nodes, from a published profile; the growth is EAGLE-2's
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.cost.profiles import load
from hedgerow.policy.gate import Beam
from hedgerow.policy.halt import Depth
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.stop import Price
from hedgerow.verify.match import Match

TREE = load("rtxpro6000-qwen3-8b-hf").curve("tree")
NODE_S = (TREE.seconds(64, 1024.0) - TREE.seconds(4, 1024.0)) / 60

RECIPE = Recipe(
    name="pct", version=1, paper="pct2025",
    title="Faster Speculative Decoding via Effective Draft Decoder with Pruned Candidate Tree",
    sources=(DraftSource("eagle", "autoregressive", None, "an EAGLE head, with --drafter"),),
    policy=Layerwise(10, Beam(10), Depth(6), Price(TREE.seconds(1, 1024.0), NODE_S)), rule=Match(), nodes=60,
    differs="one cost for all nodes, from a published profile; the growth is EAGLE-2's",
)
