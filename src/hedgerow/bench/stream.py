"""Weights streamed from disk: what hundreds of rows cost next to one, and what a tree of 255 nodes gains.

    python -m hedgerow.bench.stream --out docs/figures/stream.json

Three parts a variant, in turns: blocks of plain and of wide steps back to back (the first of a block is not timed: it
begins with a window the other kind has filled); whole texts, plain and with a tree from an oracle of known quality; and
the disk's own speed. A variant is the dtype of the weights on disk, and a limit in MB/s where a slower disk is played:
`bf16,fp32,bf16@300`. Matrix products are bf16 in all of them. A run that was interrupted, or paused by `--pause-after`,
goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from hedgerow.bench.contexts import Journal, write
from hedgerow.bench.workloads import load
from hedgerow.core.parts import Ask, Children, Needs, RowGroup
from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import TokenTree
from hedgerow.draft.oracle import OracleDrafter
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.policy.score import Decayed
from hedgerow.verify.match import Match

CONTEXT = 64                              # tokens before the steps that are timed
VARIANTS = "bf16,fp32,bf16@300"
CHOICES = 64                              # ids the oracle errs with
BLOCK = 2                                 # timed steps of a kind in a row


@dataclass(frozen=True)
class Variant:
    """The weights on disk, and the fastest they may be read."""

    name: str
    files: str
    limit_bytes_s: float | None

    @classmethod
    def of(cls, name: str) -> Variant:
        """From `bf16`, `fp32` or either with `@MB/s`.

        >>> Variant.of("fp32@200")
        Variant(name='fp32@200', files='fp32', limit_bytes_s=200000000.0)
        """
        files, _, limit = name.partition("@")
        if files not in ("bf16", "fp32") or (limit and not limit.isdecimal()):
            raise typer.BadParameter(f"variant {name!r} is not known; allowed: bf16, fp32, or either with @MB/s")
        return cls(name, files, 1e6 * int(limit) if limit else None)


class KnownText(OracleDrafter):
    """The oracle of a target whose text is known beforehand; off the text it guesses as often, and in vain.

    Its laws are over `CHOICES` ids and those of the text, not the whole vocabulary, so that drafting costs next to
    nothing: what is measured is the step.
    """

    def __init__(self, prompt: Sequence[int], text: Sequence[int], quality: float) -> None:
        super().__init__(self._row, quality)
        self._whole, self._choices = [*prompt, *text], list(dict.fromkeys([*text, *range(CHOICES)]))
        self._place = {token: i for i, token in enumerate(self._choices)}
        self._others = 1e-6 * np.arange(len(self._choices), 0, -1.0)

    def _row(self, tokens: Sequence[int]) -> np.ndarray:
        at, p = len(tokens), self._others.copy()
        if at < len(self._whole) and list(tokens) == self._whole[:at]:
            p[self._place[self._whole[at]]] = 1.0
        return p / p.sum()

    def children(self, asks: Sequence[Ask]) -> Children:
        """The oracle's answers as token ids."""
        found = super().children(asks)
        return replace(found, token=[self._choices[i] for i in found.token])


