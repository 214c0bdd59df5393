"""Checkpoints of learned drafters: every published layout in, one canonical form, the layouts of serving engines out.

    head     the canonical form: facts and tensors        kinds    canonical names and shapes, and the check of them
    load     a directory in any layout -> Head            table    the layouts, in the order they are recognised
    save     Head -> our own directory, or an engine's    eagle, blocks, heads, mtp, own    the layouts themselves
    target   what must fit the target                     rest     datastores of REST
"""

from hedgerow.draft.formats.head import Head, HeadConfig, Kind
from hedgerow.draft.formats.load import load, recognise
from hedgerow.draft.formats.save import save, save_own
from hedgerow.draft.formats.target import Frozen, OtherTarget, TargetFacts, copies_of, facts_of, fingerprint

__all__ = [
    "Frozen", "Head", "HeadConfig", "Kind", "OtherTarget", "TargetFacts", "copies_of", "facts_of", "fingerprint",
    "load", "recognise", "save", "save_own",
]
