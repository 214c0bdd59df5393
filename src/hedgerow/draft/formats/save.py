"""Write a drafter: our own directory, or one that a serving engine reads. What was written is read back."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hedgerow.core.errors import InvariantError, ModelError
from hedgerow.draft.formats.files import CARD, CONFIG
from hedgerow.draft.formats.head import Head
from hedgerow.draft.formats.kinds import check_head
from hedgerow.draft.formats.layout import Layout, Writer
from hedgerow.draft.formats.load import load
from hedgerow.draft.formats.table import OWN, writable
from hedgerow.draft.formats.target import Frozen, TargetFacts

_COPIES = {"embed_tokens.weight": "embedding", "lm_head.weight": "lm_head"}


def save(
    head: Head, directory: Path | str, layout: str, *, target: TargetFacts | None = None, frozen: Frozen | None = None
) -> Path:
    """Write `head` as an engine (`vllm`, `sglang`, `fasterdecoding`) or a layout's id names it; returns the directory.

    `frozen` are the target's own tensors, for layouts that carry a copy: vLLM's need the embedding, for blocks also the
    head. Files of the same names are replaced; nothing is left half written.

    Raises: UnknownName, UsageError, ModelError where the layout cannot say what the head needs.
    """
    check_head(head)
    chosen = writable(layout, head.config.kind)
    assert chosen.writer is not None
    tensors = _tensors(head, chosen.writer, frozen or Frozen(), chosen)
    settings = chosen.writer.settings(head, target, _dtype(head))
    out = Path(directory).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".tmp-") as folder:
        _write(Path(folder), settings, tensors, chosen.writer.file, _card(head, target))
        _read_back(head, Path(folder), chosen, target)
        for file in sorted(Path(folder).iterdir()):
            shutil.move(str(file), str(out / file.name))
    return out


def save_own(head: Head, directory: Path | str, *, target: TargetFacts | None = None) -> Path:
    """Write `head` as our own drafter, without copies of the target's tensors but with its facts as a model card."""
    return save(head, directory, OWN, target=target)


def _tensors(head: Head, writer: Writer, frozen: Frozen, layout: Layout) -> dict[str, torch.Tensor]:
    """Tensors under the layout's names, the target's copies added or left out, and the vocabulary maps."""
    tensors = dict(head.tensors)
    for name in writer.without:
        if name not in tensors:
            continue
        copy = getattr(frozen, _COPIES[name])
        if copy is None or not _same(tensors[name], copy):
            why = "give the target's own (`frozen`) to show that it is a copy" if copy is None else "it is no copy"
            raise ModelError(f"layout {layout.id} takes the target's {name} and would lose the drafter's: {why}")
        del tensors[name]
    for name in writer.own:
        if name not in tensors:
            tensors[name] = _copied(head, name, getattr(frozen, _COPIES[name]), layout)
    out = {writer.rename(name, head.config): tensor for name, tensor in tensors.items()}
    if head.ids is not None:
        if not writer.ids:
            raise ModelError(f"layout {layout.id} has no place for a vocabulary of the drafter's own")
        out |= maps(head.ids, head.config.vocab) if writer.ids == "offsets" else {"token_map": head.ids}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in out.items()}


def _copied(head: Head, name: str, copy: torch.Tensor | None, layout: Layout) -> torch.Tensor:
    """The target's tensor in the drafter's dtype, of `lm_head` the drafter's rows."""
    c = head.config
    if copy is None:
        raise ModelError(f"layout {layout.id} carries a copy of the target's {name}: give it (`frozen`)")
    if tuple(copy.shape) != (c.vocab, c.hidden):
        raise ModelError(f"the target's {name} is {list(copy.shape)}, the drafter's would be {[c.vocab, c.hidden]}")
    rows = copy if head.ids is None or not name.startswith("lm_head") else copy[head.ids.to(copy.device)]
    return rows.to(next(iter(head.tensors.values())).dtype)


def _same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    return mine.shape == theirs.shape and torch.equal(mine.cpu(), theirs.to(mine.dtype).cpu())


def maps(ids: torch.Tensor, vocab: int) -> dict[str, torch.Tensor]:
    """d2t [draft_vocab] (offsets: the token is i + d2t[i]) and t2d [vocab] (whether a token can be drafted).

    >>> {k: v.tolist() for k, v in maps(torch.tensor([1, 3]), 4).items()}
    {'d2t': [1, 2], 't2d': [False, True, False, True]}
    """
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[ids.cpu()] = True
    return {"d2t": ids.cpu() - torch.arange(len(ids)), "t2d": t2d}


def _dtype(head: Head) -> str:
    kinds = {t.dtype for t in head.tensors.values()}
    return str(next(iter(kinds)) if len(kinds) == 1 else torch.float32).removeprefix("torch.")


def _card(head: Head, target: TargetFacts | None) -> dict[str, Any]:
    facts = {k: v for k, v in head.facts.items() if k != "notes"}
    if target is not None:
        facts["target"] = {**facts.get("target", {}), "name": target.name, "tokenizer": target.tokenizer}
    return facts


def _write(
    directory: Path, settings: dict[str, Any], tensors: Mapping[str, torch.Tensor], weights: str, card: dict[str, Any]
) -> None:
    from safetensors.torch import save_file

    save_file(dict(tensors), directory / weights, metadata={"format": "pt"})
    (directory / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    if card:
        (directory / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    (directory / weights).chmod((directory / CONFIG).stat().st_mode)      # readable by whoever may read the settings


def _read_back(head: Head, directory: Path, layout: Layout, target: TargetFacts | None) -> None:
    """Raise InvariantError unless the directory loads as the same drafter: engines skip unknown names in silence."""
    back = load(directory, target=target)
    lost = {n for n in head.tensors if n not in (layout.writer.without if layout.writer else ())}
    wrong = sorted(n for n in lost if n not in back.tensors or not torch.equal(back.tensors[n], head.tensors[n].cpu()))
    ids = None if head.ids is None else head.ids.cpu()
    same_ids = (back.ids is None) == (ids is None) and (ids is None or torch.equal(back.ids, ids))  # type: ignore[arg-type]
    if back.origin != layout.id or wrong or not same_ids or _facts(back) != _facts(head):
        raise InvariantError(f"{layout.id} was written but reads as another drafter: {back.origin}, {wrong or 'facts'}")


def _facts(head: Head) -> object:
    """What must survive a round trip: everything but settings no layout of others has a word for."""
    return replace(head.config, embedding_scale=1.0)
