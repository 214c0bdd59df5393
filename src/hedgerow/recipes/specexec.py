"""specexec: a large tree for a target whose rows are free.

Title:     SpecExec: Massively Parallel Speculative Decoding for Interactive LLM Inference on Consumer Devices
           (2406.02532)
Idea:      when weights stream from host memory a step costs the same for hundreds of rows: draft the best of a whole
           search
Symbols:   32 beams a call, branch width 16, at most 32 calls, decay 0.95
Differs:   the paper's budgets go to thousands; 127 here
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.score import Decayed
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="specexec", version=1, title="SpecExec", paper="specexec2024",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=BestFirst(16, 32, score=Decayed(0.95), rounds=32), rule=Match(), nodes=127,
    differs="the paper's budgets go to thousands; 127 here",
)
