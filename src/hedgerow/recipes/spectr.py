"""spectr: rollouts judged by K-SEQ.

Title:     SpecTr: Fast Speculative Decoding via Optimal Transport (2310.15141)
Idea:      K independent drafts, and a transport that accepts one of them nearly as often as any rule can
Symbols:   their K = 8 drafts of length L = 8; γ of K-SEQ is our ρ, solved at each node
Differs:   drafts that agree share nodes; ρ is solved a node
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.sampled import Rollouts
from hedgerow.verify.transport import KSeq

RECIPE = Recipe(
    name="spectr", version=1, title="SpecTr: Fast Speculative Decoding via Optimal Transport", paper="spectr2023",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Rollouts(0, 8, 8), rule=KSeq(), nodes=64,
    differs="drafts that agree share nodes; ρ is solved a node",
)
