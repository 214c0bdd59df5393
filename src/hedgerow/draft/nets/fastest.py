"""Which network a head runs by: the compiled one where its target's layers are compiled and it fits, else torch's."""

from __future__ import annotations

from typing import NamedTuple

from hedgerow.core.errors import ModelError
from hedgerow.draft.base import Base
from hedgerow.draft.formats.head import Head
from hedgerow.draft.nets.base import SlotNet
from hedgerow.draft.nets.compiled import compiled_head
from hedgerow.draft.nets.reference import TorchHead


class Chosen(NamedTuple):
    """A network, and in words how it runs."""

    net: SlotNet
    backend: str


def fastest(head: Head, target: object, kind: str = "int8") -> Chosen:
    """The network of a head on a loaded target; compiled, its weights are of `kind`: int8 (half the bytes) or bf16.

    A draft law is the drafter's own affair: rounding its weights changes what is proposed, never what is said.

    Raises: ModelError for a head of another target, or that nothing runs.
    """
    base = Base.of(target)
    decoder = getattr(getattr(getattr(target, "runner", None), "net", None), "decoder", None)
    why_not = "its target's layers are not compiled"
    if decoder is not None:
        try:
            return Chosen(compiled_head(head, base, decoder.library, kind), f"compiled {kind}")
        except ModelError as e:
            why_not = str(e)
    return Chosen(TorchHead(head, base), f"torch ({why_not})")
