"""`hedgerow recipes`: the list, one card, and the matrix of rules against selections."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from hedgerow.cli.recipes import matrix, rules
from hedgerow.core.tree import Selection
from hedgerow.recipes import names
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection

Invoke = Callable[..., Result]


def test_list(invoke: Invoke) -> None:
    result = invoke("recipes")
    assert (result.exit_code, result.stderr) == (0, "")
    methods, fits = result.stdout.split("\n\n")
    header, *rows = methods.splitlines()
    assert header.split() == ["recipe", "law", "offline", "compared", "paper", "needs", "what"]
    assert [row.split()[0] for row in rows] == names()
    plain = next(row for row in rows if row.startswith("plain "))
    assert plain.split()[1:5] == ["exact", "no", "yes", "-"]
    _, header, *rows = fits.splitlines()
    assert header.split()[:3] == ["rule", "law", "top_k"]
    assert [row.split()[0] for row in rows] == sorted(rule.name for rule in rules())
    assert next(row for row in rows if row.startswith("match ")).split()[1:] == ["exact"] + ["yes"] * 10


def test_list_as_json(invoke: Invoke) -> None:
    result = invoke("recipes", "--json")
    found = json.loads(result.stdout)
    assert len(result.stdout.splitlines()) == 1
    assert [card["name"] for card in found["recipes"]] == names()
    assert all(isinstance(card["exact"], bool) for card in found["recipes"])
    assert found["matrix"] == matrix()


@pytest.mark.parametrize("name", names())
def test_show(invoke: Invoke, name: str) -> None:
    result = invoke("recipes", "show", name)
    lines = result.stdout.splitlines()
    assert (result.exit_code, lines[0].split()) == (0, ["recipe", name])
    assert [line.split()[0] for line in lines[1:14]] == [
        "title", "version", "paper", "law", "offline", "drafters", "needs", "policy", "children", "rule", "nodes",
        "differs", "compared",
    ]
    assert "Idea:" in result.stdout       # the card of its file
    card = json.loads(invoke("recipes", "show", name, "--json").stdout)
    assert card["name"] == name and card["card"].splitlines()[-1] in result.stdout


def test_matrix_is_what_the_parts_say() -> None:
    assert {Match, Rejection} <= set(rules())
    rows = {row["rule"]: row for row in matrix()}
    assert all(rows["match"]["children"].values())
    around = ("policy_reads_tokens", "controller_cuts", "controller_looks_ahead")
    assert all(all(rows["match"][key].values()) for key in around)
    rejection = rows["rejection"]
    assert {s for s, fits in rejection["children"].items() if fits} == {s.label for s in Rejection.accepts}
    assert not any(rejection["policy_reads_tokens"].values()) and not any(rejection["controller_looks_ahead"].values())
    assert rejection["controller_cuts"] == {"iid": False, "without_replacement": True}
    for rule in rules():                  # what a lossless rule that reads q accepts is drawn, always
        if rule.lossless and rule.needs_q:  # type: ignore[attr-defined]
            assert all(s.drawn for s in Selection if rows[rule.name]["children"][s.label])  # type: ignore[attr-defined]
