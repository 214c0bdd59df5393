"""Comparing an exported drafter: chains by the definition stand for the other engine's, and for a wrong one's."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.bench import chains, engines, exported
from hedgerow.bench.chains import Chain, Compared, agreement, along, follow
from hedgerow.bench.learned_tables import exported_table
from hedgerow.core.errors import ModelError
from hedgerow.draft.base import Base
from hedgerow.draft.formats import Head, save_own
from hedgerow.draft.formats.selftest import Sample, sample_of
from hedgerow.target.tiny import TinyTarget
from tests.cli.conftest import write_model
from tests.cli.drafters import eagle
from tests.unit.eagle_kit import drafter_of, fused, naive, random_head

VOCAB, DRAFT, NODES, PROMPT = 64, 40, 3, 5


@pytest.fixture(scope="module")
def target() -> TinyTarget:
    return TinyTarget(seed=0, vocab=VOCAB, slots=2, max_len=64)


@pytest.fixture(scope="module")
def head() -> Head:
    return random_head("eagle3", VOCAB, DRAFT)


@pytest.fixture(scope="module")
def sample(target: TinyTarget, head: Head) -> Sample:
    some = np.random.default_rng(0)
    return sample_of(target, replace(head.config, taps=(0, 1, 2)).needs, some.integers(0, VOCAB, PROMPT).tolist(),
                     some.integers(0, VOCAB, 20).tolist())


def chain(head: Head, base: Base, sample: Sample, root: int, forced: list[int] | None = None) -> tuple[Chain, Any]:
    """A greedy chain after a root, every depth from scratch; and the logits that chose each, [depth, draft_vocab]."""
    taps = torch.stack([sample.states[t][:root] for t in head.config.taps])
    features, tokens, rows = fused(head, taps, taps[0]), list(sample.tokens[1 : root + 1]), []
    drafts: list[int] = []
    assert head.ids is not None
    for d in range(NODES):
        logits, states = naive(head, base, tokens, features)
        rows.append(logits[-1])
        drafts.append(int(head.ids[logits[-1].argmax()]) if forced is None else forced[d])
        tokens.append(drafts[-1])
        features = torch.cat([features, states[-1:]])
    best = [row.topk(2) for row in rows]
    second, lead = [int(head.ids[b.indices[1]]) for b in best], [float(b.values[0] - b.values[1]) for b in best]
    return Chain(root, sample.tokens[root], drafts, second, lead), torch.stack(rows)


def test_the_same_network_drafts_the_same(target: TinyTarget, head: Head, sample: Sample) -> None:
    base, roots = Base.of(target), [PROMPT, PROMPT + 1, PROMPT + 4, PROMPT + 9, 19, 24, 30]
    theirs = [chain(head, base, sample, r)[0] for r in roots[:5]]
    theirs += [Chain(24, sample.tokens[24], [0] * 3, [], []), Chain(30, 0, [0] * 3, [], [])]   # nothing judged these
    found = follow(drafter_of(target, head), sample, theirs, "a")
    assert [c.theirs.position for c in found] == roots[:5]
    same = agreement(found)
    assert same["identical"] == same["identical_chains"] == same["identical_below"] == 1.0
    assert same["decided"] == 15 and same["identical_decided"] == 1.0
    assert same["differences"] == 0 and same["our_lead"] is None and same["drafts"] == 15
    assert all(c.lead == [0.0] * NODES for c in found)


def test_taps_that_are_one_off_are_noticed(target: TinyTarget, head: Head, sample: Sample) -> None:
    head = Head(replace(head.config, taps=(0, 1)), {**head.tensors, "fc.weight": head.tensors["fc.weight"][:, :128]},
                head.ids)
    wrong = Head(replace(head.config, taps=(1, 2)), head.tensors, head.ids)
    theirs = [chain(wrong, Base.of(target), sample, r)[0] for r in range(PROMPT, 20, 2)]
    same = agreement(follow(drafter_of(target, head), sample, theirs, "b"))
    assert same["identical"] < 0.7 and same["our_lead"]["high"] > 0.05


def test_one_other_draft_is_one_difference(target: TinyTarget, head: Head, sample: Sample) -> None:
    """Theirs takes its second token at depth 1 and goes on from it: ours below it agrees again, ours alone need not."""
    right, rows = chain(head, Base.of(target), sample, 9)
    other, below = chain(head, Base.of(target), sample, 9, [right.second[0], *right.drafts[1:]])
    assert head.ids is not None
    best = [int(head.ids[row.argmax()]) for row in below]
    other = replace(other, drafts=[right.second[0], best[1], right.drafts[2]])
    _, below = chain(head, Base.of(target), sample, 9, other.drafts)
    other.drafts[2] = int(head.ids[below[2].argmax()])
    [found] = follow(drafter_of(target, head), sample, [other], "c")
    assert found.ours == right.drafts and found.below == [right.drafts[0], *other.drafts[1:]]
    assert found.lead[0] == pytest.approx(float(rows[0].topk(2).values.diff().abs()), abs=1e-4)
    assert found.lead[1:] == [0.0, 0.0]
    same = agreement([replace(found, theirs=replace(other, second=[right.drafts[0], 0, 0], lead=[0.0, 1.0, 2.0]))])
    assert same["differences"] == same["their_second"] == same["ties"] == 1
    assert same["decided"] == 2 and same["identical_decided"] == 1.0
    assert same["identical_below"] == pytest.approx(2 / 3) and same["identical_by_depth"][0] == 0.0
    assert same["apart"] == [{
        "position": 9, "depth": 1, "theirs": other.drafts[0], "ours": right.drafts[0],
        "our_lead": round(found.lead[0], 4), "their_lead": 0.0,
    }]


def test_positions_that_are_counted_in_another_way(target: TinyTarget, head: Head, sample: Sample) -> None:
    late = Chain(10, sample.tokens[11], [1, 2, 3], [], [])
    with pytest.raises(ValueError, match="positions are counted in another way"):
        follow(drafter_of(target, head), sample, [late], "d")


def test_only_what_the_text_can_judge_is_counted() -> None:
    text = [9, 9, 1, 2, 3, 4]

    def found(position: int, theirs: list[int], ours: list[int]) -> Compared:
        return Compared(Chain(position, text[position], theirs, [], []), ours, ours, [0.0, 0.0])

    assert along([found(1, [1, 2], [1, 7]), found(2, [5, 3], [2, 3]), found(4, [4, 1], [4, 1])], text) == (4, 2, 3)
    assert chains.accepted([], [1]) == 0


# ------------------------------------------------------------------------------------------------- the whole

SERVER = """
import json, sys
job = json.load(open(sys.argv[2]))
assert json.load(open(job["drafter"] + "/config.json"))["speculators_model_type"] == "eagle3"
print(json.dumps({"ready": True, "version": "7"}), flush=True)
for line in sys.stdin:
    n, new, k, texts, chains, counts, again = int(line), job["new"], job["nodes"], [], [], [], []
    for prompt in job["prompts"][:n]:
        text = [3 + i % 5 for i in range(new)]
        roots = range(0, new - 1, 2)
        texts.append(text)
        chains.append([{"position": len(prompt) + r, "root": text[r], "drafts": [3, 4, 5][:k], "second": [1] * k,
                        "lead": [0.5] * k} for r in roots])
        counts.append({"drafts": len(roots) + MISSED, "draft_tokens": k * len(roots),
                       "accepted_tokens": len(roots), "accepted_tokens_per_pos": [len(roots)] + [0] * (k - 1)})
        again.append([chains[-1][1] | {"drafts": [3, 9]}, chains[-1][2] | {"root": 0}])
    print(json.dumps({"token_ids": texts, "chains": chains, "counters": counts, "again": again}), flush=True)
