"""The recipe that drafts with the target's own layers, on a small random model of six of them."""

from __future__ import annotations

import pytest
import torch

from hedgerow.control.controller import Fixed
from hedgerow.core.errors import UsageError
from hedgerow.core.parts import TargetInfo
from hedgerow.core.recipe import Built
from hedgerow.draft.independent import LMDrafter
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request
from hedgerow.engine.scheduler import Scheduler
from hedgerow.models import hf
from hedgerow.models.runner import Runner
from hedgerow.recipes import get
from hedgerow.target.lm import LMTarget
from tests.unit.models_kit import write_llama


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LMTarget:
    path = write_llama(tmp_path_factory.mktemp("deep"), num_hidden_layers=6, initializer_range=0.1)
    net = hf.load(path, "deep", torch.float32, "cpu", lambda model: None)
    return LMTarget(Runner(net, 4, 96, max_rows=32), TargetInfo("deep", net.vocab, 96, "cpu", "fp32", "torch"))


def texts(target: LMTarget, nodes: int) -> tuple[list[list[int]], int]:
    recipe = get("selfdraft")
    make = recipe.sources[0].make
    assert make is not None
    loop = Loop(target, [make(Built(target.info, target))], recipe.policy, recipe.rule, Fixed(nodes, guard=False))
    asked = [Request(prompt=(3 + i, 9, 4 + i), max_tokens=20, ignore_eos=True) for i in range(3)]
    done = Scheduler(loop, max_batch=2).run(asked)
    return [r.finish.ids for r in done], sum(r.accepted for r in done)


def test_it_drafts_with_a_third_of_the_layers_and_copies_no_weight(target: LMTarget) -> None:
    make = get("selfdraft").sources[0].make
    assert make is not None
    made = make(Built(target.info, target))
    assert isinstance(made, LMDrafter)
    assert (made.runner.net.layers, target.runner.net.layers) == (2, 6)
    own = {p.data_ptr() for p in target.runner.net.model.parameters()}
    assert {p.data_ptr() for p in made.runner.net.model.parameters()} < own


def test_it_says_what_plain_decoding_says(target: LMTarget) -> None:
    plain, none = texts(target, 0)
    drafted, accepted = texts(target, get("selfdraft").nodes)
    assert plain == drafted and [len(ids) for ids in plain] == [20, 20, 20]
    assert none == 0 and accepted > 0


def test_a_target_without_layers_is_refused_in_words() -> None:
    make = get("selfdraft").sources[0].make
    assert make is not None
    info = TargetInfo("table", 4, 64, "cpu", "fp64", "numpy")
    with pytest.raises(UsageError, match="those of 'table' cannot"):
        make(Built(info, object()))
    with pytest.raises(UsageError, match="layers can be cut"):
        make(Built(info))
