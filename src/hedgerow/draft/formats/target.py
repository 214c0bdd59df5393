"""What a drafter must know of the target it drafts for, and the refusal of one that was made for another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hedgerow.core.errors import ModelError
from hedgerow.draft.formats.head import HeadConfig
from hedgerow.draft.nets import shared
from hedgerow.models.runner import Network
from hedgerow.models.tokenizer import HFTokenizer


class OtherTarget(ModelError):
    """A drafter was made for another target than the one it is to draft for."""


@dataclass(frozen=True)
class TargetFacts:
    """Sizes and names of a target; `tokenizer` is a fingerprint of its vocabulary, None if unknown."""

    hidden: int
    vocab: int
    layers: int
    name: str = ""
    architecture: str = ""
    tokenizer: str | None = None


@dataclass(frozen=True)
class Frozen:
    """Tensors of the target that some layouts carry a copy of: [vocab, hidden] each."""

    embedding: torch.Tensor | None = None
    lm_head: torch.Tensor | None = None


def facts_of(net: Network, name: str = "", tokenizer: HFTokenizer | None = None) -> TargetFacts:
    """The facts of a loaded network, and of its tokenizer. Raises ModelError for a network without configuration."""
    config: Any = getattr(net, "config", None)
    if config is None:
        raise ModelError("this target keeps no configuration, so no drafter can be checked against it")
    architectures = getattr(config, "architectures", None) or [""]
    return TargetFacts(
        int(config.hidden_size), net.vocab, net.layers, name, str(architectures[0]),
        None if tokenizer is None else fingerprint(tokenizer.vocabulary()),
    )


def copies_of(target: object) -> Frozen:
    """The embedding and the output matrix of a loaded target. Raises ModelError where it has none to lend."""
    return Frozen(shared.embedding(target), shared.head(target))


def fingerprint(vocab: Mapping[str, int]) -> str:
    """Size and hash of a vocabulary (token -> id): equal for the same tokens under the same ids.

    >>> fingerprint({"a": 0, "b": 1}) == fingerprint({"b": 1, "a": 0}), fingerprint({"a": 0, "b": 1})
    (True, '2 tokens, ...')
    """
    ordered = json.dumps(sorted((int(i), token) for token, i in vocab.items()), ensure_ascii=True)
    return f"{len(vocab)} tokens, {hashlib.sha256(ordered.encode()).hexdigest()[:16]}"


def tokenizer_in(directory: Path) -> str | None:
    """The fingerprint of a directory's tokenizer.json; None where there is none, or it is of another form."""
    file = directory / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        listed = data["model"]["vocab"]
        vocab = {str(t): int(i) for t, i in listed.items()} if isinstance(listed, dict) else {
            str(t): i for i, (t, _) in enumerate(listed)
        }
        return fingerprint(vocab | {str(t["content"]): int(t["id"]) for t in data.get("added_tokens") or []})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def check_target(config: HeadConfig, target: TargetFacts, tokenizer: str | None) -> None:
    """Raise OtherTarget, with both numbers, where a drafter's sizes or tokenizer are not the target's."""
    named = f"the target {target.name}" if target.name else "the target"
    if config.target_hidden != target.hidden:
        raise OtherTarget(
            f"it reads hidden states {config.target_hidden} wide, those of {named} are {target.hidden}: it was made "
            "for another model"
        )
    if config.vocab != target.vocab:
        raise OtherTarget(
            f"it knows a vocabulary of {config.vocab} tokens, {named} has {target.vocab}: it was made for another model"
        )
    if tokenizer is not None and target.tokenizer is not None and tokenizer != target.tokenizer:
        raise OtherTarget(
            f"it was made for the tokenizer ({tokenizer}), {named} has ({target.tokenizer}): ids would mean other words"
        )
    if config.taps and not 0 <= min(config.taps) <= max(config.taps) <= target.layers:
        raise OtherTarget(
            f"it reads the hidden states {list(config.taps)}, {named} has those from 0 to {target.layers}"
        )
