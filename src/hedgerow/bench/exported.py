"""An exported EAGLE-3 drafter served by vLLM, against the same checkpoint here: same drafts, same acceptance?

    python -m hedgerow.bench.exported --python ENVIRONMENT/bin/python --out docs/figures/exported.json

The drafter is written in vLLM's layout and read back from there. vLLM serves it (method eagle3, in the environment it
is installed in) and says what it drafted, what it accepted and what it wrote. Along vLLM's texts our drafter is asked
for a chain wherever vLLM drafted one; then our engine writes its own texts with the same chains. vLLM is asked for some
chains twice, which says how much of a difference is its own rounding.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from hedgerow.bench.chains import Chain, Compared, agreement, along, follow, repeated
from hedgerow.bench.engines import PEERS, Peer, Worker
from hedgerow.bench.run import prompts, provenance
from hedgerow.bench.workloads import Prompt
from hedgerow.core.errors import ModelError, UsageError

FAMILIES = "mt_bench:8,gsm8k:8,humaneval:8"
SERVER = Peer("vllm_eagle3.py", PEERS["vllm"].settings)
_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def main(
    python: Annotated[Path, typer.Option(help="The interpreter that has vLLM.")],
    out: Annotated[Path, typer.Option(help="Where the result goes (JSON); other dtypes in it stay.")],
    model: Annotated[str, typer.Option(help="A model that vLLM loads from the directory ours is in.")] = "demo",
    drafter: Annotated[Path | None, typer.Option(help="An EAGLE-3 drafter; else the one shipped.")] = None,
    families: Annotated[str, typer.Option(help="Prompt families and how many of each.")] = FAMILIES,
    new: Annotated[int, typer.Option(help="New tokens a prompt, without stops.")] = 96,
    nodes: Annotated[int, typer.Option(help="Drafts a step.")] = 3,
    dtype: Annotated[str, typer.Option(help="bf16 or fp32, of both engines.")] = "bf16",
    threads: Annotated[int | None, typer.Option(help="CPU threads of both.")] = None,
    again: Annotated[int, typer.Option(help="Of so many chains one is drafted twice by vLLM.")] = 6,
) -> None:
    """Export, serve, compare, and write what was found."""
    import torch

    from hedgerow import api
    from hedgerow.models.weights import resolve

    if dtype not in _DTYPES:
        raise UsageError(f"dtype is {dtype!r}; allowed: {', '.join(_DTYPES)}")
    console, todo = Console(stderr=True), prompts(families)
    session = api.load(model, recipe="plain", dtype=dtype, device="cpu", threads=threads, max_batch=1,
                       report=console.print)
    asked = [list(session.request(p.messages).prompt) for p in todo]
    with tempfile.TemporaryDirectory() as folder:
        ours, backend = exported(session, drafter, Path(folder))
        job = {"prompts": asked, "drafter": folder, "nodes": nodes, "new": new, "dtype": _DTYPES[dtype],
               "threads": torch.get_num_threads(), "again": again}
        with Worker(SERVER, python, resolve(model), job) as server:
            console.print(f"vLLM {server.version} serves {len(todo)} prompts")
            theirs = server.run(len(todo))
    rows = [
        compare(session, ours, prompt, ids, text, _chains(first), counted)
        | {"again": repeated(_chains(first), _chains(twice))}
        for prompt, ids, text, first, counted, twice in zip(
            todo, asked, *(theirs[k] for k in ("token_ids", "chains", "counters", "again")), strict=True
        )
    ]
    decode(session, ours, todo, rows, nodes, new)
    made = provenance("exported")
    made["command"] = made["command"].replace(str(python), "ENVIRONMENT/bin/python")
    entry: dict[str, Any] = {
        "provenance": made, "version": server.version, "model": session.target.info.name,
        "drafter": backend, "target": session.target.info.backend, "nodes": nodes, "new": new, "families": families,
        "summary": summary(rows), "prompts": [{k: v for k, v in r.items() if k not in ("found", "text")} for r in rows],
    }
    earlier = json.loads(out.read_text())["dtypes"] if out.exists() else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    result = {"table": "exported", "provenance": made, "dtypes": {**earlier, dtype: entry}}
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(entry["summary"]["all"]))


def _chains(listed: Sequence[dict[str, Any]]) -> list[Chain]:
    return [Chain(**c) for c in listed]


def exported(session: Any, drafter: Path | None, folder: Path) -> tuple[Any, str]:
    """Write the drafter for vLLM and make ours from what was written; also says how ours runs.

    Raises: ModelError where nothing is shipped for the model, and what the formats raise.
    """
    from hedgerow.draft.eagle import EagleDrafter
    from hedgerow.draft.formats import copies_of, facts_of, load, save
    from hedgerow.draft.nets.fastest import fastest
    from hedgerow.draft.shipped import shipped

    target = session.target
    source = drafter or shipped(target.info.name)
    if source is None:
        raise ModelError(f"no drafter is shipped for {target.info.name}: give one with --drafter")
    facts = facts_of(target.runner.net, target.info.name, session.tokenizer)
    save(load(source, target=facts), folder, "vllm", target=facts, frozen=copies_of(target))
    head = load(folder, target=facts)
    chosen = fastest(head, target, kind="bf16")
    return EagleDrafter(chosen.net, head.config, 1, target.runner.kv.max_len), chosen.backend


def compare(
    session: Any, ours: Any, prompt: Prompt, ids: Sequence[int], text: Sequence[int], chains: Sequence[Chain],
    counted: dict[str, Any],
) -> dict[str, Any]:
    """A prompt's row: drafts along vLLM's text, which of them that text accepts, and what vLLM counted.

    Raises: ModelError where vLLM verified another number of chains than were seen.
    """
    from hedgerow.draft.formats.selftest import sample_of

    sample = sample_of(session.target, ours.needs, ids, text)
    found = follow(ours, sample, chains, f"compared {prompt.id}")
    drafted, theirs, mine = along(found, sample.tokens)
    same = agreement(found)
    if counted["drafts"] != same["chains"]:
        raise ModelError(f"vLLM counts {counted['drafts']} chains on {prompt.id}, {same['chains']} were seen")
    return {
        "family": prompt.family, "prompt": prompt.id, "prompt_tokens": len(ids), "found": found,
        "text": list(text), "vllm": counted, "along": {"drafted": drafted, "theirs": theirs, "ours": mine},
        "identical": same.get("identical"), "apart": same.get("apart", []),
    }


def decode(
    session: Any, ours: Any, todo: Sequence[Prompt], rows: Sequence[dict[str, Any]], nodes: int, new: int
) -> None:
    """Let our engine write with the same chains; adds `ours` and `same_tokens` to every row.

    As vLLM counts: every step whose root is one of the first `new` tokens but the last, with all it drafted.
    """
    from hedgerow import api
    from hedgerow.control.controller import Fixed as Caps
    from hedgerow.core.recipe import DraftSource, Recipe
    from hedgerow.policy.fixed import Fixed
    from hedgerow.topology.basic import chain
    from hedgerow.verify.match import Match

    recipe = Recipe(
        name="exported", version=1, title="A greedy chain", paper="",
        sources=(DraftSource("eagle3", "autoregressive", lambda built: ours),), policy=Fixed(chain(nodes)),
        rule=Match(), nodes=nodes,
    )
    made = api.assemble(
        session.target, session.tokenizer, recipe, controller=Caps(nodes=nodes, guard=False), prices=session.prices,
    )
    steps: list[Any] = []
    made = replace(made, max_batch=1, trace=steps.append)
    for prompt, row in zip(todo, rows, strict=True):
        steps.clear()
        text = made.generate(prompt.messages, max_tokens=new + nodes, ignore_eos=True).token_ids[:new]
        counted = [s for s in steps if s.position < row["prompt_tokens"] + new - 1]
        by_depth = [sum(len(s.path) > d for s in counted) for d in range(nodes)]
        row["ours"] = {"steps": len(counted), "drafted": sum(len(s.tree["tokens"]) for s in counted),
                       "accepted": sum(by_depth), "by_depth": by_depth}
        row["same_tokens"] = next((i for i, (a, b) in enumerate(zip(text, row["text"], strict=True)) if a != b), new)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By family and for all: agreement of drafts, acceptance of both. Needs what `compare` and `decode` wrote."""
    groups = {f: [r for r in rows if r["family"] == f] for f in dict.fromkeys(r["family"] for r in rows)}
    return {name: _group(group) for name, group in [*groups.items(), ("all", list(rows))]}


