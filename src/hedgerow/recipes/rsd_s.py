"""rsd_s: recursive rejection over a stochastic beam.

Title:     Recursive Speculative Decoding: Accelerating LLM Inference via Sampling Without Replacement (2402.14160)
Idea:      whole paths are drawn without replacement, a beam of them a level
Symbols:   their beam width W is 6, draft length L 5
Differs:   arrivals are drawn one after the other instead of as perturbed scores; the law is the same
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.sampled import StochasticBeam
from hedgerow.verify.rejection import Rejection

RECIPE = Recipe(
    name="rsd_s", version=1, title="Recursive Speculative Decoding", paper="rsd2024",
    sources=(DraftSource("draft", "autoregressive", None, "a small model of the same vocabulary, with --drafter"),),
    policy=StochasticBeam(width=6, depth=5), rule=Rejection(), nodes=30,
    differs="arrivals are drawn one after the other instead of as perturbed scores; the law is the same",
)
