"""selfdraft: the first third of the target's own layers draft.

Title:     LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding (2404.16710)
Idea:      the target's early layers with its own head are a drafter that needs no training and no memory
Symbols:   their exit layer E is a third of the layers (10 of 30)
Differs:   the model was not trained to exit early; the drafter's keys and values are its own, not shared
Compared:  no
"""

from typing import Any

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Drafter
from hedgerow.core.recipe import Built, DraftSource, Recipe
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.basic import chain
from hedgerow.verify.match import Match


def first_layers_of(built: Built) -> Drafter:
    """A drafter that runs the first third of the loaded target; no weight is copied.

    Raises: UsageError for a target whose layers cannot be cut.
    """
    runner: Any = getattr(built.target, "runner", None)
    if not hasattr(getattr(runner, "net", None), "model"):
        raise UsageError(f"selfdraft needs a target whose layers can be cut; those of {built.info.name!r} cannot")

    from hedgerow.draft.independent import LMDrafter
    from hedgerow.models.runner import Runner
    from hedgerow.models.truncate import first_layers

    net = first_layers(runner.net, max(1, runner.net.layers // 3))
    return LMDrafter(Runner(net, runner.kv.slots, runner.kv.max_len, runner.kv.max_rows))


RECIPE = Recipe(
    name="selfdraft", version=1, title="LayerSkip", paper="layerskip2024",
    sources=(DraftSource("first layers", "autoregressive", first_layers_of, "a target whose layers can be cut"),),
    policy=Fixed(chain(4)), rule=Match(), nodes=4,
    differs="the model was not trained to exit early; the drafter's keys and values are its own, not shared",
)
