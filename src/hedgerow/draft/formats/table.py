"""Every layout in one table, in the order in which they are recognised, and which one an engine reads."""

from __future__ import annotations

from collections.abc import Mapping

from hedgerow.core.errors import ModelError, UnknownName, UsageError
from hedgerow.draft.formats import blocks, eagle, heads, mtp, own
from hedgerow.draft.formats.head import Kind
from hedgerow.draft.formats.layout import Layout, Settings, Shape

LAYOUTS: tuple[Layout, ...] = (own.LAYOUT, *mtp.LAYOUTS, *blocks.LAYOUTS, *eagle.LAYOUTS, *heads.LAYOUTS)
BY_ID: Mapping[str, Layout] = {layout.id: layout for layout in LAYOUTS}
OWN = own.LAYOUT.id

ENGINES: Mapping[str, Mapping[Kind, str]] = {          # what an engine reads, by kind of drafter
    "vllm": {
        "eagle3": "eagle3_speculators", "peagle": "peagle", "dflash": "dflash_speculators",
        "dspark": "dspark_speculators", "medusa": "medusa_vllm",
    },
    "sglang": {"eagle3": "eagle3_official", "dflash": "dflash_zlab", "dspark": "dspark_deepspec"},
    "fasterdecoding": {"medusa": "medusa_official"},
}


def detect(settings: Settings, shapes: Mapping[str, Shape]) -> Layout:
    """The layout of a checkpoint. Raises ModelError where none fits, UnknownName for a type nobody here knows."""
    for layout in LAYOUTS:
        if layout.detect(settings, shapes):
            return layout
    if kind := settings.get("speculators_model_type"):
        known = ("eagle3", "peagle", "dflash", "dspark", "mtp", "dflash2")
        raise UnknownName("speculators_model_type", str(kind), known)
    some = ", ".join(sorted(shapes)[:4])
    raise ModelError(f"its {len(shapes)} tensors ({some}, …) are laid out in no way known here")


def writable(where: str, kind: Kind) -> Layout:
    """The layout to write for an engine or by its own id. Raises UnknownName, UsageError."""
    if where in ENGINES:
        if kind not in ENGINES[where]:
            engines = [e for e, kinds in ENGINES.items() if kind in kinds]
            raise UsageError(
                f"{where} reads no drafter of kind {kind}; that reads {' or '.join(engines) or 'only hedgerow'}"
            )
        return BY_ID[ENGINES[where][kind]]
    writers = {layout.id: layout for layout in LAYOUTS if layout.writer}
    if where not in writers:
        raise UnknownName("layout", where, [*ENGINES, *writers])
    layout = writers[where]
    assert layout.writer is not None
    if kind not in layout.writer.kinds:
        raise UsageError(f"layout {where} holds drafters of kind {', '.join(layout.writer.kinds)}, this is a {kind}")
    return layout
