"""Play a recipe without a model: the engine's own loop against an acceptance model or a recorded trace.

    from hedgerow.simulate import Positional, play
    report = play(recipe, Positional([0.6, 0.2, 0.1]), cost)
"""

from hedgerow.simulate.player import parts, play
from hedgerow.simulate.positional import Positional
from hedgerow.simulate.recorded import Recorded
from hedgerow.simulate.report import Report

__all__ = ["Positional", "Recorded", "Report", "parts", "play"]
