"""Prompt families: whole, in order, and refused by name."""

from __future__ import annotations

import pytest

from hedgerow.bench.workloads import FAMILIES, load
from hedgerow.core.errors import UnknownName, UsageError

SIZES = {"mt_bench": 80, "gsm8k": 100, "humaneval": 164, "repeat": 5, "demo": 3}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_whole(family: str) -> None:
    prompts = load(family)
    assert len(prompts) == SIZES[family]
    assert len({p.id for p in prompts}) == len(prompts)
    assert all(p.family == family and p.text.strip() and p.turns[0] == p.text for p in prompts)
    assert prompts[0].messages == [{"role": "user", "content": prompts[0].text}]


def test_mt_bench_has_two_turns_and_stays_in_order() -> None:
    prompts = load("mt_bench")
    assert all(len(p.turns) == 2 for p in prompts)
    assert [p.id.split("/")[1] for p in prompts] == [str(n) for n in range(81, 161)]


def test_humaneval_prompts_are_unaltered_code() -> None:
    first = load("humaneval", 1)[0]
    assert first.id == "HumanEval/0"
    assert first.text.startswith("from typing import List\n\n\ndef has_close_elements(")


def test_prompts_that_repeat_carry_the_text_to_repeat() -> None:
    assert all(len(p.text) > 400 and "\n\n" in p.text for p in load("repeat"))


def test_a_limit_takes_the_first() -> None:
    assert load("gsm8k", 3) == load("gsm8k")[:3]
    assert load("gsm8k", 0) == []


def test_wrong_calls_say_what_is_allowed() -> None:
    with pytest.raises(UnknownName, match=r"unknown prompt family 'mtbench'\. Did you mean 'mt_bench'\?"):
        load("mtbench")
    with pytest.raises(UsageError, match="limit is -1; allowed: 0 or more"):
        load("demo", -1)