def main(
    out: Annotated[Path, typer.Option(help="Where the result goes (JSON).")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    variants: Annotated[str, typer.Option(help="Weights on disk: bf16, fp32, any with @MB/s.")] = VARIANTS,
    window_mb: Annotated[int, typer.Option(help="Weights in memory, at most.")] = 64,
    rows: Annotated[int, typer.Option(help="Rows of the wide step.")] = 512,
    nodes: Annotated[int, typer.Option(help="Nodes of the tree.")] = 255,
    quality: Annotated[float, typer.Option(help="Of the oracle's guesses, this share is right.")] = 0.8,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a text.")] = 49,
    repetitions: Annotated[int, typer.Option(help="Turns of each part.")] = 7,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    pause_after: Annotated[float | None, typer.Option(help="Stop after so many seconds; go on later.")] = None,
) -> None:
    """Measure every variant and write medians and spreads; exit code 3 while something is left to do."""
    from hedgerow.models.weights import cache_dir, resolve

    end = time.perf_counter() + (pause_after or 1e9)
    setup = {
        "model": model, "variants": variants, "window_mb": window_mb, "rows": rows, "nodes": nodes, "quality": quality,
        "max_tokens": max_tokens, "repetitions": repetitions, "threads": threads,
    }
    console = Console(stderr=True)
    journal = Journal(out.with_suffix(".partial.jsonl"), setup)
    source = resolve(model, console.print)
    copy = cache_dir() / "bench" / f"{source.name}-fp32"
    done = True
    for variant in map(Variant.of, variants.split(",")):
        wanted = [(part, n) for n in range(repetitions) for part in ("steps", "text")]
        if all(journal.done(variant=variant.name, part=part, turn=n) for part, n in wanted):
            continue
        folder = source if variant.files == "bf16" else fp32_copy(source, copy)
        texts = [row["ids"] for row in journal.rows if row["part"] == "reference"]
        bench = _Bench(folder, variant, setup, texts[0] if texts else None)
        if not texts:
            journal.add([{"part": "reference", "ids": bench.written}])
        for part, n in wanted:
            if journal.done(variant=variant.name, part=part, turn=n):
                continue
            if time.perf_counter() > end:
                done = False
                break
            row = {"variant": variant.name, "part": part, "turn": n, **getattr(bench, part)(n)}
            journal.add([row])
            console.print(row)
    if done and not journal.done(part="memory"):
        if time.perf_counter() > end:
            done = False
        else:
            journal.add([{"part": "memory", **memory(model, window_mb)}])
    if not done:
        console.print(f"paused after {len(journal.rows)} measurements; the same command goes on from there")
        raise typer.Exit(3)
    shutil.rmtree(copy, ignore_errors=True)
    body = {"summary": summary(journal.rows), "measurements": journal.rows}
    write(out, "stream", setup, body)
    journal.path.unlink()
    print(json.dumps(body["summary"]))


class _Bench:
    """A streamed model and its texts, ready to be timed; with a slower disk they are half as long."""

    def __init__(self, folder: Path, variant: Variant, setup: dict[str, Any], written: list[int] | None) -> None:
        from hedgerow import api
        from hedgerow.control.controller import Fixed
        from hedgerow.recipes import get
        from hedgerow.systems.disk import Reading
        from hedgerow.target.lm import load_target

        self.setup, self.folder = setup, folder
        self.tokens = setup["max_tokens"] if variant.limit_bytes_s is None else setup["max_tokens"] // 2 + 1
        self.target, tokenizer = load_target(
            str(folder), dtype="bf16", device="cpu", threads=setup["threads"], max_slots=2, max_len=2048,
            stream_bytes=setup["window_mb"] * 1_000_000, reading=Reading(True, variant.limit_bytes_s),
        )
        self.streamed = self.target.runner.net.streamed  # type: ignore[attr-defined]
        if self.streamed is None:
            raise typer.BadParameter(f"the model fits in --window-mb {setup['window_mb']}; give a smaller window")
        self.prompt = load("demo", 1)[0].messages
        self.plain = api.assemble(self.target, tokenizer, get("plain"))
        few = setup["max_tokens"] if written is None else 4  # what is known already need not be written again
        first = self.plain.generate(self.prompt, max_tokens=few, ignore_eos=True).token_ids
        self.written: list[int] = written or first
        ids, quality = self.plain.request(self.prompt).prompt, setup["quality"]
        recipe = Recipe(
            name="oracle", version=1, title="SpecExec's tree from an oracle", paper="specexec2024",
            sources=(DraftSource("oracle", "oracle", lambda built: KnownText(ids, self.written, quality)),),
            policy=BestFirst(16, 32, score=Decayed(0.95), rounds=32), rule=Match(), nodes=setup["nodes"],
        )
        self.tree = api.assemble(
            self.target, tokenizer, recipe, controller=Fixed(setup["nodes"], guard=False)
        )

    def steps(self, turn: int) -> dict[str, Any]:
        """Seconds of a plain and of a wide step, and how much of them was waiting for the disk."""
        target, rng = self.target, np.random.default_rng(turn)
        slot = target.acquire()
        ids = rng.integers(0, target.info.vocab, CONTEXT)
        target.collect(target.submit(
            [RowGroup("prefill", slot, ids, np.arange(CONTEXT), np.empty((CONTEXT, 0), np.bool_))], Needs()
        ))
        target.commit(slot, range(CONTEXT))
        out: dict[str, Any] = {}
        kinds = [("plain", 1), ("wide", self.setup["rows"])]
        for kind, rows in kinds if turn % 2 else reversed(kinds):
            tree = TokenTree.of(
                rng.integers(0, target.info.vocab, rows - 1), [int(rng.integers(-1, i)) for i in range(rows - 1)]
            )
            tokens = np.concatenate([ids[-1:], tree.tokens])
            group = RowGroup("tree", slot, tokens, tree.positions(CONTEXT), tree.mask)
            spent, waited = [], []
            for n in range(BLOCK + 1):
                begin, before = time.perf_counter(), self.streamed.ring.tally.waited_s
                found, _ = target.collect(target.submit([group], Needs()))
                found.argmax(0)
                if n:
                    spent.append(time.perf_counter() - begin)
                    waited.append(self.streamed.ring.tally.waited_s - before)
            out |= {f"{kind}_s": median(spent), f"{kind}_waited_s": median(waited)}
        target.release(slot)
        return out | {"ratio": out["wide_s"] / out["plain_s"], **self._disk()}

    def text(self, turn: int) -> dict[str, Any]:
        """A text, plain and with the tree."""
        options = {"max_tokens": self.tokens, "ignore_eos": True}
        pair = [("plain", self.plain), ("tree", self.tree)]
        got = {}
        for kind, session in pair if turn % 2 else reversed(pair):
            got[kind] = session.fresh().generate(self.prompt, **options) if kind == "plain" else (
                session.generate(self.prompt, **options))
        plain, tree = got["plain"], got["tree"]
        per = {k: tree.seconds[k] / tree.steps for k in ("draft", "verify", "overhead")}
        return {
            "speedup": tree.tok_s / plain.tok_s, "plain_tok_s": plain.tok_s, "tree_tok_s": tree.tok_s,
            "steps": tree.steps, "tokens_per_step": tree.tokens_per_step, "drafted_per_step": tree.drafted / tree.steps,
            "plain_step_s": plain.seconds["verify"] / plain.steps,
            **{f"{k}_s": s for k, s in per.items()}, "identical": tree.token_ids == plain.token_ids, **self._disk(),
        }

    def _disk(self) -> dict[str, float]:
        """The disk alone, unlimited: all weight files once, past the page cache."""
        from hedgerow.systems.disk import ALIGN, Disk, Reading, Stretch
        from hedgerow.systems.disk import memory as room
        disk, size, seconds = Disk(Reading(bypass=True)), 0, 0.0
        into = memoryview(room(8 << 20))
        for file in self.folder.glob("*.safetensors"):
            whole = file.stat().st_size
            for begin in range(0, whole, len(into)):
                take = min(len(into), -(-(whole - begin) // ALIGN) * ALIGN)
                start = time.perf_counter()
                disk.read(Stretch(file, begin, take, 0), into, 0)
                seconds += time.perf_counter() - start
            size += whole
        return {"disk_mb_s": size / seconds / 1e6}


def fp32_copy(source: Path, to: Path) -> Path:
    """The model with its weights written as float32: twice the bytes, the same numbers."""
    from safetensors.torch import load_file, save_file

    if not (to / "config.json").is_file():
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("*.safetensors", "config.json"), dirs_exist_ok=True)
        for file in source.glob("*.safetensors"):
            save_file({k: v.float() for k, v in load_file(file).items()}, to / file.name, {"format": "pt"})
        shutil.copy(source / "config.json", to)
        os.sync()
    return to


def memory(model: str, window_mb: int) -> dict[str, int]:
    """Peak resident bytes of a process: libraries alone, a streamed generation, a loaded one."""
    command = [sys.executable, "-m", "hedgerow.cli.main", "generate", "Why?", "-m", model, "-r", "plain", "-n", "8"]
    runs = {
        "libraries": [sys.executable, "-c", "import torch, transformers, hedgerow.target.lm, hedgerow.models.hf"],
        "streamed": [*command, "--stream", str(window_mb)], "loaded": command,
    }
    return {f"{name}_bytes": _peak(argv) for name, argv in runs.items()}


def _peak(argv: Sequence[str]) -> int:
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(argv)} failed with {child.returncode}")
    return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median, lowest and highest of every number, per variant and part."""
    out: dict[str, Any] = {}
    for variant in dict.fromkeys(r["variant"] for r in rows if "variant" in r):
        out[variant] = {}
        for part in ("steps", "text"):
            mine = [r for r in rows if r.get("variant") == variant and r["part"] == part]
            keys = [k for k, v in mine[0].items() if k not in ("variant", "part", "turn")]
            out[variant][part] = {
                k: all(r[k] for r in mine) if isinstance(mine[0][k], bool) else _spread([r[k] for r in mine])
                for k in keys
            }
    return out | {"memory": {k: v for r in rows if r["part"] == "memory" for k, v in r.items() if k != "part"}}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "low": min(values), "high": max(values)}


if __name__ == "__main__":
    typer.run(main)
