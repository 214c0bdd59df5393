"""The three-line way: sessions, results, streams, and what they refuse."""

from __future__ import annotations

import json
import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import hedgerow
from hedgerow import api
from hedgerow.api import Chunk, Result, Session, assemble
from hedgerow.control.controller import Fixed
from hedgerow.core.errors import CapacityError, RecipeError, UnknownName, UsageError
from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.record import StepRecord
from hedgerow.target.table import TableLaw, TableTarget
from hedgerow.verify.match import Match
from tests.unit.engine_kit import Levels, Pieces, Script, Scripted, assert_clean, guess, letters

TEXT = "abcdefghijkl mnopqrsu\n"
LETTERS = letters(TEXT, special=1)
EOS = len(TEXT)
SELDOM = np.array([1.0] * EOS + [0.1])                  # the end of a text is never the most likely token
LAW = TableLaw.of({c: row * SELDOM for c, row in TableLaw.random(EOS + 1, 1, seed=5, temperature=0.4).rows.items()})


def recipe(script: Script | None = None, nodes: int = 9) -> Recipe:
    source = DraftSource("scripted", "retrieval", lambda built: Scripted(script or guess(LAW, (2, 2, 1))))
    return Recipe("scripted", 3, "Scripted", "", (source,), Levels(), Match(), nodes=nodes)


PLAIN = Recipe("none", 1, "Plain", "", (), Levels(), Match(), nodes=0)


def session(
    made: Recipe | None = None, tokenizer: Pieces = LETTERS, law: TableLaw = LAW, nodes: int | None = None,
    **target: Any,
) -> Session:
    made = made or recipe()
    size = made.nodes if nodes is None else nodes
    return assemble(
        TableTarget(law, **{"eos": [EOS], **target}), tokenizer, made, nodes=nodes, controller=Fixed(size, guard=False)
    )


def clean(s: Session) -> bool:
    assert_clean(s._loop(), s._scheduler)
    return True


# ------------------------------------------------------------------------------------------------------------- results

def test_a_result_is_whole() -> None:
    r = session().generate("abc", max_tokens=12, logprobs=True, seed=4, temperature=0.5, top_p=0.9, ignore_eos=True)
    assert isinstance(r, Result) and clean(session())
    assert (r.recipe, r.recipe_version, r.exact, r.reproducible, r.model) == ("scripted", 3, True, True, "table")
    assert (r.prompt_tokens, r.completion_tokens, len(r.token_ids), r.finish_reason) == (3, 12, 12, "length")
    assert r.text == LETTERS.decode(r.token_ids)
    assert r.committed == 11 and r.tokens_per_step == 11 / r.steps
    assert r.acceptance_rate == r.accepted / r.drafted and 0 < r.accepted <= r.drafted <= r.proposed
    assert sum(r.histogram) == r.steps and sum(k * n for k, n in enumerate(r.histogram)) == r.accepted
    assert r.speculation["active"] is True and r.speculation["reason"] is None
    assert sum(r.speculation["share"].values()) == pytest.approx(1.0)
    assert (r.nodes, r.temperature, r.top_p, r.seed) == (9, 0.5, 0.9, 4)
    assert (r.device, r.dtype, r.quant, r.backend) == ("cpu", "float64", "none", "table")
    s = r.seconds
    assert set(s) == {"load", "total", "prefill", "draft", "verify", "overhead"}
    assert s["total"] == pytest.approx(s["prefill"] + s["draft"] + s["verify"] + s["overhead"])
    assert all(v >= 0 for v in s.values())
    assert r.tok_s == pytest.approx(11 / (s["total"] - s["prefill"]))
    assert r.logprobs is not None and len(r.logprobs) == 12 and max(r.logprobs) <= 0
    assert r.versions["hedgerow"] == hedgerow.__version__ and set(r.versions) >= {"python", "torch", "transformers"}


