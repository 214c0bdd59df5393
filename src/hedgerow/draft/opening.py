"""From `--drafter` to a drafter: load the checkpoint, whatever its layout, and make the drafter of its kind.

Recipes refer to `open_drafter`; nothing heavy is imported before it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hedgerow.core.errors import ModelError, UsageError
from hedgerow.core.parts import Drafter
from hedgerow.core.recipe import Built, Recipe

if TYPE_CHECKING:
    from hedgerow.draft.formats.head import Head

Opener = Callable[["Head", Any], Drafter]               # checkpoint, loaded target -> drafter


def drafters_of(recipe: Recipe, built: Built) -> list[Drafter]:
    """One drafter a source, in order; those the user brings stand in `built.drafter`, separated by commas.

    Raises: UsageError where their number is not the recipe's, and what making one raises.
    """
    brought = [source for source in recipe.sources if source.make is None]
    named = built.drafter.split(",") if built.drafter and len(brought) > 1 else [built.drafter] * len(brought)
    if brought and not built.drafter:
        needs = (brought[0].needs or brought[0].kind).removesuffix(", with --drafter")
        raise UsageError(f"recipe {recipe.name!r} needs {needs}; give {_them(len(brought))} with --drafter")
    if len(named) != len(brought):
        raise UsageError(
            f"recipe {recipe.name!r} drafts with {len(brought)} drafters ({', '.join(s.name for s in brought)}), and "
            f"--drafter names {len(named)}: give that many directories, separated by commas"
        )
    paths = iter(named)
    return [s.make(built) if s.make else open_drafter(replace(built, drafter=next(paths))) for s in recipe.sources]


def _them(count: int) -> str:
    return "one" if count == 1 else f"{count}, separated by commas,"


def open_drafter(built: Built) -> Drafter:
    """The drafter in the directory the user named: a learned one in any layout, or a whole language model.

    Raises: UsageError where none was named; ModelError for one that cannot be read, OtherTarget (a ModelError) for one
    of other sizes or another tokenizer.
    """
    if built.drafter is None:
        raise UsageError("this recipe drafts with a learned drafter: give its directory with --drafter")
    if built.target is None:
        raise UsageError("a learned drafter reads the features of a loaded target, and there is none here")
    from hedgerow.draft.base import Base
    from hedgerow.draft.companion import companion, is_language_model
    from hedgerow.draft.formats import TargetFacts, fingerprint, load

    if is_language_model(built.drafter):
        return companion(built)
    net, base = getattr(getattr(built.target, "runner", None), "net", None), Base.of(built.target)
    words = getattr(built.tokenizer, "vocabulary", None)
    facts = TargetFacts(
        base.hidden, base.vocab, int(getattr(net, "layers", 0)), built.info.name,
        tokenizer=None if words is None else fingerprint(words()),
    )
    return drafter_of(load(built.drafter, target=facts), built.target)


def drafter_of(head: Head, target: Any) -> Drafter:
    """The drafter of a checkpoint in memory, on a loaded target.

    Raises: ModelError for a kind that nothing drafts with, and for what does not fit the target.
    """
    opener = OPENERS.get(head.config.kind)
    if opener is None:
        raise ModelError(
            f"drafters of kind {head.config.kind!r} can be read and converted, but none is run here; "
            f"those that are: {', '.join(sorted(OPENERS))}"
        )
    return opener(head, target)


def _medusa(head: Head, target: Any) -> Drafter:
    from hedgerow.draft.base import Base
    from hedgerow.draft.heads import MedusaDrafter

    return MedusaDrafter(head, Base.of(target))


def _hydra(head: Head, target: Any) -> Drafter:
    from hedgerow.draft.base import Base
    from hedgerow.draft.heads import HydraDrafter

    return HydraDrafter(head, Base.of(target))


def _block(head: Head, target: Any) -> Drafter:
    from hedgerow.draft.base import Base
    from hedgerow.draft.block import BlockDrafter

    return BlockDrafter(head, Base.of(target))


def _corrected(head: Head, target: Any) -> Drafter:
    from hedgerow.draft.base import Base
    from hedgerow.draft.path import PathDrafter

    return PathDrafter(head, Base.of(target))


def _eagle(head: Head, target: Any) -> Drafter:
    from hedgerow.draft.eagle import EagleDrafter
    from hedgerow.draft.nets.fastest import fastest

    kv = target.runner.kv
    return EagleDrafter(fastest(head, target).net, head.config, kv.slots, kv.max_len)


def _parallel(head: Head, target: Any) -> Drafter:
    from hedgerow.draft.eagle import ParallelDrafter
    from hedgerow.draft.nets.fastest import fastest

    kv = target.runner.kv
    return ParallelDrafter(fastest(head, target).net, head.config, kv.slots, kv.max_len)


OPENERS: dict[str, Opener] = {
    "eagle1": _eagle, "eagle3": _eagle, "mtp": _eagle, "peagle": _parallel,
    "medusa": _medusa, "hydra": _hydra, "dflash": _block, "dspark": _corrected, "domino": _corrected,
}
