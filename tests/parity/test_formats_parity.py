"""Checkpoints whose numbers mean something else than they hold, against the models that wrote them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import ModelError
from hedgerow.core.parts import Ask, Feats, Frontier, Sampling, View
from hedgerow.core.rng import Rng
from hedgerow.core.tree import Selection
from hedgerow.draft.base import Base
from hedgerow.draft.formats import Head, load, save_own
from hedgerow.target.tiny import TinyTarget
from tests.golden.checkpoints import put
from tests.unit.eagle_kit import HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, drafter_of, naive, random_head

VOCAB = 64
TEXT = [3, 9, 27, 17, 51, 25, 11, 33]
BODY: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS, "head_dim": HEAD_DIM,
    "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}
NEXT = {"input_proj": "fc", "token_layernorm": "pre_fc_norm_embedding", "hidden_layernorm": "pre_fc_norm_hidden",
        "final_layernorm": "norm"}


@pytest.fixture(scope="module")
def target() -> TinyTarget:
    return TinyTarget(seed=0, slots=3)


def drafts_as(target: TinyTarget, loaded: Head, meant: Head) -> bool:
    """Whether a loaded head's law at the root is that of the definition, with the tensors that were meant."""
    features = torch.randn(len(TEXT) - 1, HIDDEN, generator=torch.Generator().manual_seed(1))
    drafter = drafter_of(target, loaded)
    drafter.begin(0, TEXT, Feats(last_hidden=features))
    seen = View(0, 0, TEXT[-1], len(TEXT) - 1, 9, Sampling(), Rng(0).at(0))
    got = drafter.children([Ask(0, Frontier([-1], [8], selection=Selection.TOP_K), seen)])
    drafter.release(0)
    logits, _ = naive(meant, Base.of(target), TEXT[1:], features)
    wanted = logits[-1].log_softmax(0)
    best = wanted.argsort(descending=True)[:8]
    return got.token == best.tolist() and np.allclose(got.log_q, wanted[best].numpy(), atol=1e-4)


def norms(head: Head) -> list[str]:
    return [name for name in head.tensors if "norm" in name]


def in_qwens_names(name: str) -> str:
    part, end = name.removeprefix("mtp_layers.0.").split(".")[0], name.rpartition(".")[2]
    return f"mtp.{NEXT[part]}.{end}" if part in NEXT else name.replace("mtp_layers.", "mtp.layers.")


# ------------------------------------------------------------------------------------- norms around zero: Qwen3-Next


@pytest.mark.parametrize(("config", "rename", "around_zero"), [
    pytest.param({**BODY, "model_type": "qwen3_next"}, in_qwens_names, True, id="qwen3-next"),
    pytest.param(
        {"architectures": ["Qwen3_5ForCausalLM"], "text_config": {**BODY, "model_type": "qwen3_5_text"}},
        in_qwens_names, True, id="qwen3.5",
    ),
    pytest.param(
        {"speculators_model_type": "mtp", "transformer_layer_config": {**BODY, "model_type": "qwen3_5_text"}}, str,
        True, id="speculators, qwen3.5",
    ),
    pytest.param(
        {"speculators_model_type": "mtp", "transformer_layer_config": {**BODY, "model_type": "qwen3"}}, str, False,
        id="speculators, qwen3",
    ),
])
def test_norms_multiply_as_in_the_model(
    tmp_path: Path, target: TinyTarget, config: dict[str, Any], rename: Callable[[str], str], around_zero: bool
) -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNorm

    meant = random_head("mtp", qk_norms=True)
    stored = {name: t - 1 if around_zero and name in norms(meant) else t for name, t in meant.tensors.items()}
    put(tmp_path / "in", config, {rename(name): t for name, t in stored.items()})
    head = load(tmp_path / "in")
    assert head.tensors.keys() == meant.tensors.keys()
    assert len(norms(meant)) == 7
    for name in norms(meant):
        x = torch.randn(5, len(stored[name]))
        module = (Qwen3NextRMSNorm if around_zero else Qwen3RMSNorm)(len(stored[name]), eps=1e-5)
        module.weight.data = stored[name]
        ours = torch.nn.functional.rms_norm(x, x.shape[1:], head.tensors[name], 1e-5)
        torch.testing.assert_close(ours, module(x), rtol=1e-5, atol=1e-5)
    assert drafts_as(target, head, meant)
    as_stored = Head(head.config, stored)
    assert drafts_as(target, as_stored, meant) is not around_zero              # the test can fail
    again = load(save_own(head, tmp_path / "own"))                             # one is added once
    assert all(torch.equal(t, again.tensors[name]) for name, t in head.tensors.items())


