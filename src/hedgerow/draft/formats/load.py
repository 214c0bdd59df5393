"""Load a drafter from whatever published layout: recognise, rename, check everything, convert at the border."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from hedgerow.core.errors import ModelError, UnknownName
from hedgerow.draft.formats.files import Files, read
from hedgerow.draft.formats.head import Head, HeadConfig
from hedgerow.draft.formats.kinds import check_ids, check_tensors
from hedgerow.draft.formats.layout import Layout, Seen
from hedgerow.draft.formats.table import detect
from hedgerow.draft.formats.target import OtherTarget, TargetFacts, check_target, tokenizer_in

_PREFIXES = ("model.", "logit_head.")
_DROPPED = "rotary_emb.inv_freq"          # recomputed from the settings
_MAPS = {"d2t": "d2t", "draft_id_to_target_id": "d2t", "t2d": "t2d", "token_map": "token_map"}


def load(path: Path | str, *, target: TargetFacts | None = None) -> Head:
    """A drafter from a directory of config.json and weights, in any layout of `formats.table`.

    With `target`, a drafter that was made for another model is refused. `Head.facts["notes"]` says what was assumed.

    Raises: ModelError naming the directory and what does not fit; OtherTarget, which is one, for another target's.
    """
    with _naming(path):
        return _load(_opened(path), target)


def recognise(path: Path | str) -> Layout:
    """The layout of a drafter's directory, by settings, names and shapes alone. Raises ModelError as `load` does."""
    with _naming(path):
        files = _opened(path)
        return detect(files.settings, {name: files.shapes[there] for name, there in _strip(files).items()})


@contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    try:
        yield
    except (ModelError, UnknownName) as e:
        kind = OtherTarget if isinstance(e, OtherTarget) else ModelError
        raise kind(f"drafter {str(path)!r} cannot be loaded: {e}") from None


def _opened(path: Path | str) -> Files:
    directory = Path(path).expanduser()
    if directory.suffix == ".idx" or (directory.is_dir() and _only_datastore(directory)):
        raise ModelError("it is a REST datastore, not a model: `formats.rest.read` opens it")
    return read(directory)


def _only_datastore(directory: Path) -> bool:
    names = {f.suffix for f in directory.iterdir() if f.is_file()}
    return ".idx" in names and not names & {".safetensors", ".bin", ".pt"}


def _load(files: Files, target: TargetFacts | None) -> Head:
    stripped = _strip(files)
    layout = detect(files.settings, {name: files.shapes[there] for name, there in stripped.items()})
    notes: list[str] = []
    source, maps = _rename(layout, files, stripped, notes)
    shapes = {name: files.shapes[there] for name, there in source.items()}
    config = layout.config(Seen(files.settings, shapes, target, notes))
    made_for = files.card.get("target", {}).get("tokenizer") or tokenizer_in(files.path)
    if target is not None:
        check_target(config, target, made_for)
    check_tensors(config, shapes, source)
    tensors = {name: files.get(there) for name, there in source.items()}
    if odd := sorted(n for n, t in tensors.items() if not t.is_floating_point()):
        raise ModelError(f"tensor {source[odd[0]]} holds {tensors[odd[0]].dtype}: quantised drafters are not read")
    tensors = {name: layout.value(name, t, files.settings) for name, t in tensors.items()}
    ids = _ids(config, {name: files.get(there) for name, there in maps.items()}, tensors)
    check_ids(ids, config.draft_vocab, config.vocab)
    facts = dict(files.card)
    if notes:
        facts["notes"] = notes
    return Head(config, tensors, ids, layout.id, facts)


def _strip(files: Files) -> dict[str, str]:
    """Names without the prefixes that say nothing -> names of the file."""
    out: dict[str, str] = {}
    for there in files.shapes:
        name = there
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        if name.endswith(_DROPPED):
            continue
        if name in out:
            raise ModelError(f"tensors {out[name]} and {there} are one without their prefixes")
        out[name] = there
    return out


def _rename(
    layout: Layout, files: Files, stripped: Mapping[str, str], notes: list[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Canonical names -> names of the file, for the tensors and for the vocabulary maps."""
    source: dict[str, str] = {}
    maps: dict[str, str] = {}
    for name, there in stripped.items():
        if layout.select is not None and not layout.select(name, files.settings):
            continue
        new = layout.rename(name, files.settings)
        if new is None:
            notes.append(f"{there} is not used by this kind of drafter")
            continue
        into, new = (maps, _MAPS[new]) if new in _MAPS else (source, new)
        if new in into:
            raise ModelError(f"tensors {into[new]} and {there} are both its {new}")
        into[new] = there
    return source, maps


def _ids(
    config: HeadConfig, maps: Mapping[str, torch.Tensor], tensors: dict[str, torch.Tensor]
) -> torch.Tensor | None:
    """The target's ids of the drafter's vocabulary, from offsets or absolute ids; mutates `tensors` to order them.

    Raises: ModelError where maps contradict each other or the vocabulary.
    """
    if "token_map" in maps:
        return _sorted_map(config, maps["token_map"], tensors)
    if "d2t" not in maps:
        if "t2d" in maps and config.draft_vocab != config.vocab:
            raise ModelError("it has a t2d but no d2t: the map of its vocabulary is missing")
        return None
    d2t = maps["d2t"]
    if tuple(d2t.shape) != (config.draft_vocab,) or d2t.is_floating_point():
        raise ModelError(
            f"d2t is {list(d2t.shape)} of {d2t.dtype}; {config.draft_vocab} integers are needed, one a row of lm_head"
        )
    ids = torch.arange(config.draft_vocab) + d2t.to(torch.int64)
    check_ids(ids, config.draft_vocab, config.vocab)
    if "t2d" in maps:
        t2d = maps["t2d"].to(torch.bool)
        if tuple(t2d.shape) != (config.vocab,):
            raise ModelError(f"t2d has {list(t2d.shape)} entries for a vocabulary of {config.vocab}")
        there = t2d.nonzero().flatten()
        if not torch.equal(there, ids):
            both = len(set(there.tolist()) & set(ids.tolist()))
            raise ModelError(
                f"d2t names {len(ids)} tokens and t2d {len(there)}, of which {both} are the same: they belong to "
                "different drafters"
            )
    return None if config.draft_vocab == config.vocab else ids


def _sorted_map(
    config: HeadConfig, token_map: torch.Tensor, tensors: dict[str, torch.Tensor]
) -> torch.Tensor | None:
    """Absolute ids in any order: rows of every head are put in order of their ids, so that ties go to the lowest id."""
    if tuple(token_map.shape) != (config.draft_vocab,):
        raise ModelError(f"token_map is {list(token_map.shape)}; {config.draft_vocab} ids are needed")
    ids, order = torch.sort(token_map.to(torch.int64))
    if not torch.equal(order, torch.arange(len(order))):
        for name in [n for n in tensors if n.endswith("lm_head.weight")]:
            tensors[name] = tensors[name][order]
    return None if config.draft_vocab == config.vocab else ids
