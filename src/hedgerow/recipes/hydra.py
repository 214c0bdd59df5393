"""hydra: sequential heads in a tree grown from records, its size timed.

Title:     Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding (2402.05109)
Idea:      heads that see the path; the tree grows by what it would have accepted, and the size with most tokens a
           second is kept
Symbols:   a record is the rank path of a true continuation; here each occurs as often as the first Medusa head's
           accuracies say
Differs:   records follow published accuracies; sizes are timed on a published cost profile, not here
Compared:  no
"""

import math
from itertools import product

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.cost.profiles import load
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.sparse import fastest_prefix, hydra_tree, medusa_accuracy
from hedgerow.verify.match import Match


def step_s(rows: int) -> float:
    """Seconds of a step on the machine the size is chosen for."""
    return load("rtxpro6000-qwen3-8b-hf").curve("tree").seconds(rows, 1024.0)


RATES = medusa_accuracy("7b")[0][:4]
MISS = 1.0 - sum(RATES)
PATHS = [path for depth in range(5) for path in product(range(4), repeat=depth)]
SHARES = [math.prod(RATES[r] for r in path) * (MISS if len(path) < 4 else 1.0) for path in PATHS]
TREE = hydra_tree(path for path, share in zip(PATHS, SHARES, strict=True) for _ in range(round(4000 * share)))
SHAPE = TREE.prefix(fastest_prefix(TREE, step_s)[0])

RECIPE = Recipe(
    name="hydra", version=1, title="Hydra", paper="hydra2024",
    sources=(DraftSource("hydra", "autoregressive", None, "Hydra heads, with --drafter"),),
    policy=Fixed(SHAPE), rule=Match(), nodes=SHAPE.nodes,
    differs="records follow published accuracies; sizes are timed on a published cost profile, not here",
)