"""


@pytest.mark.parametrize("missed", [0, 1])
def test_the_command_from_export_to_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missed: int
) -> None:
    """Another engine that makes things up: its figures are told as it gave them, and ours next to them."""
    save_own(eagle(), tmp_path / "head")
    model = write_model(tmp_path / "model")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "vllm_eagle3.py").write_text(SERVER.replace("MISSED", str(missed)))
    monkeypatch.setattr(engines, "files", lambda package: tmp_path)
    monkeypatch.setattr(sys, "argv", ["exported", "--python", sys.executable])

    def run() -> None:
        exported.main(
            Path(sys.executable), tmp_path / "out.json", str(model), tmp_path / "head", "demo:2", new=9, nodes=2,
            dtype="fp32", threads=None, again=2,
        )

    if missed:
        with pytest.raises(ModelError, match="vLLM counts 5 chains on chat, 4 were seen"):
            run()
        return
    run()
    result = json.loads((tmp_path / "out.json").read_text())
    every = result["dtypes"]["fp32"]["summary"]["all"]
    assert every["prompts"] == 2 and every["chains"] == 8 and every["their_acceptance"] == 0.5
    assert every["again_drafts"] == 4 and every["again_identical"] == 0.5      # another root is another question
    assert 8 <= every["our_steps"] <= 16 and every["same_texts"] == 0
    assert str(tmp_path) not in result["provenance"]["command"].replace(str(model), "")
    assert sys.executable not in result["provenance"]["command"]
    shown = exported_table(result)
    assert "| fp32 | all | 2 |" in shown and "vLLM 7" in shown and "asked twice for 4 drafts" in shown
    assert json.loads(capsys.readouterr().out)["their_acceptance"] == 0.5
