"""coupled: a chain drafted with the target's own noise.

Title:     Speculative Sampling via Exponential Races (2504.15475)
Idea:      drafter and target race on the same noise: whenever their laws agree, so do their draws, at any temperature
Symbols:   the race's exponential variables are those of the rng, keyed by position and token
Differs:   the match rule judges, so the same seed gives plain decoding's text
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="coupled", version=1, title="Speculative Sampling via Exponential Races", paper="ersd2025",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=Fixed(chain(6), Selection.COUPLED), rule=Match(), nodes=6,
    differs="the match rule judges, so the same seed gives plain decoding's text",
)