def _group(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: list[Compared] = [c for r in rows for c in r["found"]]
    drafted, theirs, ours = (sum(r["along"][k] for r in rows) for k in ("drafted", "theirs", "ours"))
    steps, verified = sum(r["ours"]["steps"] for r in rows), sum(r["vllm"]["drafts"] for r in rows)
    same = agreement(found)
    same.pop("apart", None)
    ratio, low, high = _ratio(rows)
    twice = {k: sum(r["again"][k] for r in rows) for k in ("drafts", "same")}
    return {
        "prompts": len(rows), **same, "again_drafts": twice["drafts"],
        "again_identical": twice["same"] / twice["drafts"] if twice["drafts"] else None,
        "along_drafted": drafted, "along_theirs": theirs / drafted,
        "along_ours": ours / drafted, "our_steps": steps, "our_acceptance": _rate([r["ours"] for r in rows]),
        "their_acceptance": _rate([_like_ours(r["vllm"]) for r in rows]), "ratio": ratio, "ratio_low": low,
        "ratio_high": high,
        "our_by_depth": [sum(n) / steps for n in zip(*(r["ours"]["by_depth"] for r in rows), strict=True)],
        "their_by_depth": [
            sum(n) / verified for n in zip(*(r["vllm"]["accepted_tokens_per_pos"] for r in rows), strict=True)
        ],
        "same_texts": sum(r["same_tokens"] == len(r["text"]) for r in rows),
        "same_tokens": sum(r["same_tokens"] for r in rows) / sum(len(r["text"]) for r in rows),
    }


def _like_ours(counted: dict[str, Any]) -> dict[str, Any]:
    return {"drafted": counted["draft_tokens"], "accepted": counted["accepted_tokens"]}


def _rate(rows: Sequence[dict[str, Any]]) -> float:
    return float(sum(r["accepted"] for r in rows) / sum(r["drafted"] for r in rows))


def _ratio(rows: Sequence[dict[str, Any]], draws: int = 2000) -> tuple[float, float, float]:
    """Our acceptance over vLLM's, and a 95 % interval over prompts drawn again, both engines' by the same draw."""
    counts = np.array([
        [r["ours"]["accepted"], r["ours"]["drafted"], r["vllm"]["accepted_tokens"], r["vllm"]["draft_tokens"]]
        for r in rows
    ], np.float64)
    picked = np.random.default_rng(0).integers(0, len(rows), (draws, len(rows)))

    def ratio(sums: np.ndarray) -> np.ndarray:
        return sums[..., 0] / sums[..., 1] / (sums[..., 2] / sums[..., 3])

    low, high = np.percentile(ratio(counts[picked].sum(1)), [2.5, 97.5])
    return float(ratio(counts.sum(0))), float(low), float(high)


if __name__ == "__main__":
    typer.run(main)
