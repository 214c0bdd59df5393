"""`hedgerow profile-step`: the parts are all there and sum to the step."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

Invoke = Callable[..., Result]

pytestmark = pytest.mark.model


def test_parts_sum_to_the_step(invoke: Invoke) -> None:
    result = invoke("profile-step", "--max-tokens", "24", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert {"draft", "rule", "loop, host"} <= set(found["parts_s"])
    assert 0.9 < found["sum_to_wall"] < 1.1
    assert all(v > 0 for v in found["ceilings"].values()) and found["rows"] >= 1
    assert (found["work"] is None) == bool(found["why_no_parts"])


def test_people_get_a_table_and_torch_layers_say_what_is_missing(invoke: Invoke) -> None:
    result = invoke("profile-step", "--max-tokens", "8", "--no-compile", "--recipe", "plain")
    assert result.exit_code == 0, result.stderr
    assert "x ceiling" in result.stdout and "only compiled layers time their parts" in result.stdout


def test_nothing_to_decode_is_said(invoke: Invoke) -> None:
    result = invoke("profile-step", "--max-tokens", "1")
    assert result.exit_code == 2 and "ask for 2 or more" in result.stderr and not result.stdout
