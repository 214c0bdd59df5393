"""Every published method by name: a literal table of strings, so that listing them imports none of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hedgerow.core.errors import UnknownName

if TYPE_CHECKING:
    from hedgerow.core.recipe import Recipe

TABLE = {
    "adaptivespec": "hedgerow.recipes.adaptivespec:RECIPE",
    "adaptivespec_lossy": "hedgerow.recipes.adaptivespec_lossy:RECIPE",
    "auto": "hedgerow.recipes.auto:RECIPE",
    "auto_chain": "hedgerow.recipes.auto_chain:RECIPE",
    "auto_learned": "hedgerow.recipes.auto_learned:RECIPE",
    "auto_memories": "hedgerow.recipes.auto_memories:RECIPE",
    "block_verification": "hedgerow.recipes.block_verification:RECIPE",
    "c2t": "hedgerow.recipes.c2t:RECIPE",
    "cactus": "hedgerow.recipes.cactus:RECIPE",
    "caddtree": "hedgerow.recipes.caddtree:RECIPE",
    "caddtree_greedy": "hedgerow.recipes.caddtree_greedy:RECIPE",
    "cast_hong": "hedgerow.recipes.cast_hong:RECIPE",
    "cast_lee_eo": "hedgerow.recipes.cast_lee_eo:RECIPE",
    "chen": "hedgerow.recipes.chen:RECIPE",
    "coupled": "hedgerow.recipes.coupled:RECIPE",
    "coupled_tree": "hedgerow.recipes.coupled_tree:RECIPE",
    "dartree": "hedgerow.recipes.dartree:RECIPE",
    "ddd": "hedgerow.recipes.ddd:RECIPE",
    "ddte": "hedgerow.recipes.ddte:RECIPE",
    "ddtree": "hedgerow.recipes.ddtree:RECIPE",
    "dflash": "hedgerow.recipes.dflash:RECIPE",
    "dominotree": "hedgerow.recipes.dominotree:RECIPE",
    "dominotree_layers": "hedgerow.recipes.dominotree_layers:RECIPE",
    "dspark": "hedgerow.recipes.dspark:RECIPE",
    "dyspec": "hedgerow.recipes.dyspec:RECIPE",
    "dyspec_threshold": "hedgerow.recipes.dyspec_threshold:RECIPE",
    "eagle1": "hedgerow.recipes.eagle1:RECIPE",
    "eagle2": "hedgerow.recipes.eagle2:RECIPE",
    "eagle3": "hedgerow.recipes.eagle3:RECIPE",
    "falcon": "hedgerow.recipes.falcon:RECIPE",
    "fastmtp": "hedgerow.recipes.fastmtp:RECIPE",
    "global_resolution": "hedgerow.recipes.global_resolution:RECIPE",
    "graft": "hedgerow.recipes.graft:RECIPE",
    "gsd": "hedgerow.recipes.gsd:RECIPE",
    "hass": "hedgerow.recipes.hass:RECIPE",
    "heterospec": "hedgerow.recipes.heterospec:RECIPE",
    "hu_greedy": "hedgerow.recipes.hu_greedy:RECIPE",
    "hydra": "hedgerow.recipes.hydra:RECIPE",
    "jetspec": "hedgerow.recipes.jetspec:RECIPE",
    "jetspec_gap": "hedgerow.recipes.jetspec_gap:RECIPE",
    "jetspec_histogram": "hedgerow.recipes.jetspec_histogram:RECIPE",
    "khisti": "hedgerow.recipes.khisti:RECIPE",
    "leviathan": "hedgerow.recipes.leviathan:RECIPE",
    "mars": "hedgerow.recipes.mars:RECIPE",
    "mcsd": "hedgerow.recipes.mcsd:RECIPE",
    "medusa": "hedgerow.recipes.medusa:RECIPE",
    "medusa_typical": "hedgerow.recipes.medusa_typical:RECIPE",
    "mtp": "hedgerow.recipes.mtp:RECIPE",
    "ngram": "hedgerow.recipes.ngram:RECIPE",
    "opt_tree": "hedgerow.recipes.opt_tree:RECIPE",
    "opt_tree_breakeven": "hedgerow.recipes.opt_tree_breakeven:RECIPE",
    "p_eagle": "hedgerow.recipes.p_eagle:RECIPE",
    "pct": "hedgerow.recipes.pct:RECIPE",
    "pctree": "hedgerow.recipes.pctree:RECIPE",
    "plain": "hedgerow.recipes.plain:RECIPE",
    "pld": "hedgerow.recipes.pld:RECIPE",
    "recycle": "hedgerow.recipes.recycle:RECIPE",
    "rsd_c": "hedgerow.recipes.rsd_c:RECIPE",
    "rsd_s": "hedgerow.recipes.rsd_s:RECIPE",
    "sage": "hedgerow.recipes.sage:RECIPE",
    "sam": "hedgerow.recipes.sam:RECIPE",
    "selfdraft": "hedgerow.recipes.selfdraft:RECIPE",
    "sequoia": "hedgerow.recipes.sequoia:RECIPE",
    "specexec": "hedgerow.recipes.specexec:RECIPE",
    "spechub": "hedgerow.recipes.spechub:RECIPE",
    "specinfer": "hedgerow.recipes.specinfer:RECIPE",
    "spectr": "hedgerow.recipes.spectr:RECIPE",
    "suffix": "hedgerow.recipes.suffix:RECIPE",
    "talon": "hedgerow.recipes.talon:RECIPE",
    "traversal": "hedgerow.recipes.traversal:RECIPE",
    "treegraft": "hedgerow.recipes.treegraft:RECIPE",
    "treespark": "hedgerow.recipes.treespark:RECIPE",
    "treespark_sampled": "hedgerow.recipes.treespark_sampled:RECIPE",
    "union": "hedgerow.recipes.union:RECIPE",
    "union_mixture": "hedgerow.recipes.union_mixture:RECIPE",
    "union_noisy_or": "hedgerow.recipes.union_noisy_or:RECIPE",
    "yggdrasil": "hedgerow.recipes.yggdrasil:RECIPE",
}


def names() -> list[str]:
    """Names of all recipes, sorted."""
    return sorted(TABLE)


def get(name: str) -> Recipe:
    """The recipe of a name.

    Raises: UnknownName with the nearest name.
    """
    if name not in TABLE:
        raise UnknownName("recipe", name, TABLE, f"`hedgerow recipes` lists all {len(TABLE)}")
    module, attribute = TABLE[name].split(":")
    return getattr(importlib.import_module(module), attribute)
