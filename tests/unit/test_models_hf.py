"""Any decoder-only model through transformers' extension points; what cannot be served is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import ModelError, UsageError
from hedgerow.core.parts import Needs, TargetInfo
from hedgerow.core.tree import TokenTree
from hedgerow.models import hf
from hedgerow.models.runner import Runner
from hedgerow.models.serve import longest, probe, refusal
from hedgerow.systems.linear import fuse_norms, pack
from hedgerow.target.lm import LMTarget, fitting, load_target
from tests.unit.models_kit import call, plain, prefill, prompt_group, tree_group, write_llama

PROMPT = [(i * 37 + 5) % 128 for i in range(20)]
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}


def load(path: Path, dtype: torch.dtype = torch.float32) -> LMTarget:
    net = hf.load(path, path.name, dtype, "cpu", fuse_norms)
    return LMTarget(Runner(net, 4, 256), TargetInfo(path.name, net.vocab, 256, "cpu", "fp32", "torch"))


def reference(path: Path, ids: list[int]) -> Any:
    """transformers' own forward pass over one sequence."""
    from transformers import AutoModelForCausalLM

    from hedgerow.models.convert import quiet

    with quiet(), torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
        return model(input_ids=torch.tensor([ids]), output_hidden_states=True)


@pytest.mark.parametrize(("model", "options"), [
    ("llama", {}), ("qwen2", {}), ("qwen3", {"head_dim": 16}), ("mistral", {"sliding_window": None}), ("phi", {}),
    ("phi3", {}), ("olmo2", {}), ("gemma", {"head_dim": 16}), ("cohere", {}), ("granite", {}),
    ("gpt_neox", {"num_key_value_heads": 4}), ("gpt2", {"num_key_value_heads": 4, "n_positions": 256}),
    ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}), ("qwen3_moe", MOE),
])
def test_rows_equal_transformers_own(model: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m", model=model, **options)
    target = load(path)
    tree = TokenTree.of([40, 50, 60, 70], [-1, -1, 0, 2])
    slot = target.acquire()
    first, _ = call(target, [prompt_group(slot, PROMPT)])
    target.commit(slot, range(20))
    depth = target.runner.net.layers
    rows, feats = call(target, [tree_group(slot, 9, 20, tree)], Needs(taps=(0, 1, depth), last_hidden=True))
    for path_nodes in ((), (0, 2, 3), (1,)):
        ids = [*PROMPT, 9, *(int(tree.tokens[i]) for i in path_nodes)]
        want = reference(path, ids)
        spread = float(want.logits.std())
        row = path_nodes[-1] + 1 if path_nodes else 0
        np.testing.assert_allclose(rows.logits(0, row), want.logits[0, -1].numpy(), atol=1e-3 * spread)
        np.testing.assert_allclose(first.logits(0, 19), want.logits[0, 19].numpy(), atol=1e-3 * spread)
        for i, tap in enumerate((0, 1, depth)):
            torch.testing.assert_close(feats[0].taps[i, row], want.hidden_states[tap][0, -1], atol=2e-3, rtol=2e-3)
        assert torch.equal(feats[0].last_hidden, feats[0].taps[2])
    target.commit(slot, [0, 1, 3])
    want = reference(path, [*PROMPT, 9, 40, 60, 11]).logits[0, -1].numpy()
    np.testing.assert_allclose(plain(target, slot, 11, 23), want, atol=1e-3 * float(want.std()))


@pytest.mark.parametrize(("model", "options", "why"), [
    ("mistral", {"sliding_window": 32}, "sliding-window attention (window 32)"),
    ("gemma2", {"head_dim": 16}, "sliding-window attention"),
    ("mamba", {}, "recurrent state"), ("qwen3_next", {}, "recurrent state"), ("rwkv", {}, "recurrent state"),
    ("deepseek_v3", {"kv_lora_rank": 16}, "multi-head latent attention (MLA)"),
    ("t5", {}, "encoder-decoder"), ("gemma3", {}, "multimodal"),
    ("lfm2", {"layer_types": ["conv", "full_attention"]}, "layers of kind conv"),
    ("bloom", {}, "attention cannot be replaced"),
])
def test_what_cannot_be_served_is_refused_by_name(
    model: str, options: dict[str, Any], why: str, tmp_path: Path
) -> None:
    path = write_llama(tmp_path / "strange", model=model, save=False, **options)
    with pytest.raises(ModelError) as e:
        hf.load(path, "strange", torch.float32, "cpu", lambda model: None)
    assert str(e.value).startswith(f"model strange ({model}") and why in str(e.value) and "\n" not in str(e.value)


def test_an_attention_with_another_formula_is_refused(tmp_path: Path) -> None:
    full = ["full_attention"] * 2
    path = write_llama(tmp_path / "capped", model="gemma2", head_dim=16, layer_types=full, attn_logit_softcapping=5.0)
    with pytest.raises(ModelError, match=r"model capped \(gemma2\) cannot be served: it caps attention scores"):
        load(path)
    path = write_llama(tmp_path / "sink", model="gpt_oss", head_dim=16, layer_types=full, num_local_experts=4)
    with pytest.raises(ModelError, match=r"model sink \(gpt_oss\) cannot be served: it has attention sinks"):
        load(path)


def test_the_self_test_finds_an_attention_that_ignores_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = load(write_llama(tmp_path / "m")).runner.net
    assert probe(net) == ""
    true = net.forward

    def everything(tokens: Any, positions: Any, step: Any, *rest: Any) -> Any:
        for part in (p for c in step._clusters for p in c.parts):
            part.bias.zero_()
        return true(tokens, positions, step, *rest)

    def by_index(tokens: Any, positions: Any, *rest: Any) -> Any:
        return true(tokens, positions[0] + torch.arange(len(positions)), *rest)

    def by_nothing(tokens: Any, positions: Any, *rest: Any) -> Any:
        return true(tokens, torch.zeros_like(positions), *rest)

    for wrong in (everything, by_index, by_nothing):
        monkeypatch.setattr(net, "forward", wrong)
        assert "away from the same path alone" in probe(net)
    monkeypatch.setattr(hf, "probe", lambda net: "made up")
    with pytest.raises(ModelError, match=r"model x \(llama\) cannot be served: made up"):
        hf.load(tmp_path / "m", "x", torch.float32, "cpu", lambda model: None)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
def test_packed_and_fused_modules_change_only_rounding(dtype: torch.dtype, limit: float, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m", tie_word_embeddings=True)
    target = load(path, dtype)
    pack(target.runner.net.model)
    rows, _ = call(target, [prompt_group(target.acquire(), PROMPT)])
    want = reference(path, PROMPT).logits[0, -1].numpy()
    assert np.sqrt(np.mean((rows.logits(0, 19) - want) ** 2)) < limit * want.std()


def test_damaged_models_are_refused_in_one_line(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m")
    from safetensors.torch import load_file, save_file

    weights = load_file(path / "model.safetensors")
    gone = "model.layers.1.mlp.up_proj.weight"
    del weights[gone]
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"its files lack 1 weights, {gone} among them"):
        load(path)
    (path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match="cannot be loaded as a model"):
        load(path)
    (path / "config.json").write_text('{"model_type": "unheard_of"}', encoding="utf-8")
    with pytest.raises(ModelError, match="cannot be loaded as a model") as e:
        load(path)
    assert "\n" not in str(e.value)


def test_configurations_that_only_seem_to_slide_are_served() -> None:
    from transformers import LlamaConfig, Qwen2Config

    assert refusal(Qwen2Config(use_sliding_window=False, sliding_window=4096)) == ""
    assert refusal(LlamaConfig()) == ""


def test_contexts_end_where_rotary_scaling_would_change_earlier_keys() -> None:
    from transformers import LlamaConfig

    assert longest(LlamaConfig(max_position_embeddings=4096)) == 4096
    scaled = LlamaConfig(max_position_embeddings=4096)
    scaled.rope_parameters = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 1024}
    assert longest(scaled) == 1024


def test_loading_by_directory(tmp_path: Path) -> None:
    from tests.cli.conftest import write_model

    path = write_model(tmp_path / "cycle")
    target, tokenizer = load_target(str(path), dtype="fp32", max_slots=2, max_len=100)
    assert target.info.name == "cycle" and target.info.dtype == "fp32" and target.info.max_len == 100
    assert target.info.eos == tokenizer.eos == {tokenizer.encode("<|eos|>")[0]}
    assert "packed weights need bf16" in target.info.backend
    ids = tokenizer.encode("aé")
    slot = prefill(target, ids[:-1])
    following = int(plain(target, slot, ids[-1], len(ids) - 1).argmax())
    assert tokenizer.decode([*ids, following]) == "aé\ufffd"
    assert load_target(str(path), max_len=10**9)[0].info.max_len == 640, "never beyond the model's own context"


@pytest.mark.parametrize(("options", "message"), [
    ({"dtype": "fp8"}, "dtype is 'fp8'; allowed: auto, bf16, fp32"),
    ({"quant": "int3"}, "quant is 'int3'; allowed: none"),
    ({"threads": 0}, "threads is 0; allowed: 1 or more"),
    ({"device": "abacus"}, "device 'abacus' cannot be used"),
])
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_target("demo", **options)


def test_contexts_are_halved_until_they_fit() -> None:
    cpu = torch.device("cpu")
    assert fitting(8192, 1000, cpu) == 8192
    assert fitting(1 << 20, 1 << 30, cpu) == 1024
