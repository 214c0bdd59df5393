"""Our own layout: canonical names, every fact in config.json, and what made the drafter in a model card.

Where vLLM has a layout for the kind, its settings stand in the same config.json, so that it can read the directory too
(the embedding is then the target's).
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from hedgerow.core.errors import ModelError
from hedgerow.draft.formats import blocks, eagle
from hedgerow.draft.formats.head import Head, HeadConfig
from hedgerow.draft.formats.kinds import KINDS
from hedgerow.draft.formats.layout import Layout, Seen, Writer, renamer
from hedgerow.draft.formats.target import TargetFacts

KEY = "hedgerow"
VERSION = 1
_ALSO = {
    "eagle3": eagle.speculators_settings, "peagle": eagle.speculators_settings, "dflash": blocks.speculators_settings,
    "dspark": blocks.speculators_settings,
}


def settings(head: Head, target: TargetFacts | None, dtype: str) -> dict[str, Any]:
    """config.json of our own layout."""
    out: dict[str, Any] = {}
    if head.config.kind in _ALSO:
        try:
            out = _ALSO[head.config.kind](head, target, dtype)
        except ModelError:                # it needs what vLLM's layout cannot say
            out = {}
    return {**out, KEY: {"version": VERSION, "head": asdict(head.config)}}


def config(seen: Seen) -> HeadConfig:
    """The facts as they were written."""
    block = seen.nested(KEY)
    if block.get("version") != VERSION or not isinstance(block.get("head"), dict):
        raise ModelError(f"its version is {block.get('version')!r}; this hedgerow reads version {VERSION}")
    given = dict(block["head"])
    known = {f.name for f in fields(HeadConfig)}
    if strange := sorted(set(given) - known):
        raise ModelError(f"its facts {', '.join(strange)} are not known to this hedgerow: a newer one wrote it")
    if given.get("kind") not in KINDS:
        raise ModelError(f"its kind is {given.get('kind')!r}; known: {', '.join(KINDS)}")
    facts: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    try:
        return HeadConfig(**facts)
    except TypeError as e:
        raise ModelError(f"its facts are not whole ({e})") from None


LAYOUT = Layout(
    "hedgerow", "hedgerow's own", lambda settings, shapes: KEY in settings, renamer(), config,
    writer=Writer(tuple(KINDS), settings),
)
