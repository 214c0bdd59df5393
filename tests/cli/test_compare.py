"""The comparison with plain decoding and the drawing of a step, on targets whose laws are known."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from hedgerow import api
from hedgerow.bench.compare import Watcher, compare, divergence, ulp, watch
from hedgerow.bench.drawing import ASCII, BOXES, draw_tree, print_tree, sameness, tree_title
from hedgerow.core.parts import Feats, Sampling, Step, Verdict
from hedgerow.core.rng import Rng
from hedgerow.core.tree import TokenTree
from hedgerow.engine.request import Request
from hedgerow.recipes import get
from hedgerow.target.table import TableLaw, TableTarget


class Letters:
    """One token a letter."""

    eos: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return ["abc".index(c) for c in text]

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.encode("".join(m["content"] for m in messages))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("abc"[i] for i in ids)


def table(weights: Sequence[float], dtype: str = "float64") -> TableTarget:
    target = TableTarget(TableLaw.of({(): weights}))
    target.info = replace(target.info, dtype=dtype)
    return target


def step(tokens: list[int], parent: list[int], path: tuple[int, ...], **more: Any) -> Step:
    tree = TokenTree.of(tokens=tokens, parent=parent, **more)
    return Step(tree, Verdict(path, 2, "bonus"), Feats(), root=0, position=5, seconds=0.1)


# ---------------------------------------------------------------------------------------------- divergence

def test_divergence_is_measured_at_the_first_difference() -> None:
    target = table([0.5, 0.3, 0.2])
    found = divergence(target, Request((0, 1)), [0, 1, 1], [0, 0, 0])
    assert found == {"position": 1, "gap": pytest.approx(math.log(0.5 / 0.3)), "near_tie": False}
    assert target.capacity().slots == 64  # its slot is given back


def test_no_divergence_where_one_text_continues_the_other() -> None:
    assert divergence(table([1, 1, 1]), Request((0,)), [0, 1], [0, 1, 2]) is None


@pytest.mark.parametrize(
    ("dtype", "ratio", "near"),
    [("bf16", 1.007, True), ("bf16", 1.009, False), ("bfloat16", 1.007, True), ("float64", 1.007, False),
     ("fp32", 1 + 1e-7, True), ("fp32", 1 + 1e-6, False)],
)
def test_near_tie_is_two_units_in_the_last_place(dtype: str, ratio: float, near: bool) -> None:
    # the top logit is log(1/2) = -0.69: a unit in the last place of bf16 is 2^-8, so two are 0.0078; of fp32, 1.2e-7
    target = table([ratio, 1.0, 1e-9], dtype)
    found = divergence(target, Request((0,)), [1], [0])
    gap = math.log(ratio)
    assert found is not None and found["gap"] == pytest.approx(gap, rel=1e-3)
    assert found["near_tie"] is near is (gap <= 2 * ulp(-0.69, dtype))


def test_ulp_is_numpys() -> None:
    for value in (18.3, -0.7, 16.0, 31.99, 0.001):
        assert ulp(value, "fp16") == np.spacing(np.float16(abs(value)))
        assert ulp(value, "fp32") == np.spacing(np.float32(abs(value)))
        assert ulp(value, "float64") == np.spacing(abs(value))
    assert 2 * ulp(16.0, "bf16") == 0.25


def test_with_sampling_the_gap_is_that_of_the_race() -> None:
    """A change of the winner's logit by a little less than the gap keeps the draw, by a little more changes it."""
    weights = np.array([0.5, 0.3, 0.2])
    request = Request((0, 1), sampling=Sampling(temperature=0.7), seed=5)
    position = len(request.prompt)
    law = weights ** (1 / 0.7) / (weights ** (1 / 0.7)).sum()
    drawn = Rng(5).categorical(law, position)
    found = divergence(table(weights), request, [(drawn + 1) % 3], [drawn])
    assert found is not None and isinstance(found["gap"], float) and found["gap"] > 0
    for factor, same in ((0.999, True), (1.001, False)):
        changed = np.log(weights)
        changed[drawn] -= factor * found["gap"]
        other = np.exp(changed / 0.7)
        assert (Rng(5).categorical(other / other.sum(), position) == drawn) is same


def test_where_one_token_is_possible_there_is_no_gap() -> None:
    found = divergence(table([1, 0, 0]), Request((0,)), [1], [0])
    assert found == {"position": 0, "gap": None, "near_tie": False}


# ---------------------------------------------------------------------------------------------- comparison

@dataclass
class Scripted:
    """As much of a session as `compare` uses: its runs take scripted speeds, and note that they happened."""

    name: str
    speeds: list[float]
    log: list[str]
    token: int = 1
    other: Any = None
    drafters: list[Any] = field(default_factory=list)
    real: api.Session = field(default_factory=lambda: api.assemble(table([0.5, 0.3, 0.2]), Letters(), get("plain")))

    @property
    def target(self) -> TableTarget:
        return self.real.target  # type: ignore[return-value]

    def with_recipe(self, name: str) -> Any:
        assert name == "plain"
        return self.other

    def fresh(self) -> Any:
        self.log.append(f"fresh {self.name}")
        return self

    def request(self, prompt: str, **asked: Any) -> Request:
        return self.real.request(prompt, **asked)

    def generate(self, prompt: str, **asked: Any) -> api.Result:
        self.log.append(self.name)
        result = self.real.generate(prompt, **asked)
        return replace(result, tok_s=self.speeds.pop(0), token_ids=[0] * 4 + [self.token])


