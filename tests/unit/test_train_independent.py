"""Distilling a copy of the target: it begins as the target's layers, learns, and opens as a drafter of its own."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hedgerow.core.errors import ModelError, UsageError
from hedgerow.draft.formats.target import TargetFacts
from hedgerow.train import independent
from hedgerow.train.data import Batch
from hedgerow.train.independent import Independent, cut, spread
from hedgerow.train.methods import METHODS, Options
from hedgerow.train.start import TargetWeights
from tests.unit.models_kit import write_llama

VOCAB, LAYERS = 128, 6
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = write_llama(tmp_path_factory.mktemp("independent") / "target", num_hidden_layers=LAYERS)
    (out / "tokenizer.json").write_text("{}")
    (out / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    return out


@pytest.fixture(scope="module")
def target(path: Path) -> TargetWeights:
    return TargetWeights.read(path)


@pytest.fixture(scope="module")
def batch(path: Path) -> Batch:
    from transformers import AutoModel

    tokens = torch.randint(0, VOCAB, (5, 24), generator=torch.Generator().manual_seed(0))
    loss = torch.zeros(5, 24, dtype=torch.bool)
    for i in range(5):
        loss[i, 5 : 24 - 3 * i] = True                     # the last texts are padded
    with torch.no_grad():
        last = AutoModel.from_pretrained(path, dtype=torch.float32)(input_ids=tokens).last_hidden_state
    return Batch(tokens, loss, torch.zeros(5, 24, 0), last)


def begun(target: TargetWeights, layers: int, draft: int = 40, steps: int = 3) -> Independent:
    made = METHODS["independent"].build(target, torch.arange(draft), (), CPU, Options(layers, steps))
    assert isinstance(made, Independent)
    return made


def test_a_copy_of_all_layers_is_the_target(target: TargetWeights, batch: Batch) -> None:
    """Every choice is right at every depth, and the loss is the entropy of the target's own law."""
    made = begun(target, LAYERS)
    made.module.eval()
    with torch.no_grad():
        seen = made.learn(batch)
        p = (batch.last.to(torch.bfloat16)[batch.loss] @ made.output.T).float().softmax(1)
    assert (seen.hits[:, 0] / seen.alive).min() > 0.9
    assert float(seen.loss) == pytest.approx(float(-(p * p.log()).sum(1).mean()), rel=0.02)
    runs = [int(row.sum()) for row in batch.loss]
    assert seen.alive.tolist() == [sum(runs), *[pytest.approx(sum(r - k for r in runs), rel=0.15) for k in (1, 2)]]


def test_depths_are_counted_along_the_text(target: TargetWeights, batch: Batch) -> None:
    """By hand: depth k of position j is alive while the copy's best was the target's at j … j + k − 1."""
    made = begun(target, 2)
    made.module.eval()
    with torch.no_grad():
        seen = made.learn(batch)
        z = made.module(batch.tokens) @ made.output.float().T
        right = z.argmax(2) == (batch.last.to(torch.bfloat16) @ made.output.T).float().argmax(2)
    alive, hits = [0, 0, 0], [0, 0, 0]
    for i in range(5):
        for j in range(24):
            for k in range(3):
                if j + k >= 24 or not batch.loss[i, j : j + k + 1].all():
                    break
                if bool(right[i, j : j + k].all()):
                    alive[k] += 1
                    hits[k] += bool(right[i, j + k])
    assert seen.alive.tolist() == alive and seen.hits[:, 0].tolist() == hits and 0 < hits[0] < alive[0]


def test_it_learns_over_frequent_tokens_and_some_others(
    target: TargetWeights, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(independent, "OTHERS", 20)
    made = begun(target, 2)
    names = {name.split(".")[0] for name, _ in made.module.named_parameters()}
    assert names == {"layers", "norm"}, "embedding and output rows are the target's"
    one, two = made._tokens(CPU), made._tokens(CPU)
    assert one[:40].tolist() == two[:40].tolist() == list(range(40)) and set(one.tolist()) != set(two.tolist())
    assert len(set(one.tolist())) == 60
    made.module.eval()
    with torch.no_grad():
        before = float(made.learn(batch).loss)
        assert float(made.learn(batch).loss) == before, "validation draws nothing"
    made.module.train()
    optimizer = torch.optim.AdamW(made.module.parameters(), lr=3e-3)
    for _ in range(30):
        made.learn(batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    made.module.eval()
    with torch.no_grad():
        assert float(made.learn(batch).loss) < before - 0.2, "on all tokens, those that were rarely drawn among them"


def test_it_is_written_as_a_model_that_opens_as_a_drafter(
    target: TargetWeights, batch: Batch, path: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    from hedgerow.draft.companion import companion, is_language_model

    made, out = begun(target, 3), tmp_path / "out"
    METHODS["independent"].save(made, out, {"seed": 0}, TargetFacts(64, VOCAB, LAYERS, "tiny"))
    card = json.loads((out / "model_card.json").read_text())
    assert card["layers_of_target"] == [0, 2, 5] and card["target"]["name"] == "tiny" and card["seed"] == 0
    assert (out / "tokenizer.json").read_text() == "{}"
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == [2, 5]
    assert is_language_model(str(out)) and not [f for f in out.iterdir() if f.name.startswith(".tmp")]
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    assert model.config.num_hidden_layers == 3
    with torch.no_grad():
        whole = model(input_ids=batch.tokens).logits
        ours = made.module(batch.tokens) @ made.output.float().T
    torch.testing.assert_close(whole, ours, rtol=1e-4, atol=1e-4)
    (out / "tokenizer.json").unlink()
    kv = SimpleNamespace(slots=2, max_len=64, max_rows=64)
    built: Any = SimpleNamespace(
        target=SimpleNamespace(runner=SimpleNamespace(
            net=SimpleNamespace(dtype=torch.float32, device="cpu", vocab=VOCAB, captured=None), kv=kv)),
        drafter=str(out), info=SimpleNamespace(quant="none"), tokenizer=None,
    )
    drafter = companion(built)
    assert drafter.runner.net.layers == 3 and drafter.vocab == VOCAB


def test_what_cannot_be_is_said(target: TargetWeights, tmp_path: Path) -> None:
    assert spread(LAYERS, LAYERS) == tuple(range(LAYERS)) and spread(30, 2) == (0, 29)
    with pytest.raises(UsageError, match="--layers is 7; the target has 6"):
        begun(target, 7)
    nowhere = begun(TargetWeights(target.config, target.tensors), 1)
    with pytest.raises(ModelError, match="no tokenizer to copy"):
        nowhere.save(tmp_path / "out", {})
    assert not (tmp_path / "out").exists()


def test_settings_of_every_layer_are_cut_with_them() -> None:
    from transformers import Qwen2Config

    config = Qwen2Config(
        num_hidden_layers=6, layer_types=["sliding_attention", "full_attention"] * 3, eos_token_id=[1, 2, 3, 4, 5, 6]
    )
    small = cut(config, (0, 3, 5))
    assert small.num_hidden_layers == 3 and small.eos_token_id == [1, 2, 3, 4, 5, 6]
    assert small.layer_types == ["sliding_attention", "full_attention", "full_attention"]
    assert config.num_hidden_layers == 6
