"""A language model of the user's as the drafter: loaded as a target is, its vocabulary compared with the target's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hedgerow.core.errors import ModelError, UnknownName
from hedgerow.core.recipe import Built
from hedgerow.draft.formats.load import recognise
from hedgerow.draft.independent import LMDrafter
from hedgerow.draft.vocabulary import Words, same, words_of
from hedgerow.models import weights
from hedgerow.models.convert import read_tokenizer
from hedgerow.models.opened import open_net
from hedgerow.models.runner import Runner
from hedgerow.models.tokenizer import HFTokenizer


def is_language_model(spec: str) -> bool:
    """Whether `--drafter` names a whole causal language model: a `.gguf` file, the demo, or a directory of one.

    A directory whose tensors are a learned drafter's is none, whatever architecture its config.json names.
    """
    path = Path(spec).expanduser()
    if spec == weights.DEMO or spec.endswith(".gguf"):
        return True
    try:
        settings = json.loads((path / "config.json").read_text(encoding="utf-8"))
        kinds = settings.get("architectures") or [""]
    except (OSError, ValueError, AttributeError):
        return False
    if not str(kinds[0]).endswith("ForCausalLM"):
        return False
    try:
        recognise(path)
    except (ModelError, UnknownName):
        return True
    return False


def companion(built: Built) -> LMDrafter:
    """The language model in `built.drafter`, of the target's type and device, with as many slots.

    Without the target's tokenizer both are taken to have one vocabulary.

    Raises: ModelError where it cannot be loaded, or no token of it is the target's.
    """
    target: Any = built.target
    spec, own, kv = str(built.drafter), target.runner.net, target.runner.kv
    path = weights.resolve(spec)
    compiled = hasattr(own, "decoder")
    net, _ = open_net(
        path, weights.name_of(spec), own.dtype, str(own.device), built.info.quant if compiled else "none",
        compile=compiled or own.captured is not None,
    )
    words = _words(built, path, own.vocab, net.vocab)
    return LMDrafter(Runner(net, kv.slots, kv.max_len, kv.max_rows), words=words, vocab=own.vocab)


def _words(built: Built, path: Path, vocab: int, drafted: int) -> Words | None:
    tell = getattr(built.tokenizer, "vocabulary", None)
    if tell is None:
        return same(vocab, drafted)
    tokenizer = HFTokenizer(*read_tokenizer(path), path.name)
    return words_of(tell(), tokenizer.vocabulary(), vocab, drafted)