def pair(mine: list[float], plain: list[float], token: int = 1) -> tuple[Scripted, list[str]]:
    log: list[str] = []
    session = Scripted("tree", mine, log, token)
    session.other = Scripted("plain", plain, log)
    return session, log


def test_pairs_are_interleaved_and_the_first_runs_are_not_timed() -> None:
    session, log = pair([999.0, 30.0, 20.0, 40.0], [1.0, 10.0, 10.0, 16.0])
    done: list[tuple[int, int]] = []
    found, _ = compare(
        session, "ab", raw=True, max_tokens=5, progress=lambda n, of: done.append((n, of))  # type: ignore[arg-type]
    )
    assert log[:3] == ["plain", "fresh tree", "tree"]      # warming up
    assert log[4::2] == ["tree", "plain", "plain", "tree", "tree", "plain"]
    assert log[3::2] == [f"fresh {x}" for x in log[4::2]]  # no run sees what an earlier one learned
    assert done == [(n, 7) for n in range(1, 8)]
    assert found.speedup == 2.5           # of the ratios 3, 2, 2.5
    assert found.tok_s == 30.0 and found.plain == {"tok_s": 10.0, "token_ids": [0, 0, 0, 0, 1]}
    assert found.identical is True and found.divergence is None
    assert sameness(found) == "yes"


def test_a_difference_is_reported() -> None:
    session, _ = pair([1.0] * 4, [1.0] * 4, token=2)
    found, _ = compare(session, "ab", raw=True, max_tokens=5)  # type: ignore[arg-type]
    assert found.identical is False and found.divergence is not None
    assert found.divergence["position"] == 4
    assert sameness(found) == (
        "no, from token 4 on: the target's best two are 0.511 apart there, not a near-tie in float64"
    )


def test_a_real_session_agrees_with_itself() -> None:
    session = api.assemble(table([0.5, 0.3, 0.2]), Letters(), get("suffix"))
    found, best = compare(session, "ab", raw=True, max_tokens=40, temperature=1.0, seed=3)
    assert found.identical and len(found.token_ids) == 40 and found.speedup is not None and found.speedup > 0
    assert best is not None and best.verdict.path


# ---------------------------------------------------------------------------------------------- watching, drawing

def test_the_watcher_keeps_the_best_step() -> None:
    watcher = Watcher()
    steps = [
        step([1], [-1], ()), step([1, 2], [-1, 0], (0,)), step([1, 2], [-1, -1], (0,)),
        step([1, 2, 1], [-1, 0, 1], (0,)),
    ]
    for s in steps:
        watcher.commit(0, s)
    assert watcher.best is steps[2] and watcher.steps == 4  # of those that accepted most, the widest
    with pytest.raises(AssertionError, match="asked"):
        watcher.children([])
    with pytest.raises(AssertionError, match="asked"):
        watcher.row(0, 0)


def test_watching_changes_nothing() -> None:
    session = api.assemble(table([0.5, 0.3, 0.2]), Letters(), get("plain"))
    watched, watcher = watch(session)
    options: dict[str, Any] = {"raw": True, "max_tokens": 9, "temperature": 1.0}
    assert watched.generate("ab", **options).token_ids == session.generate("ab", **options).token_ids
    assert watcher.steps == 8 and session.drafters == []


def test_drawing() -> None:
    s = step([1, 2, 0, 1, 2], [-1, 0, 0, -1, 1], (0, 1), survival=[0.8, 0.5, 0.25, 0.125, 0.06])
    names = {0: "a", 1: "\n", 2: "\ufffd"}
    lines = draw_tree(s, lambda ids: names[ids[0]], BOXES)
    assert [line.text for line in lines] == [
        "'a'",
        "├─ ✓ '\\n'       0.80",
        "│  ├─ ✓ <2>     0.50",
        "│  │  └─   <2>  0.06",
        "│  └─   'a'     0.25",
        "└─   '\\n'       0.12",
        "→ <2> is the target's own next token",
    ]
    assert [line.accepted for line in lines] == [True, True, True, False, False, False, True]
    assert tree_title(s).startswith("the step that accepted most: 2 of 5 draft tokens kept, so 3 tokens from one call")
    assert [line.text for line in draw_tree(s, lambda ids: names[ids[0]], ASCII)][2] == "|  |- * <2>     0.50"


def test_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    s = step([1], [-1], (0,))
    plain, terminal = io.StringIO(), Terminal()
    print_tree(s, Letters().decode, plain)
    print_tree(s, Letters().decode, terminal)
    assert "\x1b" not in plain.getvalue() and "\x1b[1;32m" in terminal.getvalue()
    print_tree(None, Letters().decode, plain)
    assert plain.getvalue().endswith("no tree to draw: nothing was drafted\n")