def test_the_json_is_one_line_with_every_key() -> None:
    r = session().generate("abc", max_tokens=5)
    line = r.to_json()
    assert "\n" not in line and json.loads(line) == r.to_dict()
    assert set(r.to_dict()) == {f.name for f in fields(Result)} - {"logprobs"}
    assert [k for k, v in r.to_dict().items() if v is None] == [
        "threads", "profile", "plain", "speedup", "identical", "divergence",
    ]
    odd = replace(r, text="a\u2028b\n\ud7ff🙂")
    assert len(odd.to_json().splitlines()) == 1 and json.loads(odd.to_json())["text"] == odd.text


def test_a_result_of_one_token_divides_by_nothing() -> None:
    r = session().generate("abc", max_tokens=1)
    assert (r.steps, r.committed, r.histogram) == (0, 0, [])
    assert (r.tokens_per_step, r.acceptance_rate, r.tok_s) == (None, None, None)
    assert r.speculation == {
        "active": False, "reason": "nothing was proposed", "share": {"plain": 0.0, "chain": 0.0, "tree": 0.0},
    }


def test_why_nothing_was_drafted_is_told() -> None:
    r = session(PLAIN).generate("abc", max_tokens=5)
    assert r.speculation["active"] is False and "nodes is 0" in r.speculation["reason"]
    assert r.speculation["share"] == {"plain": 1.0, "chain": 0.0, "tree": 0.0}
    assert (r.steps, r.tokens_per_step, r.histogram, r.drafted) == (4, 1.0, [4], 0)
    r = session(recipe(lambda text: {})).generate("abc", max_tokens=5)
    assert r.speculation["reason"] == "nothing was proposed" or "no room" in r.speculation["reason"]
    assert session(nodes=0).generate("abc", max_tokens=5).speculation["active"] is False


def test_a_tree_gives_plain_decodings_text() -> None:
    for options in ({}, {"temperature": 1.0, "seed": 7}, {"temperature": 0.8, "seed": 7, "top_k": 4, "min_p": 0.1}):
        tree, plain = session().generate("abc", **options), session(PLAIN).generate("abc", **options)
        assert (tree.text, tree.token_ids, tree.finish_reason) == (plain.text, plain.token_ids, plain.finish_reason)
        assert tree.steps < plain.steps


# ------------------------------------------------------------------------------------------------------------- prompts

def test_a_list_is_a_batch_in_order() -> None:
    prompts = ["a", "bcd", "ef", "abcdefghijk", "gh", "i", "jk", "l", "mn", "op"]
    s = session(slots=4)
    together = s.generate(prompts, temperature=1.0, seed=3, max_tokens=9)
    assert [r.prompt_tokens for r in together] == [len(p) for p in prompts] and clean(s)
    alone = [session().generate(p, temperature=1.0, seed=3, max_tokens=9) for p in prompts]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    assert len({r.seconds["total"] for r in together}) == 1
    assert s.generate([]) == []
    assert isinstance(s.generate(["a"]), list)


def test_messages_are_a_prompt_and_a_list_of_them_a_batch() -> None:
    s = session()
    talk = [{"role": "system", "content": "abc"}, {"role": "user", "content": "def"}]
    assert s.generate(talk).token_ids == s.generate("abcdef", raw=True).token_ids
    assert [r.prompt_tokens for r in s.generate([talk, talk[:1]])] == [6, 3]


def test_a_text_is_the_users_turn_unless_raw() -> None:
    class Chatty(Pieces):
        def chat(self, messages: Any) -> list[int]:
            return [0, *self.encode("".join(m["role"][:2] + m["content"] for m in messages)), 0]

    s = session(tokenizer=Chatty(LETTERS.pieces))
    assert s.request("bc").prompt == (0, *LETTERS.encode("usbc"), 0)
    assert s.request([{"role": "assistant", "content": "d"}, {"role": "user", "content": "e"}]).prompt == (
        0, *LETTERS.encode("asduse"), 0,
    )
    assert s.request("bc", raw=True).prompt == tuple(LETTERS.encode("bc"))


