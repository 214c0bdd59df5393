"""`hedgerow export`: a learned drafter as the directory another engine reads, and the command that serves it there."""

from __future__ import annotations

import json as jsonlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hedgerow.cli import options as o
from hedgerow.core.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from hedgerow.draft.formats import Head, HeadConfig

TARGET = "TARGET"                         # stands for the target's name where none was given


def export(
    directory: Annotated[
        str | None, typer.Argument(metavar="DIR", help="The drafter, in any layout; else the one shipped for --model.")
    ] = None,
    to: Annotated[str, typer.Option("--to", help="`vllm`, `sglang`, `fasterdecoding`, `hedgerow` or a layout.")] = "",
    out: Annotated[Path | None, typer.Option("--out", help="The directory to write.")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="The target it was made for.")] = "demo",
    name: Annotated[str, typer.Option("--name", help="How the engine finds the target: a hub id or a path.")] = "",
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Write a learned drafter for vLLM, SGLang or Medusa's own code, and show how it is served there.

    The target is loaded: some layouts carry copies of its tensors, and a drafter of another model is refused. What was
    written is read back and compared before it stands in --out.
    """
    where = _checked(to, out)
    head = _write(directory, to, where, model, name, o.say(quiet))
    files = sorted(f.name for f in where.iterdir() if f.is_file())
    serve = command(head.config, to, where, name or TARGET)
    if json:
        found = {"path": str(where), "to": to, "kind": head.config.kind, "from": head.origin, "files": files}
        print(jsonlib.dumps({**found, "serve": serve}))
        return
    print(f"{head.config.kind}, read as {head.origin}, written for {to}: {where} ({', '.join(files)})")
    if serve:
        print(f"serve it: {serve}")


def _checked(to: str, out: Path | None) -> Path:
    """The directory to write. Raises UsageError before a model is loaded for nothing."""
    from hedgerow.draft.formats.table import ENGINES, LAYOUTS

    known = [*ENGINES, *(layout.id for layout in LAYOUTS if layout.writer)]
    if not to:
        raise UsageError(f"--to is missing: who is to read it? Known: {', '.join(known)}")
    if to not in known:
        raise UnknownName("layout", to, known)
    if out is None:
        raise UsageError("--out is missing: name the directory to write")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out is {str(out)!r}, which is there and not empty: name another directory")
    return out


def _write(directory: str | None, to: str, out: Path, model: str, name: str, report: Callable[[str], None]) -> Head:
    """Load the target and the drafter, write it. Raises UsageError where no drafter is named and none shipped."""
    from hedgerow import api
    from hedgerow.draft.formats import copies_of, facts_of, load, recognise, save
    from hedgerow.draft.shipped import shipped

    if directory is not None:
        recognise(directory)              # before a model is loaded for nothing
    session = api.load(model, recipe="plain", device="cpu", max_batch=1, report=report)
    target: Any = session.target
    tokenizer: Any = session.tokenizer
    source = directory or shipped(target.info.name)
    if source is None:
        raise UsageError(f"no drafter is shipped for {target.info.name}: name the directory of one")
    facts = facts_of(target.runner.net, name or target.info.name, tokenizer)
    head = load(source, target=facts)
    save(head, out, to, target=facts, frozen=copies_of(target))
    return head


# ---------------------------------------------------------------------------------------------- serving


def _drafts(c: HeadConfig) -> int:
    """Tokens that one round of the drafter proposes: a block, its heads, or a short chain."""
    return c.count or (c.block if c.from_anchor or c.kind == "peagle" else c.block - 1 if c.block else 3)


def _vllm(c: HeadConfig, out: str, target: str) -> str:
    method: dict[str, Any] = {"method": "eagle3", "parallel_drafting": True} if c.kind == "peagle" else {
        "method": c.kind
    }
    settings = jsonlib.dumps({"model": out, **method, "num_speculative_tokens": _drafts(c)})
    return f"vllm serve {shlex.quote(target)} --speculative-config {shlex.quote(settings)}"


_ALGORITHM = {                            # SGLang's, by kind; numbers of a chain: the last counts the root
    "eagle3": "EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
    "dflash": "DFLASH --speculative-num-draft-tokens {block}",
}


def _sglang(c: HeadConfig, out: str, target: str) -> str:
    if c.kind not in _ALGORITHM:
        return ""
    how = _ALGORITHM[c.kind].format(block=c.block)
    return (
        f"python -m sglang.launch_server --model-path {shlex.quote(target)} "
        f"--speculative-draft-model-path {shlex.quote(out)} --speculative-algorithm {how}"
    )


SERVERS: dict[str, Callable[[HeadConfig, str, str], str]] = {"vllm": _vllm, "sglang": _sglang}


def command(config: HeadConfig, to: str, out: Path, target: str) -> str:
    """What a shell is told to serve `target` with what was written; "" where that is not known."""
    return SERVERS[to](config, str(out), target) if to in SERVERS else ""
