"""Text of a training run: whatever is interrupted goes on, and no prompt or answer is lost or written twice."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core.errors import UsageError
from hedgerow.train import prompts, text
from hedgerow.train.features import Seen, Shard, Shards
from hedgerow.train.job import Job, Told
from hedgerow.train.writing import Spent
from hedgerow.train.writing import given as given_prompts

LINES = st.lists(
    st.fixed_dictionaries({"number": st.integers(0, 99)}, optional={"text": st.text(max_size=8)}), max_size=6
)


@given(LINES, st.integers(0, 400))
@settings(deadline=None, max_examples=60)
def test_a_file_cut_anywhere_keeps_its_whole_lines(lines: list[dict[str, Any]], cut: int) -> None:
    raw = "".join(json.dumps(line, ensure_ascii=cut % 2 == 0) + "\n" for line in lines).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.jsonl"
        assert text.rows(path) == []
        path.write_bytes(raw[:cut])
        whole = raw[:cut].count(b"\n")
        assert text.rows(path) == lines[:whole]
        assert path.read_bytes() == b"".join(raw.splitlines(keepends=True)[:whole]), "the rest is cut off the file"
        with path.open("a", encoding="utf-8") as log:
            log.write(json.dumps({"number": 7}) + "\n")
        assert text.rows(path) == [*lines[:whole], {"number": 7}]


class Tokenizer:
    """Words are their lengths; the user's turn ends with 2."""

    def encode(self, text: str) -> list[int]:
        return [3 + len(word) for word in text.split()]

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [0, 1, *self.encode(messages[0]["content"]), 2, 0]


class Stub:
    """A session of which `left` requests end before Ctrl-C; what a request says depends on the request alone."""

    def __init__(self, left: int, seed: int, batch: int = 3, max_len: int = 400) -> None:
        self.left, self.batch = left, batch
        self.order = np.random.default_rng(seed)
        self.tokenizer = Tokenizer()
        self.target = SimpleNamespace(info=SimpleNamespace(max_len=max_len))
        self.asked: list[Any] = []

    def run(self, requests: Iterable[Any]) -> Iterator[Any]:
        source = iter(requests)
        running: list[Any] = []
        while True:
            fresh = list(islice(source, self.batch - len(running)))
            self.asked += fresh
            running += fresh
            if not running or not self.left:
                return
            self.left -= 1
            yield self.ended(running.pop(int(self.order.integers(len(running)))))

    def ended(self, request: Any) -> Any:
        rng = np.random.default_rng((request.choice, len(request.prompt)))
        ids = tuple(rng.integers(3, 50, 4 + request.choice % 9).tolist())
        said = " ".join(f"word{i}" for i in ids)
        reason = "stop" if request.choice % 4 else "length"
        return SimpleNamespace(request=request, slot=0, finish=SimpleNamespace(ids=ids, text=said, reason=reason))


def quiet(what: str, done: int, total: int) -> None:
    """Nobody listens."""


SITTINGS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=5)