def test_refusals_in_words() -> None:
    s = session(max_len=8)
    with pytest.raises(UsageError, match="the prompt is empty"):
        s.generate("")
    with pytest.raises(UsageError, match="the prompt is empty"):
        s.generate(["a", ""])
    with pytest.raises(CapacityError, match="the prompt has 11 tokens; the context limit of table is 8"):
        s.generate("abcdefghijk")
    with pytest.raises(UnknownName, match=r"unknown option 'max_token'\. Did you mean 'max_tokens'"):
        s.generate("a", max_token=3)
    for options, words in (
        ({"max_tokens": 0}, "max_tokens is 0"), ({"temperature": -1.0}, "temperature is -1.0; allowed: 0"),
        ({"top_p": 0.0}, "top_p is 0.0"), ({"top_k": -1}, "top_k is -1"), ({"min_p": 2.0}, "min_p is 2.0"),
        ({"stop": ""}, None), ({"stop": [""]}, "none of them empty"),
    ):
        if words:
            with pytest.raises(UsageError, match=words):
                s.generate("a", **options)
        else:
            assert s.generate("a", **options).text             # no stop string at all
    assert clean(s)
    assert s.generate("a", max_tokens=99).completion_tokens <= 7


def test_parts_that_are_missing_or_do_not_fit() -> None:
    target = TableTarget(LAW)
    with pytest.raises(UsageError, match="nodes is -1; allowed: 'auto', 0"):
        assemble(target, LETTERS, recipe(), nodes=-1)
    with pytest.raises(UsageError, match="nodes is 5, but recipe 'none' drafts nothing"):
        assemble(target, LETTERS, PLAIN, nodes=5)
    brought = replace(recipe(), sources=(DraftSource("lm", "autoregressive", None, "a small language model"),))
    with pytest.raises(UsageError, match="recipe 'scripted' needs a small language model; give one with --drafter"):
        assemble(target, LETTERS, brought)

    class Drawn:
        name, lossless, needs_q, accepts = "drawn", True, True, frozenset()  # type: ignore[var-annotated]

    with pytest.raises(RecipeError, match="rule 'drawn' judges children of selection"):
        replace(recipe(), rule=Drawn())  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------- stops

def naive(plain: Result, stops: list[str]) -> tuple[list[int], str]:
    """Ids and text of a run without stop strings, cut by hand."""
    for n in range(1, len(plain.token_ids) + 1):
        text = LETTERS.decode(plain.token_ids[:n])
        found = [text.find(s) for s in stops if s in text]
        if found:
            return plain.token_ids[:n], text[: min(found)]
    return plain.token_ids, plain.text


def test_stop_strings_cut_ids_text_and_logprobs_together() -> None:
    rng = random.Random(0)
    hits = 0
    for seed in range(30):
        options: dict[str, Any] = {"temperature": 1.0, "seed": seed, "max_tokens": 25, "ignore_eos": True}
        free = session(PLAIN).generate("abc", **options)
        at = rng.randrange(20)
        stops = [free.text[at : at + rng.randrange(1, 4)], "zz"]
        r = session().generate("abc", stop=stops, logprobs=True, **options)
        assert (r.token_ids, r.text) == naive(free, stops)
        assert r.completion_tokens == len(r.token_ids) == len(r.logprobs)  # type: ignore[arg-type]
        assert r.finish_reason == ("stop" if len(r.token_ids) < 25 or stops[0] not in r.text else "length")
        assert not any(s in r.text for s in stops)
        hits += r.finish_reason == "stop"
    assert hits >= 25


def test_stop_takes_one_string_too_and_stop_ids() -> None:
    s = session()
    free = s.generate("abc", max_tokens=20, ignore_eos=True)
    mark = free.text[5:7]
    assert s.generate("abc", max_tokens=20, stop=mark).text == free.text[: free.text.index(mark)]
    third = free.token_ids[2]
    cut = s.generate("abc", max_tokens=20, ignore_eos=True, stop_ids=[third])
    assert cut.token_ids == free.token_ids[: free.token_ids.index(third) + 1] and cut.finish_reason == "stop"