def test_norms_of_bf16_files_keep_what_was_learned(tmp_path: Path) -> None:
    """1 + w in bf16 has steps of 1/128; a w of a thousandth would be gone."""
    meant = random_head("mtp")
    small = {
        in_qwens_names(name): torch.full_like(t, 0.001).bfloat16() if name in norms(meant) else t.bfloat16()
        for name, t in meant.tensors.items()
    }
    put(tmp_path, BODY, small)
    head = load(tmp_path)
    for name, tensor in head.tensors.items():
        kept = torch.float32 if name in norms(meant) else torch.bfloat16
        assert tensor.dtype == kept and (name not in norms(meant) or float(tensor[0]) == pytest.approx(1.001, rel=1e-5))


@pytest.mark.parametrize("known", [{}, {"head_dim": None, "attn_output_gate": True}])
def test_gated_attention_is_read_and_not_run(tmp_path: Path, target: TinyTarget, known: dict[str, Any]) -> None:
    """Qwen3-Next's queries bring a gate of the output: twice the rows, not twice the head."""
    meant = random_head("mtp", qk_norms=True)
    stored = {in_qwens_names(name): t for name, t in meant.tensors.items()}
    stored["mtp.layers.0.self_attn.q_proj.weight"] = torch.randn(2 * HEADS * HEAD_DIM, HIDDEN)
    put(tmp_path, {**BODY, "model_type": "qwen3_next", **known}, stored)
    head = load(tmp_path)
    assert any("target's own code" in note for note in head.facts["notes"])
    with pytest.raises(ModelError, match="attention of this kind is not run"):
        drafter_of(target, head)


# -------------------------------------------------------------------------------------- EAGLE-1's first input norm


def early(head: Head) -> dict[str, torch.Tensor]:
    """An EAGLE-1 head in the names of early speculators."""
    return {
        name.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): t for name, t in head.tensors.items()
    }


@pytest.mark.parametrize(("settings", "normed"), [
    ({"layernorms": True}, True), ({}, True), ({"layernorms": False}, False), ({}, False),
])
def test_early_speculators_norm_what_fc_made(
    tmp_path: Path, target: TinyTarget, settings: dict[str, Any], normed: bool
) -> None:
    meant = random_head("eagle1", norm_input=normed)
    config = {**BODY, "num_hidden_layers": 1, "speculators_model_type": "eagle", **settings}
    put(tmp_path, config, early(meant))
    head = load(tmp_path)
    assert head.origin == "eagle1_speculators_v1" and head.config.norm_input is normed
    assert drafts_as(target, head, meant)
    if normed:
        without = {name: t for name, t in meant.tensors.items() if name != "layers.0.input_layernorm.weight"}
        assert not drafts_as(target, head, Head(meant.config, without))        # the test can fail
    assert load(save_own(head, tmp_path / "own")).config.norm_input is normed


@pytest.mark.parametrize(("layernorms", "normed", "words"), [
    (False, True, r"unused: transformer\.input_layernorm\.weight"),
    (True, False, r"missing: layers\.0\.input_layernorm\.weight"),
])
def test_a_norm_that_the_settings_deny(tmp_path: Path, layernorms: bool, normed: bool, words: str) -> None:
    config = {**BODY, "num_hidden_layers": 1, "speculators_model_type": "eagle", "layernorms": layernorms}
    put(tmp_path, config, early(random_head("eagle1", norm_input=normed)))
    with pytest.raises(ModelError, match=words):
        load(tmp_path)


def test_the_authors_eagle_has_no_first_input_norm(tmp_path: Path) -> None:
    """Their layer 0 skips it; a file that has one is another network than the one we would run."""
    put(tmp_path, {**BODY, "num_hidden_layers": 1}, random_head("eagle1", norm_input=True).tensors)
    with pytest.raises(ModelError, match=r"unused: layers\.0\.input_layernorm\.weight"):
        load(tmp_path)
