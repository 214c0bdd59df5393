"""A whole language model as the drafter: recognised, loaded as a target is, read through its own vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.control.controller import Fixed
from hedgerow.core.errors import ModelError, UsageError
from hedgerow.core.parts import Sampling, TargetInfo
from hedgerow.core.recipe import Built
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import Selection
from hedgerow.draft.companion import is_language_model
from hedgerow.draft.formats import save_own
from hedgerow.draft.independent import LMDrafter
from hedgerow.draft.opening import open_drafter
from hedgerow.draft.vocabulary import Words, matched, same, words_of
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request
from hedgerow.engine.scheduler import Scheduler
from hedgerow.models.opened import open_net
from hedgerow.models.runner import Runner
from hedgerow.policy.fixed import Fixed as Shape
from hedgerow.target.lm import LMTarget
from hedgerow.target.tiny import TinyTarget
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection
from tests.unit.eagle_kit import random_head
from tests.unit.models_kit import write_llama

TREE = TreeShape.from_paths([(0,), (1,), (0, 0), (0, 1), (0, 0, 0)])


def run(target: Any, drafter: Any, policy: Any, rule: Any, temperature: float) -> tuple[list[list[int]], float]:
    loop = Loop(target, [drafter] if drafter else [], policy, rule, Fixed(5 if drafter else 0, guard=False))
    done = Scheduler(loop, max_batch=2).run([
        Request((1, 2, 3 + i), max_tokens=24, sampling=Sampling(temperature), seed=i) for i in range(3)
    ])
    ids = [r.finish.ids for r in done]
    return ids, sum(len(x) - 1 for x in ids) / sum(r.steps for r in done)


def shuffled(vocab: int) -> tuple[Words, Any]:
    """A drafter with the target's weights under other ids, one of whose tokens is not the target's and vice versa."""
    target = TinyTarget(seed=0, slots=4, vocab=vocab)
    order = np.random.default_rng(0).permutation(vocab)              # order[d] = the target's id of drafter's token d
    net = TinyTarget(seed=0, slots=4, vocab=vocab).runner.net
    net.embedding, net.head = net.embedding[order], net.head[order]  # type: ignore[attr-defined]
    said = {f"t{i}": i for i in range(vocab)}
    theirs = {f"t{i}": d for d, i in enumerate(order.tolist()) if i != 7} | {"another": int(np.argmax(order == 7))}
    return matched(said, theirs, vocab, vocab), (target, net)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_under_other_ids_drafts_as_under_the_same(temperature: float) -> None:
    words, (target, net) = shuffled(64)
    assert 7 not in words.ids and len(words.ids) == 63 and (np.diff(words.ids) > 0).all()
    plain, _ = run(target, None, Shape(TREE), Match(), temperature)
    own = LMDrafter(Runner(target.runner.net, 4, 1024))
    mapped = LMDrafter(Runner(net, 4, 1024), words=words, vocab=64)
    same_ids, best = run(target, own, Shape(TREE), Match(), temperature)
    ids, tau = run(target, mapped, Shape(TREE), Match(), temperature)
    assert ids == same_ids == plain
    assert best >= tau > 0.8 * best > 1.5


@pytest.mark.parametrize("selection", [Selection.WITHOUT_REPLACEMENT, Selection.IID])
def test_rows_of_a_mapped_vocabulary_serve_rules_that_read_q(selection: Selection) -> None:
    words, (target, net) = shuffled(64)
    drafter = LMDrafter(Runner(net, 4, 1024), words=words, vocab=64)
    plain, _ = run(target, None, Shape(TREE), Match(), 0.0)
    ids, tau = run(target, drafter, Shape(TREE, selection), Rejection(), 0.0)
    assert ids == plain and tau > 1.5
    assert run(target, drafter, Shape(TREE, selection), Rejection(), 1.0)[1] > 1.5


def test_vocabularies_are_compared_token_by_token() -> None:
    assert words_of({"a": 0, "b": 1}, {"a": 0, "b": 1}, 2, 2) is None
    padded = same(4, 6)
    assert padded is not None and padded.columns.tolist() == padded.ids.tolist() == [0, 1, 2, 3]
    short = same(6, 4)
    assert short is not None and short.reads.tolist() == [0, 1, 2, 3, 3, 3] and short.ids.tolist() == [0, 1, 2, 3]
    with pytest.raises(ModelError, match="no token of the target's"):
        matched({"a": 0}, {"b": 0}, 1, 1)


def test_a_directory_is_a_model_or_a_drafter(tmp_path: Path) -> None:
    write_llama(tmp_path / "lm")
    save_own(random_head("eagle3"), tmp_path / "head")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text('{"architectures": ["SomethingElse"]}')
    assert is_language_model(str(tmp_path / "lm")) and is_language_model("some.gguf") and is_language_model("demo")
    for name in ("head", "old", "nothing"):
        assert not is_language_model(str(tmp_path / name))


def test_open_and_draft_with_a_model_directory(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "lm", num_hidden_layers=1)
    net, _ = open_net(path, "lm", torch.float32, "cpu", compile=False)
    target = LMTarget(Runner(net, 2, 256), TargetInfo("lm", net.vocab, 256, "cpu", dtype="fp32", backend="torch"))
    drafter: Any = open_drafter(Built(target.info, target, str(path)))
    plain, _ = run(target, None, Shape(TREE), Match(), 0.0)
    ids, tau = run(target, drafter, Shape(TREE), Match(), 0.0)
    assert ids == plain and tau > 3.0, "the model itself is right every time"
    with pytest.raises(UsageError, match="give its directory with --drafter"):
        open_drafter(Built(target.info, target))