@given(SITTINGS)
@settings(deadline=None, max_examples=25)
def test_prompts_of_many_sittings_are_those_of_one(sittings: list[tuple[int, int]]) -> None:
    """Numbers end in any order and sittings end anywhere, so which prompts are last may differ, never what they say."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        for left, seed in [*sittings, (10**6, 0)]:
            session: Any = Stub(left, seed)
            text.write_prompts(session, path, 20, 0, ["word9 word9"], quiet)
        numbers = Counter(row["number"] for row in text.rows(path))
        assert max(numbers.values()) == 1, "no number is asked for twice"
        assert len(text.kept(path)) == 20 == len(set(text.kept(path)))
        assert len(set(range(max(numbers))) - set(numbers)) < 3, "those that are missing were running at the end"
        everyone = Path(folder) / "all.jsonl"
        session = Stub(10**6, 1)
        text.write_prompts(session, everyone, 40, 0, ["word9 word9"], quiet)
        said = {row["number"]: row.get("text") for row in text.rows(everyone)}
        assert all(row.get("text") == said.get(row["number"], row.get("text")) for row in text.rows(path))


class Taken:
    """A recorder whose features say which text they are of."""

    def take(self, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.rows - 1
        return torch.zeros(0, rows, 4), torch.zeros(rows, 4)

    rows = 0


@given(SITTINGS, st.integers(0, 3))
@settings(deadline=None, max_examples=20)
def test_answers_of_many_sittings_are_those_of_one(sittings: list[tuple[int, int]], killed: int) -> None:
    """Some sittings end by Ctrl-C, and some by a power cut between a shard and its lines."""
    asked = ["Why is it so?", "Name three birds of a hedge.", "x", "Add one and two and three", "Where?"]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("hedgerow.train.features.SHARD", 25)
        path = Path(folder) / "text.jsonl"
        for i, (left, seed) in enumerate([*sittings, (10**6, 0)]):
            shards = Shards(Path(folder) / "features", ())
            session: Any = Stub(left, seed)
            recorder: Any = Taken()
            ended = session.ended

            def note(request: Any, ended: Any = ended, recorder: Any = recorder) -> Any:
                out = ended(request)
                recorder.rows = len(request.prompt) + len(out.finish.ids)
                return out

            session.ended = note
            text.write_answers(session, recorder, asked, path, shards, 10**6, 0, quiet)
            if i < len(sittings) and path.exists() and killed:
                whole = path.read_bytes().splitlines(keepends=True)
                path.write_bytes(b"".join(whole[:-killed]) + (whole[-1][:9] if whole else b""))
        written = text.rows(path)
        assert Counter((r["prompt"], r["pass"]) for r in written) == Counter(
            (i, k) for i in range(len(asked)) for k in range(text.PASSES)
        )
        in_shards = [json.loads(line) for line in shards.about()]
        key = lambda r: (r["prompt"], r["pass"])  # noqa: E731 - what is compared
        assert sorted(in_shards, key=key) == sorted(written, key=key)
        for file in shards.files:
            shard = Shard.open(file)
            assert len(shard.next) == len(shard.spans())
        assert sum(len(Shard.open(f).next) for f in shards.files) == len(written)


def test_no_prompt_is_answered_greedily_twice_and_half_of_a_pass_is() -> None:
    for row in text.TEMPERATURES:
        assert sorted(row) == [0.0, 0.8, 0.9, 1.0]
    assert [row[0] for row in text.TEMPERATURES].count(0.0) == 2


def test_a_prompt_without_room_for_an_answer_is_passed_over(tmp_path: Path) -> None:
    session: Any = Stub(10**6, 0, max_len=20)
    recorder: Any = Taken()
    recorder.rows = 11
    session.ended = lambda request: SimpleNamespace(
        request=request, slot=0, finish=SimpleNamespace(ids=(5,) * (11 - len(request.prompt)))
    )
    text.write_answers(
        session, recorder, ["word " * 9, "short one"], tmp_path / "t", Shards(tmp_path, ()), 10**6, 0, quiet
    )
    assert {r["prompt"] for r in text.rows(tmp_path / "t")} == {1}


def test_a_model_that_writes_no_prompts_is_told_so(tmp_path: Path) -> None:
    session: Any = Stub(10**6, 0)
    ended = session.ended
    session.ended = lambda request: SimpleNamespace(**{**vars(ended(request)), "finish": SimpleNamespace(
        ids=(3,), text="again " * 20, reason="stop")})
    with pytest.raises(UsageError, match="none can serve as a prompt, and there are 0; give a file"):
        text.write_prompts(session, tmp_path / "p", 20, 0, [], quiet)


def test_written_prompts_never_share_eight_words_with_evaluation(tmp_path: Path) -> None:
    session: Any = Stub(10**6, 0)
    every = session.ended(SimpleNamespace(choice=7, prompt=session_prompt(session, 7))).finish.text
    text.write_prompts(session, tmp_path / "p", 8, 0, [f"before {every} behind"], quiet)
    assert len(every.split()) >= 8
    assert every not in " ".join(text.kept(tmp_path / "p"))


def session_prompt(session: Any, number: int) -> Any:
    """The request's prompt of a number."""
    turn = prompts.Turn.of(session.tokenizer)
    return next(islice(prompts.asks(turn, session.tokenizer, 0, set(range(number))), 1)).prompt


def test_a_file_of_prompts_like_those_of_the_evaluation_is_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text('one two three four five six seven eight nine\n{"question": "What else?"}\n{"turns": ["A", "B"]}\n')
    said: list[str] = []
    job = Job("demo", tmp_path, prompts=file, banned=("ONE two three four five six seven eight",))
    asked, alike = given_prompts(job, Told(line=said.append))
    assert asked == ["one two three four five six seven eight nine", "What else?", "A"] and alike == 1
    assert "1 of your 3 prompts" in said[0]


def test_time_is_added_up_over_sittings(tmp_path: Path) -> None:
    for _ in range(2):
        spent = Spent(tmp_path / "spent.json")
        with pytest.raises(KeyboardInterrupt), spent.on("prompts"):
            raise KeyboardInterrupt
    again = Spent(tmp_path / "spent.json")
    assert again.total > spent.seconds["prompts"] / 2 > 0 and set(again.seconds) == {"prompts"}


def test_shards_serve_methods_that_read_less(tmp_path: Path) -> None:
    shards = Shards(tmp_path, (2, 5, 9))
    shards.add(Seen((5, 6, 7), 2, torch.arange(6.0).view(3, 2, 1).expand(3, 2, 4), torch.zeros(2, 4), about="{}"))
    shards.flush()
    less = Shards(tmp_path, (9, 2))
    assert less.taps == (2, 5, 9) and less.columns((9, 2)) == [2, 0] and less.columns((2, 5, 9)) is None
    assert less.about() == ["{}"]
    with pytest.raises(UsageError, match=r"taps \[2, 5, 9\], not \[3\]"):
        Shards(tmp_path, (3,))
