"""Heads and block drafters on `tiny`: plain decoding's tokens under every recipe made for them, whatever they draft.

Their texts are longer than the 16 tokens their facts name, and some draft over a reduced vocabulary.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from hedgerow.api import assemble
from hedgerow.control.controller import Fixed
from hedgerow.core.errors import ModelError, UsageError
from hedgerow.core.parts import Plan
from hedgerow.core.recipe import Built
from hedgerow.draft.formats import save_own
from hedgerow.draft.opening import OPENERS, drafter_of, open_drafter
from hedgerow.engine.loop import Loop
from hedgerow.recipes import get
from tests.identity.tiny_kit import SLOTS, assert_same, plain, requests, run, tiny
from tests.unit.heads_kit import changed, synthetic

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("medusa", "medusa", {}), ("medusa", "medusa", {"draft_vocab": 12}),
    ("hydra", "hydra", {"draft_vocab": 12}), ("hydra", "hydra", {"arch": "prefix-mlp"}),
    ("dflash", "dflash", {}), ("ddtree", "dflash", {"windows": (4, None), "draft_vocab": 12}),
    ("jetspec", "dflash", {"causal": True, "from_anchor": True}),
    ("dspark", "dspark", {}), ("treespark", "dspark", {"markov": "rnn", "draft_vocab": 12}),
    ("pctree", "dspark", {"markov": "gated"}), ("dominotree", "domino", {}), ("dartree", "domino", {"draft_vocab": 12}),
]


class Skipping(Fixed):
    """Drafts in one step out of three, so that drafters lag in between."""

    def plan(self, batch: Any) -> list[Plan]:
        plans = super().plan(batch)
        return [p if v.position % 3 == 0 else Plan(0, reason="skipped") for p, v in zip(plans, batch, strict=True)]


def held(drafter: Any) -> int:
    """Slots of the drafter's own store that are in use."""
    keepers = (getattr(drafter, "net", None), getattr(drafter, "prefix", None))
    return sum(SLOTS - k.context.kv.free_slots for k in keepers if k is not None)


@pytest.mark.parametrize("law", ["greedy", "T=0.8"])
@pytest.mark.parametrize(("name", "kind", "options"), CASES, ids=[f"{n}-{k}-{i}" for i, (n, k, _) in enumerate(CASES)])
def test_same_tokens_and_no_slot_kept(name: str, kind: Any, options: dict[str, Any], law: str) -> None:
    target, recipe = tiny(), get(name)
    drafter = drafter_of(synthetic(target, kind, **options), target)
    accepted = 0
    for batch, control in ((1, Fixed), (8, Fixed), (3, Skipping)):
        loop = Loop(target, [drafter], deepcopy(recipe.policy), recipe.rule, control(recipe.nodes, guard=False))
        done = run(loop, requests(law, count=5), batch)
        assert_same(done, plain(law, count=5))
        accepted += sum(r.accepted for r in done)
    assert accepted > 0 and held(drafter) == 0


@pytest.mark.parametrize("kind", ["dspark", "hydra", "medusa"])
def test_drawn_children_with_a_rule_that_reads_q(kind: Any) -> None:
    """Greedy they are plain decoding's; sampled, rows are there for every node the rule asks about."""
    target, recipe = tiny(), get("treespark_sampled")
    drafter = drafter_of(synthetic(target, kind, 12), target)
    for law in ("greedy", "T=0.8"):
        loop = Loop(target, [drafter], deepcopy(recipe.policy), recipe.rule, Fixed(15, guard=False))
        done = run(loop, requests(law, count=4), batch=2)
        if law == "greedy":
            assert_same(done, plain(law, count=4))
        assert sum(r.accepted for r in done) > 0


def test_from_a_directory_to_text(tmp_path: Path) -> None:
    """`--drafter`: a saved head is opened as the drafter of its kind, and one of another target is refused in words."""
    target = tiny()
    for kind in ("medusa", "dflash"):
        save_own(synthetic(target, kind, 12), tmp_path / kind)
        session = assemble(target, None, get(kind), nodes=7, drafter=str(tmp_path / kind))  # type: ignore[arg-type]
        loop = Loop(target, session.drafters, session.policy, session.recipe.rule, Fixed(7, guard=False))
        assert_same(run(loop, requests("greedy", count=3), batch=3), plain("greedy", count=3))
    with pytest.raises(UsageError, match=r"recipe .medusa. needs Medusa heads.*--drafter"):
        assemble(target, None, get("medusa"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give its directory with --drafter"):
        open_drafter(Built(target.info, target))
    other = type(target)(seed=0, vocab=24)
    with pytest.raises(ModelError, match="vocabulary of 20 tokens, the target tiny-0 has 24"):
        open_drafter(Built(other.info, other, str(tmp_path / "medusa")))
    with pytest.raises(ModelError, match=r"'falcon' can be read.*none is run here; those that are: d"):
        drafter_of(changed(synthetic(target, "medusa"), kind="falcon"), target)
    assert {"medusa", "hydra", "dflash", "dspark", "domino"} <= set(OPENERS)