# ------------------------------------------------------------------------------------------------------------- streams

EMOJI = Pieces((
    b"a", b"b ", "é".encode(), b"\xf0\x9f", b"\x99\x82", b"\xe2", b"\x82\xac", b"\n", b"", b"x\xc3", b"\xa9",
))
BYTES_LAW = TableLaw.of({
    (): [1] * 11, (3,): [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], (5,): [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
    (9,): [0] * 10 + [1], (0,): [1, 1, 1, 3, 0, 3, 0, 1, 0, 3, 0], (1,): [1, 1, 1, 3, 0, 3, 0, 1, 1, 3, 0],
})


def chunks(s: Session, **options: Any) -> list[Chunk]:
    return list(s.stream("a", raw=True, **options))


@pytest.mark.parametrize("stop", [(), ("\n",), ("é", "b a"), ("🙂a",)])
def test_a_stream_is_the_text_in_pieces(stop: tuple[str, ...]) -> None:
    lengths = set()
    for seed in range(40):
        s = session(recipe(guess(BYTES_LAW, (3, 2, 1))), EMOJI, BYTES_LAW, eos=[8])
        options: dict[str, Any] = {"temperature": 1.0, "seed": seed, "max_tokens": 24, "stop": stop, "logprobs": True}
        got, whole = chunks(s, **options), s.generate("a", raw=True, **options)
        assert "".join(c.text for c in got) == whole.text
        assert [i for c in got for i in c.token_ids] == whole.token_ids
        assert [c.result is not None for c in got] == [False] * (len(got) - 1) + [True]
        last = got[-1].result
        assert last is not None and last == replace(whole, seconds=last.seconds, tok_s=last.tok_s)
        assert len(last.logprobs or ()) == len(last.token_ids)
        for c in got[:-1]:
            assert not c.text.endswith("\ufffd")
        lengths.add(len(got))
        assert clean(s)
    assert len(lengths) > 3


def test_a_stream_can_be_left() -> None:
    s = session()
    for chunk in s.stream("abc", max_tokens=50, ignore_eos=True):
        assert chunk.result is None
        break
    assert clean(s)
    assert s.generate("abc").text


def test_two_streams_of_one_session_side_by_side() -> None:
    s = session()
    a, b = (s.stream("abc", max_tokens=20, seed=i, temperature=1.0, ignore_eos=True) for i in range(2))
    texts = ["", ""]
    for x, y in zip(a, b, strict=False):
        texts[0] += x.text
        texts[1] += y.text
    for i, rest in enumerate((a, b)):
        texts[i] += "".join(c.text for c in rest)
    alone = [s.generate("abc", max_tokens=20, seed=i, temperature=1.0, ignore_eos=True).text for i in range(2)]
    assert alone[0].startswith(texts[0]) and alone[1].startswith(texts[1]) and min(map(len, texts)) > 5


# --------------------------------------------------------------------------------------------------- life of a session

def test_cancel_keeps_what_there_is() -> None:
    s = session(slots=2)
    records: list[StepRecord] = []

    def trace(record: StepRecord) -> None:
        records.append(record)
        if len(records) == 5:
            s.cancel()

    s.trace = trace
    done = s.generate(["abc", "def", "ghi"], max_tokens=200, ignore_eos=True, logprobs=True)
    assert [r.finish_reason for r in done] == ["interrupted"] * 3
    assert [r.completion_tokens > 0 for r in done] == [True, True, False]
    assert all(len(r.token_ids) == len(r.logprobs or ()) == r.completion_tokens for r in done)
    assert done[2].text == "" and done[2].tokens_per_step is None
    assert clean(s)
    s.trace = None
    assert s.generate("abc", max_tokens=5).finish_reason != "interrupted"
    s.cancel()                                          # nothing runs: nothing to end
    assert s.generate("abc", max_tokens=5).finish_reason != "interrupted"


def test_request_numbers_are_never_used_twice() -> None:
    s = session()
    numbers: list[int] = []
    s.trace = lambda record: numbers.append(record.request)
    s.generate(["a", "b"], max_tokens=9, ignore_eos=True)
    list(s.stream("c", max_tokens=9, ignore_eos=True))
    s.generate("d", max_tokens=9, ignore_eos=True)
    assert sorted(set(numbers)) == [0, 1, 2, 3]


def test_drafters_live_as_long_as_the_session() -> None:
    s = session()
    made = s.drafters[0]
    s.generate("a")
    s.generate("b")
    assert s.drafters[0] is made and len(made.steps) > 1  # type: ignore[attr-defined]
    other = s.fresh()
    assert other.drafters[0] is not made and other.target is s.target and other.nodes == s.nodes


def test_another_recipe_on_the_same_model() -> None:
    s = replace(session(nodes=5), threads=3, seconds_load=1.5)
    plain = s.with_recipe("plain")
    assert (plain.recipe.name, plain.nodes, plain.threads, plain.seconds_load) == ("plain", 0, 3, 1.5)
    assert plain.target is s.target
    assert plain.generate("abc").token_ids == s.generate("abc").token_ids
    with pytest.raises(UnknownName, match=r"unknown recipe 'plian'\. Did you mean 'plain'"):
        s.with_recipe("plian")


def test_the_guard_is_on_and_priced_by_default() -> None:
    s = assemble(TableTarget(LAW), LETTERS, recipe())
    control = s.controller
    assert isinstance(control, Fixed) and control.guard and control.nodes == 9
    assert control.price() >= 1.0


# ---------------------------------------------------------------------------------------------------------------- load

@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """`load` finds a table instead of a model; what it was asked for is kept."""
    from hedgerow.target import lm

    calls: list[tuple[str, dict[str, Any]]] = []

    def load_target(model: str, **options: Any) -> tuple[TableTarget, Pieces]:
        calls.append((model, options))
        return TableTarget(LAW, eos=[EOS]), LETTERS

    monkeypatch.setattr(lm, "load_target", load_target, raising=False)
    return calls


def test_load_passes_its_options_on(loader: list[tuple[str, dict[str, Any]]]) -> None:
    s = hedgerow.load("some/model", recipe="plain", dtype="bf16", device="cpu", threads=2, max_batch=3)
    model, options = loader[0]
    assert model == "some/model"
    assert (options["dtype"], options["device"], options["threads"], options["max_slots"]) == ("bf16", "cpu", 2, 3)
    assert (s.threads, s.max_batch, s.nodes) == (2, 3, 0) and s.seconds_load > 0
    assert s.generate("abc", max_tokens=4).completion_tokens <= 4


def test_load_refuses_before_it_loads(loader: list[tuple[str, dict[str, Any]]]) -> None:
    with pytest.raises(UnknownName, match="unknown recipe 'nope'"):
        hedgerow.load("demo", recipe="nope")
    for nodes in ("many", "-3", -3, "1.5"):
        with pytest.raises(UsageError, match=f"nodes is '?{nodes}'?; allowed: 'auto', 0"):
            hedgerow.load("demo", recipe="plain", nodes=nodes)
    assert not loader


def test_generate_in_one_call(loader: list[tuple[str, dict[str, Any]]]) -> None:
    r = hedgerow.generate("abc", "some/model", recipe="plain", max_tokens=3, ignore_eos=True)
    assert r.completion_tokens == 3 and r.recipe == "plain" and loader[0][0] == "some/model"
    assert np.isfinite(r.seconds["load"])


def test_versions_are_strings() -> None:
    assert all(isinstance(v, str) and v for v in api.versions().values())
