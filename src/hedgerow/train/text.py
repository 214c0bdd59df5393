"""Text the target wrote: prompts (its own or the user's), then answers, kept as token ids and resumable.

Both files are JSON lines, written as requests end: `prompts.jsonl` {number, text (none where it was not kept)},
`text.jsonl` {prompt (its index among those kept), pass, ids, answer (index of the first token of the answer),
temperature}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hedgerow.api import Session
from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Sampling
from hedgerow.engine.request import Request
from hedgerow.train import prompts
from hedgerow.train.features import Recorder, Seen, Shards

TEMPERATURES = (                           # of the answers to a prompt, pass by pass; half of a pass is greedy, then
    (0.0, 0.8, 1.0, 0.9), (0.8, 0.0, 0.9, 1.0), (0.0, 1.0, 0.8, 0.9), (1.0, 0.0, 0.9, 0.8),
)
PASSES = len(TEMPERATURES[0])              # over the prompts, at most: no prompt is answered greedily twice
ANSWER = 320                               # most tokens of an answer
ROOM = 8                                   # tokens of an answer that must fit behind a prompt
TRIES = 400                                # prompts in a row that were not kept, after which no more are asked for
LEAST = 16                                 # prompts that are worth going on with

Progress = Callable[[str, int, int], None]  # what, how many, of how many


def rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file; a last line cut by an interruption is left out, and cut off the file."""
    if not path.exists():
        return []
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        path.write_bytes(whole)
    return [json.loads(line) for line in whole.splitlines() if line.strip()]


def kept(path: Path) -> list[str]:
    """The prompts of `prompts.jsonl` that were kept, in the order in which they were written."""
    return [row["text"] for row in rows(path) if row.get("text")]


def answered(path: Path) -> int:
    """How many tokens of answers `text.jsonl` holds."""
    return sum(len(row["ids"]) - row["answer"] for row in rows(path))


def write_prompts(session: Session, path: Path, count: int, seed: int, banned: Iterable[str], told: Progress) -> None:
    """Let the target write prompts until `path` holds `count`; those that share 8 words with `banned` are dropped.

    A number that was dropped is remembered too, so that a second sitting asks for exactly those that are missing.
    Mutates: `path`, by a line a number.

    Raises: UsageError when a model hardly writes anything that can be kept.
    """
    have = rows(path)
    banned = list(banned)
    grams = {g for text in banned for g in prompts.runs(text)}
    keep = prompts.Filter.of([*banned, *(row["text"] for row in have if row.get("text"))])
    turn = prompts.Turn.of(session.tokenizer)
    done, tried = sum(bool(row.get("text")) for row in have), 0
    told("prompts", done, count)
    if done >= count:
        return
    with path.open("a", encoding="utf-8") as log:
        for ended in session.run(prompts.asks(turn, session.tokenizer, seed, {row["number"] for row in have})):
            opener = prompts.OPENERS[ended.request.choice % len(prompts.OPENERS)]
            text = (opener + ended.finish.text).strip()
            sound = ended.finish.reason == "stop" and not prompts.overlap(text, grams) and keep(text)
            log.write(json.dumps({"number": ended.request.choice, **({"text": text} if sound else {})}) + "\n")
            log.flush()
            done, tried = done + sound, 0 if sound else tried + 1
            told("prompts", done, count)
            if done >= count or (tried >= TRIES and done >= LEAST):
                return
            if tried >= TRIES:
                raise UsageError(
                    f"of the last {TRIES} texts the model wrote in its user's turn none can serve as a prompt, "
                    f"and there are {done}; give a file of prompts with --prompts"
                )


def write_answers(
    session: Session, recorder: Recorder, asked: Sequence[str], path: Path, shards: Shards, tokens: int, seed: int,
    told: Progress,
) -> None:
    """Let the target answer until `path` holds `tokens` tokens of answers, going over the prompts up to four times.

    `recorder` is the session's only drafter. What the target saw goes to `shards` in the same order; a line is written
    when its shard is closed, and stands in the shard as well, so that neither is ever without the other. Prompts that
    leave no room for an answer are passed over. Mutates: `path`, `shards`.
    """
    known = restored(path, shards)
    done = answered(path)
    told("answer tokens", min(done, tokens), tokens)
    if done >= tokens:
        return
    limit = session.target.info.max_len - ROOM

    def requests() -> Iterator[Request]:
        for turn in range(PASSES):
            for number, text in enumerate(asked):
                if (number, turn) in known:
                    continue
                ids = session.tokenizer.chat([{"role": "user", "content": text}])
                law = Sampling(temperature=TEMPERATURES[number % len(TEMPERATURES)][turn])
                if len(ids) < limit:
                    yield Request(
                        tuple(ids), max_tokens=ANSWER, sampling=law, seed=seed, choice=number * PASSES + turn
                    )

    with path.open("a", encoding="utf-8") as log:

        def close(lines: list[str]) -> None:
            log.write("".join(line + "\n" for line in lines))
            log.flush()
            lines.clear()

        lines: list[str] = []
        for ended in session.run(requests()):
            number, turn = divmod(ended.request.choice, PASSES)
            ids, answer = (*ended.request.prompt, *ended.finish.ids), len(ended.request.prompt)
            lines.append(json.dumps({
                "prompt": number, "pass": turn, "ids": ids, "answer": answer,
                "temperature": ended.request.sampling.temperature,
            }))
            if shards.add(Seen(ids, answer, *recorder.take(ended.slot), about=lines[-1])):
                close(lines)
            done += len(ended.finish.ids)
            told("answer tokens", min(done, tokens), tokens)
            if done >= tokens:
                break
        shards.flush()
        close(lines)


def restored(path: Path, shards: Shards) -> set[tuple[int, int]]:
    """Which prompts were answered in which pass; lines that a closed shard holds and the file lacks are added to it.

    Mutates: `path`, where a process ended between the two.
    """
    known = {(row["prompt"], row["pass"]) for row in rows(path)}
    with path.open("a", encoding="utf-8") as log:
        for line in filter(None, shards.about()):
            row = json.loads(line)
            if (row["prompt"], row["pass"]) not in known:
                known.add((row["prompt"], row["pass"]))
                log.write(line + "\n")
    return known
