"""mtp: the model's own multi-token module, one token ahead.

Title:     DeepSeek-V3 Technical Report (2412.19437)
Idea:      a module trained with the model predicts the token after the next; served, it drafts one
Symbols:   their D = 1
Differs:   greedy draft under the match rule
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="mtp", version=1, title="DeepSeek-V3 Technical Report", paper="deepseek_v3_2024",
    sources=(DraftSource("mtp", "autoregressive", None, "a target with a multi-token module"),),
    policy=Fixed(chain(1)), rule=Match(), nodes=1,
    differs="greedy draft under the match rule",
)
