"""c2t: a small classifier decides which nodes are kept.

Title:     C2T: A Classifier-Based Tree Construction Method in Speculative Decoding (2502.13652)
Idea:      path probability, entropy and depth together tell a good node better than path probability alone; the
           classifier replaces reranking
Symbols:   their features (P_i, H_i, d_i) are the network's inputs, β is 0.5, at most 10 nodes a layer, 7 layers
Differs:   the network is set by hand (a node needs about 3 % path probability, more where its own row is unsure or it
           is deep); fit one with `hedgerow train gate`
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.learned import Classified, Ffn
from hedgerow.verify.match import Match

GATE = Ffn(
    w1=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)), b1=(0.0, 0.0, 0.0), w2=(30.0, -0.3, -0.05), b2=-0.5,
)

RECIPE = Recipe(
    name="c2t", version=1, title="C2T", paper="c2t2025",
    sources=(DraftSource("eagle", "autoregressive", None, "an EAGLE head, with --drafter"),),
    policy=Classified(GATE, beta=0.5, k=10, layers=7), rule=Match(), nodes=60,
    differs=(
        "the network is set by hand (a node needs about 3 % path probability, more where its own row is "
        "unsure or it is deep); fit one with `hedgerow train gate`"
    ),
)
