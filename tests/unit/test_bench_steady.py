"""The long run of random steps: its watchers notice what they are for, its parts are the whole, its table says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hedgerow.bench import steady, wild
from hedgerow.bench.tables import MAKERS
from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Plan
from hedgerow.core.tree import Selection
from hedgerow.draft.blend import BlendDrafter
from hedgerow.engine.lockstep import lockstep
from hedgerow.target.tiny import TinyTarget
from tests.unit.draft_kit import view


def run(target: TinyTarget, **options: int) -> dict[str, object]:
    sizes = {"steps": 40, "warm_up": 10, "nodes": 12, "longest": 200, "batch": 4, **options}
    return steady.steady(target, [BlendDrafter()], Selection.RETRIEVED, **sizes)  # type: ignore[arg-type]


def test_steps_vary_parts_are_the_wall_time_and_nothing_is_lost() -> None:
    target = TinyTarget(seed=0, vocab=32, slots=4, max_len=300)
    found = run(target, fill=500)
    for name in ("batch", "rows", "tokens", "contexts"):
        spread = found[name]
        assert spread["least"] < spread["most"], name  # type: ignore[index]
    assert found["batch"]["most"] == 4 and found["rows"]["least"] >= 1  # type: ignore[index]
    parts = found["parts_s"]
    assert isinstance(parts, dict) and set(parts) == {"call", "draft", "rule", "loop, host", "prefill"}
    assert all(s > 0 for s in parts.values())
    assert sum(parts.values()) == pytest.approx(found["wall_s"], rel=0.1)
    assert found["graphs"] == 0 and found["libraries"] == []
    assert target.capacity().slots == 4
    target.runner.kv.check_integrity()
    text = MAKERS["steady"]({**found})
    assert "| requests in a step |" in text and "| all parts |" in text and "after 10 of warm-up and 500 tokens" in text


def test_the_same_seed_gives_the_same_steps() -> None:
    a, b = (run(TinyTarget(seed=0, vocab=32, slots=4, max_len=300), steps=15) for _ in range(2))
    assert [a[k] for k in ("rows", "tokens", "contexts", "requests")] == [
        b[k] for k in ("rows", "tokens", "contexts", "requests")
    ]


@pytest.mark.slow
def test_a_graph_compiled_on_the_way_is_counted() -> None:
    before = steady.compiled_graphs()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert steady.compiled_graphs() == before + 1


def test_memory_that_grows_has_a_slope() -> None:
    before, kept = steady.resident(), torch.ones(8 << 20)
    assert steady.resident() - before > 0.9 * kept.numel() * 4
    found = steady._memory([100, 110, 120, 130, 140])
    assert found["slope_bytes_per_step"] == pytest.approx(10)
    assert (found["start_bytes"], found["end_bytes"]) == (100, 140)


def test_wild_trees_obey_their_plan() -> None:
    rng = np.random.default_rng(0)
    policy, shapes = wild.Wild(rng, Selection.RETRIEVED, 1), set()
    for seed in range(60):
        plan = Plan(int(rng.integers(1, 20)), depth=int(rng.integers(1, 4)))
        tree = lockstep(policy, [wild.Noise(rng, 9)], [view(seed)], [plan])[0]
        shapes.add(tuple(tree.parent.tolist()))
    assert len(shapes) > 25
    with pytest.raises(InvariantError, match="asks source 1"):
        for _ in range(20):
            lockstep(wild.Wild(rng, Selection.RETRIEVED, 2), [wild.Noise(rng, 9)], [view(0)], [Plan(9)])
