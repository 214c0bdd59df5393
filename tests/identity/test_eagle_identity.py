"""EAGLE heads on `tiny`: plain decoding's tokens under the recipes made for them, and the target's law under rejection.

Their texts are longer than the 16 tokens they were made for, and some draft over a reduced vocabulary.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.api import assemble
from hedgerow.control.controller import Fixed
from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Needs, Plan, RowGroup, Sampling, View
from hedgerow.core.probs import law as law_of
from hedgerow.core.rng import Tape, enumerate_branches
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.draft.formats import save_own
from hedgerow.draft.opening import drafter_of
from hedgerow.engine.lockstep import lockstep
from hedgerow.engine.loop import Loop
from hedgerow.recipes import get
from hedgerow.target.tiny import TinyTarget
from hedgerow.testing.law import trees_law
from hedgerow.testing.steps import Grown
from hedgerow.verify.joint import Traversal
from hedgerow.verify.rejection import Rejection
from tests.identity.tiny_kit import SLOTS, VOCAB, assert_same, plain, requests, run, tiny
from tests.unit.eagle_kit import random_head

CASES: list[tuple[str, Any, dict[str, Any]]] = [
    ("eagle1", "eagle1", {}), ("eagle2", "eagle1", {"draft_vocab": 12}), ("eagle3", "eagle3", {"draft_vocab": 12}),
    ("eagle3", "eagle3", {"layers": 2, "fc_norm": True, "norm_output": True}), ("talon", "eagle3", {}),
    ("opt_tree", "eagle3", {"norm_before_residual": True}), ("mtp", "mtp", {}), ("fastmtp", "mtp", {"seed": 6}),
    ("p_eagle", "peagle", {"block": 7, "mask_token": 3}),
    ("ddtree", "peagle", {"block": 5, "mask_token": 3, "draft_vocab": 12}),
    ("coupled_tree", "eagle3", {}), ("sage", "eagle3", {}),
]


class Skipping(Fixed):
    """Drafts in one step out of three, so that drafters lag in between."""

    def plan(self, batch: Any) -> list[Plan]:
        plans = super().plan(batch)
        return [p if v.position % 3 == 0 else Plan(0, reason="skipped") for p, v in zip(plans, batch, strict=True)]


@pytest.mark.parametrize("law", ["greedy", "T=1 filtered"])
@pytest.mark.parametrize(("name", "kind", "options"), CASES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(CASES)])
def test_same_tokens_and_no_slot_kept(name: str, kind: Any, options: dict[str, Any], law: str) -> None:
    target, recipe = tiny(), get(name)
    drafter: Any = drafter_of(random_head(kind, VOCAB, max_len=16, **options), target)
    accepted = 0
    for batch, control in ((8, Fixed), (3, Skipping)):
        loop = Loop(target, [drafter], deepcopy(recipe.policy), recipe.rule, control(recipe.nodes, guard=False))
        done = run(loop, requests(law, count=4), batch)
        assert_same(done, plain(law, count=4))
        accepted += sum(r.accepted for r in done)
    assert accepted > 0 and drafter.pairs.kv.free_slots == SLOTS
    drafter.pairs.kv.check_integrity()


def test_from_a_directory_to_text(tmp_path: Path) -> None:
    """`--drafter` opens a saved head; a recipe of two drafters asks for two."""
    target = tiny()
    for kind in ("eagle3", "mtp"):
        save_own(random_head(kind, VOCAB), tmp_path / kind)                          # type: ignore[arg-type]
    for name, named in (("eagle3", "eagle3"), ("treegraft", f"mtp,{tmp_path / 'eagle3'}")):
        session = assemble(target, None, get(name), nodes=7, drafter=str(tmp_path / named))   # type: ignore[arg-type]
        loop = Loop(target, session.drafters, session.policy, session.recipe.rule, Fixed(7, guard=False))
        assert_same(run(loop, requests("greedy", count=3), batch=3), plain("greedy", count=3))
    with pytest.raises(UsageError, match=r"drafts with 2 drafters \(weak, strong\), and --drafter names 1"):
        assemble(target, None, get("treegraft"), drafter=str(tmp_path / "mtp"))      # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"recipe 'eagle3' needs an EAGLE-3 head; give one with --drafter"):
        assemble(target, None, get("eagle3"))                                        # type: ignore[arg-type]


@pytest.mark.parametrize(("rule", "selection"), [
    (Rejection(), Selection.WITHOUT_REPLACEMENT), (Traversal(), Selection.WITHOUT_REPLACEMENT),
    (Rejection(), Selection.IID),
])
def test_the_law_of_a_step_is_the_target_s(rule: Any, selection: Selection) -> None:
    """Every tree an EAGLE-3 head of two of three tokens can draw, with the rows it says it drew from.

    A path's row comes out of passes of other sizes, a few units in the last place of float32 apart, and the enumeration
    knows one row a path: the request's law rounds them away, for the draws as for the rule.
    """
    target, text = TinyTarget(seed=0, vocab=3, slots=2, scale=1.0), [0, 1, 2, 1]
    drafter = drafter_of(random_head("eagle3", 3, 2), target)
    slot = target.acquire()
    group = RowGroup("prefill", slot, np.array(text[:-1]), np.arange(3), np.empty((3, 0), bool))
    _, feats = target.collect(target.submit([group], drafter.needs))
    target.commit(slot, range(3))
    drafter.begin(0, text, feats[0])
    known: dict[tuple[int, ...], np.ndarray] = {}

    def drawn(tape: Tape) -> TokenTree:
        drafter.fork(0, 1, len(text))
        view = View(
            0, 1, text[-1], 3, 9, Sampling(1.0), tape.request(0, 0),
            draw=lambda row, depth, ids=None: law_of(np.round(row, 4), Sampling(1.0)),
        )
        [tree] = lockstep(Grown.levels(2, 2, selection=selection), [drafter], [view], [Plan(9)])
        for v in range(tree.nodes):
            above = tuple(int(tree.tokens[i]) for i in tree.path(int(tree.parent[v])))
            known[above] = drafter.row(1, int(tree.origin[v]))
        drafter.release(1)
        return tree

    trees = list(enumerate_branches(drawn))
    p: dict[tuple[int, ...], np.ndarray] = {}
    for depth in range(3):
        for path in product(range(3), repeat=depth):
            tokens = np.array([text[-1], *path])
            group = RowGroup("tree", slot, tokens, 3 + np.arange(len(tokens)), np.tri(len(tokens), dtype=bool))
            rows, _ = target.collect(target.submit([group], Needs()))
            p[path] = law_of(rows.logits(0, depth), Sampling(1.0))
    assert len(trees) > 4 and max(q.max() for q in known.values()) < 0.99
    trees_law(rule, trees, p.__getitem__, known.__getitem__).assert_lossless()
