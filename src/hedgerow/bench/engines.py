"""Plain decoding of batches against another engine that runs in an environment of its own, interleaved.

Both get the same token ids and make the same number of tokens, greedily, without stops. A run of one token, prefill and
nothing else, is taken off, so that the figure is the speed of decoding.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

from hedgerow.api import Session
from hedgerow.bench.workloads import Prompt, load
from hedgerow.core.errors import HedgerowError

_USUAL = 100                              # tokens of a prompt, about


@dataclass(frozen=True)
class Peer:
    """Another engine: its script in `bench.foreign`, and what its process finds in its environment for N threads."""

    script: str
    settings: dict[str, str]

    def command(self, python: Path, model: Path, job: Path, threads: int) -> list[str]:
        """How its process is started; `{cores}` and `{threads}` in the settings are filled in."""
        filled = [f"{k}={v.format(cores=f'0-{threads - 1}', threads=threads)}" for k, v in self.settings.items()]
        script = str(files("hedgerow.bench") / "foreign" / self.script)
        return ["env", *filled, str(python), script, str(model), str(job)]


PEERS = {
    "vllm": Peer("vllm_plain.py", {
        "VLLM_CPU_OMP_THREADS_BIND": "{cores}", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
    }),
    "openvino-genai": Peer("openvino_genai_plain.py", {}),
}


class Worker:
    """The other engine's process, loaded and waiting.

    Raises: HedgerowError, with the last line it printed, when it ends before it answers.
    """

    def __init__(self, peer: Peer, python: Path, model: Path, job: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        (folder / "job.json").write_text(json.dumps(job))
        self._log = folder / "log"
        command = peer.command(python, model, folder / "job.json", job["threads"])
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.version = str(self._answer()["version"])

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()       # an end of input ends it
        self._folder.cleanup()

    def run(self, requests: int) -> dict[str, Any]:
        """`total_s` for all tokens, `first_s` for one token, `token_ids` of each request."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{requests}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text().strip().splitlines()
            raise HedgerowError(f"the other engine ended before it answered: {said[-1] if said else 'no message'}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def pick(session: Session, count: int) -> list[tuple[Prompt, list[int]]]:
    """The `count` prompts of mt_bench whose length is nearest to a hundred tokens, with their ids."""
    every = [(p, list(session.request(p.messages).prompt)) for p in load("mt_bench")]
    return sorted(every, key=lambda found: abs(len(found[1]) - _USUAL))[:count]


def ours(session: Session, prompts: Sequence[Prompt], new: int) -> dict[str, Any]:
    """What `Worker.run` answers, by our engine."""

    def once(tokens: int) -> tuple[float, list[list[int]]]:
        asked: list[Sequence[dict[str, str]]] = [p.messages for p in prompts]
        start = time.perf_counter()
        done = session.generate(asked, max_tokens=tokens, ignore_eos=True)
        return time.perf_counter() - start, [r.token_ids for r in done]

    total_s, ids = once(new)
    first_s, _ = once(1)
    return {"total_s": total_s, "first_s": first_s, "token_ids": ids}


def against(
    session: Session, peer: Peer, python: Path, model: Path, batches: Sequence[int], new: int, repetitions: int,
    threads: int,
) -> tuple[str, list[dict[str, Any]]]:
    """The other engine's version; a row a batch size: tokens per second of both, and the ratios of pairs."""
    found = pick(session, max(batches))
    prompts = [p for p, _ in found]
    job = {
        "prompts": [ids for _, ids in found], "new": new, "batches": list(batches), "threads": threads,
        "dtype": {"bf16": "bfloat16", "fp32": "float32"}[session.target.info.dtype],
    }
    rows = []
    with Worker(peer, python, model, job) as worker:
        for batch in batches:
            runs = [partial(ours, session, prompts[:batch], new), partial(worker.run, batch)]
            spent: list[list[dict[str, Any]]] = [[], []]
            for turn in range(repetitions + 1):
                for which in (0, 1) if turn % 2 else (1, 0):
                    answer = runs[which]()
                    if turn:              # the first pair warms up
                        spent[which].append(answer)
            rows.append({"batch": batch, **_row(batch, new, *spent)})
        return worker.version, rows


def _row(batch: int, new: int, mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    tokens = batch * (new - 1)
    rates = [[tokens / (r["total_s"] - r["first_s"]) for r in side] for side in (mine, theirs)]
    ratios = [a / b for a, b in zip(*rates, strict=True)]
    pairs = list(zip(mine[0]["token_ids"], theirs[0]["token_ids"], strict=True))
    return {
        "ratio": median(ratios), "ratios": ratios, "ours_tok_s": median(rates[0]), "theirs_tok_s": median(rates[1]),
        "ours_each": rates[0], "theirs_each": rates[1],
        "ours_prefill_s": median(r["first_s"] for r in mine), "theirs_prefill_s": median(r["first_s"] for r in theirs),
        "same_tokens": sum(_common(a, b) for a, b in pairs) / (batch * new),
    }


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens until two texts part.

    >>> _common([1, 2, 3], [1, 2, 4])
    2
    """
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
