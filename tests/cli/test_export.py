"""`hedgerow export`: directories that read back as the same drafter, the commands that serve them, refusals."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from hedgerow.cli.export import command
from hedgerow.draft.formats import HeadConfig, load, save_own
from tests.cli.conftest import write_model
from tests.cli.drafters import SIZE, eagle, medusa

Invoke = Callable[..., Result]

@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model") / "cycle"))


def run(invoke: Invoke, model: str, *more: str) -> Result:
    return invoke("export", *more, "--model", model)


def test_for_vllm(invoke: Invoke, model: str, tmp_path: Path) -> None:
    head, out = eagle(), tmp_path / "for vllm"
    save_own(head, tmp_path / "own")
    given = (str(tmp_path / "own"), "--to", "vllm", "--out", str(out), "--name", "org/name", "--json")
    result = run(invoke, model, *given)
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    assert (said["kind"], said["from"], said["to"], said["path"]) == ("eagle3", "hedgerow", "vllm", str(out))
    assert said["files"] == ["config.json", "model.safetensors", "model_card.json"]
    words = shlex.split(said["serve"])
    assert words[:4] == ["vllm", "serve", "org/name", "--speculative-config"]
    assert json.loads(words[4]) == {"model": str(out), "method": "eagle3", "num_speculative_tokens": 3}
    back = load(out)
    assert back.origin == "eagle3_speculators" and back.config == head.config and back.facts["seed"] == 3
    assert all(torch.equal(back.tensors[n], t) for n, t in head.tensors.items())
    assert torch.equal(back.tensors["embed_tokens.weight"].float(), torch.eye(SIZE))    # the model's own
    settings = json.loads((out / "config.json").read_text())
    assert settings["speculators_config"]["verifier"]["name_or_path"] == "org/name"
    assert settings["eagle_aux_hidden_state_layer_ids"] == [0, 1]


def test_for_sglang_and_back(invoke: Invoke, model: str, tmp_path: Path) -> None:
    """Another engine's directory is a drafter like any other: it is exported again, and both say the same."""
    save_own(eagle(), tmp_path / "own")
    result = run(invoke, model, str(tmp_path / "own"), "--to", "sglang", "--out", str(tmp_path / "s"))
    assert result.exit_code == 0, result.stderr
    assert "eagle3, read as hedgerow, written for sglang" in result.stdout
    assert "sglang.launch_server --model-path TARGET --speculative-draft-model-path" in result.stdout
    result = run(invoke, model, str(tmp_path / "s"), "--to", "hedgerow", "--out", str(tmp_path / "again"))
    assert result.exit_code == 0 and "serve it" not in result.stdout, result.stderr
    first, again = ((tmp_path / d / "model.safetensors").read_bytes() for d in ("own", "again"))
    assert first == again


@pytest.mark.parametrize(("more", "message"), [
    (["--out", "new"], "--to is missing"), (["--to", "vlm", "--out", "new"], "Did you mean 'vllm'?"),
    (["--to", "vllm"], "--out is missing"), (["--to", "vllm", "--out", "full"], "not empty: name another directory"),
    (["--to", "sglang", "--out", "new"], "sglang reads no drafter of kind medusa"),
    (["--to", "hedgerow", "--out", "new", "nothing-here"], "nothing-here"),
    (["--to", "vllm", "--out", "new", ""], "no drafter is shipped for cycle"),
])
def test_refusals_write_nothing(
    invoke: Invoke, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save_own(medusa(), "own")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    drafter = [more.pop()] if len(more) == 5 else ["own"]
    result = run(invoke, model, *(d for d in drafter if d), *more)
    assert result.exit_code != 0 and message in str(result.exception) + result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full", "own"]
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["file"]


@pytest.mark.parametrize(("facts", "to", "words"), [
    ({"kind": "peagle", "block": 7}, "vllm", ['"parallel_drafting": true', '"method": "eagle3"', "tokens\": 7"]),
    ({"kind": "dflash", "block": 8}, "vllm", ['"method": "dflash"', "tokens\": 7"]),
    ({"kind": "dspark", "block": 8, "from_anchor": True}, "vllm", ['"method": "dspark"', "tokens\": 8"]),
    ({"kind": "medusa", "count": 4}, "vllm", ['"method": "medusa"', "tokens\": 4"]),
    ({"kind": "dflash", "block": 8}, "sglang", ["DFLASH --speculative-num-draft-tokens 8"]),
    ({"kind": "dspark", "block": 8}, "sglang", []), ({"kind": "medusa", "count": 4}, "medusa_vllm", []),
])
def test_commands_of_every_kind(facts: dict[str, object], to: str, words: list[str]) -> None:
    config = HeadConfig(hidden=8, target_hidden=8, vocab=8, draft_vocab=8, **facts)     # type: ignore[arg-type]
    said = command(config, to, Path("a drafter"), "t")
    assert all(w in said for w in words) and bool(said) == bool(words)
    assert not said or "a drafter" in " ".join(shlex.split(said))
