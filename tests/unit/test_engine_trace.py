"""Trace records: whole, re-readable, and in agreement with the result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hedgerow.core.errors import ModelError
from hedgerow.core.probs import entropy
from hedgerow.core.record import StepRecord, read
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.engine.request import Running
from hedgerow.target.table import TableLaw, TableTarget
from tests.unit.engine_kit import ask, engine, guess, run

LAW = TableLaw.random(vocab=6, order=2, seed=3, temperature=0.6)


Traced = tuple[list[StepRecord], list[Running]]


@pytest.fixture
def traced() -> Traced:
    records: list[StepRecord] = []
    loop = engine(TableTarget(LAW, eos=[5]), guess(LAW, (2, 2, 1)), nodes=6, trace=records.append)
    requests = [
        ask(i, i + 1, max_tokens=12 + i, seed=i, temperature=[0.0, 1.0][i % 2], ignore_eos=i < 3) for i in range(5)
    ]
    return records, run(loop, requests, batch=3)


def test_records_are_read_back_as_they_were_written(traced: Traced, tmp_path: Path) -> None:
    records, _ = traced
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(r.to_json() + "\n" for r in records), encoding="utf-8")
    assert list(read(file)) == records
    for line in file.read_text().splitlines():
        assert set(json.loads(line)) == set(StepRecord.__dataclass_fields__)


def test_a_broken_line_is_named(traced: Traced, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    good = traced[0][0].to_json()
    for bad in (good[: len(good) // 2], "[1, 2]", good.replace('"schema":1', '"schema":99'), '{"schema": 1}'):
        file.write_text(f"{good}\n\n{bad}\n", encoding="utf-8")
        with pytest.raises(ModelError, match="line 3 is no step record"):
            list(read(file))


def test_tokens_per_step_from_records_is_the_results(traced: Traced) -> None:
    records, done = traced
    for r in done:
        mine = [x for x in records if x.request == r.number]
        assert [x.step for x in mine] == list(range(r.steps))
        assert sum(x.committed for x in mine) == len(r.finish.ids) - 1
        assert sum(x.committed for x in mine) / len(mine) == (len(r.finish.ids) - 1) / r.steps
        assert sum(len(x.tree["tokens"]) for x in mine) == r.drafted
        assert sum(x.proposed for x in mine) == r.proposed
        assert sum(min(len(x.path), x.committed) for x in mine) == r.accepted
        assert [x.finished for x in mine] == [None] * (r.steps - 1) + [r.finish.reason]


def test_a_request_can_be_replayed_from_its_records(traced: Traced) -> None:
    records, done = traced
    for r in done:
        mine = [x for x in records if x.request == r.number]
        assert mine[0].prompt == list(r.request.prompt) and all(x.prompt is None for x in mine[1:])
        assert mine[0].sampling is not None and mine[0].sampling["seed"] == r.request.seed
        text = [*mine[0].prompt, mine[0].root]
        for x in mine:
            assert (x.position, x.root) == (len(text) - 1, text[-1])
            tree = TokenTree.of(**x.tree)
            assert set(x.tree["selection"]) <= {int(Selection.RETRIEVED)}
            nodes = [-1, *range(tree.nodes)]
            assert len(x.top_ids) == len(x.top_logits) == len(x.entropy) == len(x.lse) == len(nodes)
            for row, node in enumerate(nodes):          # the target's raw law at the root and every node
                law = LAW([*text, *[int(tree.tokens[i]) for i in tree.path(node)]])
                logprob = np.array(x.top_logits[row]) - x.lse[row]
                np.testing.assert_allclose(np.exp(logprob), law[x.top_ids[row]], atol=1e-7)
                assert x.top_ids[row] == np.argsort(-law, kind="stable").tolist()
                assert x.entropy[row] == pytest.approx(entropy(law), abs=1e-5)
            text += ([int(tree.tokens[i]) for i in x.path] + [x.token])[: x.committed]
        assert text == [*r.request.prompt, *r.finish.ids]


def test_a_record_tells_the_batch_and_its_seconds(traced: Traced) -> None:
    records, _ = traced
    assert {x.batch for x in records} == {1, 2, 3}
    assert all(set(x.seconds) == {"draft", "verify", "other"} and min(x.seconds.values()) >= 0 for x in records)
    assert all(x.rows >= 1 + len(x.tree["tokens"]) and x.plan_nodes == 6 for x in records if x.tree["tokens"])
    last = [x for x in records if not x.plan_nodes]
    assert all("no room" in x.reason for x in last) and last


def test_a_loop_without_a_trace_is_the_same() -> None:
    requests = [ask(i, max_tokens=9, seed=i, temperature=1.0) for i in range(4)]
    records: list[StepRecord] = []
    with_trace = run(engine(TableTarget(LAW), guess(LAW), trace=records.append), requests)
    without = run(engine(TableTarget(LAW), guess(LAW)), requests)
    assert [(r.finish.ids, r.histogram) for r in with_trace] == [(r.finish.ids, r.histogram) for r in without]
    assert records
