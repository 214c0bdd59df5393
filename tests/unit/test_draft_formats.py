"""What a drafter's file may not be: every refusal names the tensor, the setting or both numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core.errors import ModelError, UnknownName, UsageError
from hedgerow.core.parts import Feats
from hedgerow.draft.formats import Frozen, Head, HeadConfig, TargetFacts, fingerprint, load, recognise, save, save_own
from hedgerow.draft.formats.kinds import check_ids
from hedgerow.draft.formats.save import maps
from hedgerow.draft.formats.selftest import Sample, self_test, suspicions, wanted_states
from tests.golden.checkpoints import put, settings, target, tensors

Found = dict[str, torch.Tensor]


class Anything:
    """What no drafter's file may hold."""


EAGLE, DFLASH = "eagle3_official", "dflash_zlab"
FACTS = target(EAGLE, "other")


def checkpoint(layout: str = EAGLE, variant: str = "other") -> tuple[dict[str, Any], Found]:
    """Settings and tensors to spoil."""
    found = tensors(layout, variant)
    return settings(layout, variant, set(found)), found


def refused(path: Path, config: dict[str, Any], found: Found, facts: TargetFacts | None = FACTS) -> str:
    """What loading says. It always says which drafter."""
    put(path, config, found)
    with pytest.raises(ModelError) as error:
        load(path, target=facts)
    assert str(path) in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------------------------------------- tensors


@pytest.mark.parametrize("name", [n for n in checkpoint()[1] if n not in ("embed_tokens.weight", "t2d")])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    config, found = checkpoint()
    del found[name]
    words = {"fc.weight": "are laid out in no way", "midlayer.hidden_norm.weight": "are laid out in no way"}
    assert words.get(name, name.replace("midlayer", "layers.0")) in refused(tmp_path, config, found)


@pytest.mark.parametrize("name", ["midlayer.self_attn.x.weight", "lm_heed.weight", "fc_norm.0.weight", "norm.bias"])
def test_an_unused_tensor_is_named(tmp_path: Path, name: str) -> None:
    config, found = checkpoint()
    assert re.search(rf"unused: {re.escape(name)}", refused(tmp_path, config, found | {name: torch.zeros(3)}))


def test_recomputed_and_twice_prefixed_tensors(tmp_path: Path) -> None:
    config, found = checkpoint()
    put(tmp_path / "a", config, found | {"midlayer.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    assert load(tmp_path / "a", target=FACTS).origin == EAGLE
    twice = refused(tmp_path / "b", config, found | {"model.fc.weight": found["fc.weight"].clone()})
    assert "fc.weight and model.fc.weight" in twice
    both = refused(tmp_path / "c", config, found | {"layers.0.hidden_norm.weight": torch.ones(32)})
    assert "layers.0.hidden_norm.weight" in both and "midlayer.hidden_norm.weight" in both


@pytest.mark.parametrize(("name", "shape", "words"), [
    ("midlayer.self_attn.o_proj.weight", (32, 63), ["[32, 63]", "[32, 64]"]),
    ("midlayer.self_attn.k_proj.weight", (40, 64), ["40 rows", "heads of 16"]),
    ("midlayer.self_attn.q_proj.weight", (62, 64), ["4 heads of ?", "62 rows"]),
    ("fc.weight", (32, 160), ["160 features", "5 hidden states of 32", "names 3"]),
    ("embed_tokens.weight", (95, 32), ["vocab_size 96", "95"]),
    ("lm_head.weight", (41, 32), ["draft_vocab_size 40", "41"]),
    ("midlayer.mlp.gate_proj.weight", (50, 32), ["intermediate_size 48", "50"]),
])
def test_sizes_that_contradict_each_other(tmp_path: Path, name: str, shape: tuple[int, ...], words: list[str]) -> None:
    config, found = checkpoint()
    said = refused(tmp_path, config, found | {name: torch.zeros(shape).bfloat16()})
    assert all(w in said for w in words), said


@pytest.mark.parametrize(("key", "value", "words"), [
    ("hidden_act", "gelu", "'gelu'"), ("num_hidden_layers", 2, "num_hidden_layers 2"),
    ("hidden_size", 64, "hidden_size 64"), ("num_key_value_heads", 4, "num_key_value_heads 4"),
    ("num_target_layers", 30, "a target of 30 layers, this one has 12"), ("taps_hf_index", [2, 9, 13], "0 to 12"),
    ("taps_hf_index", "all", "'all'"), ("target_hidden_size", 48, "target_hidden_size 48"),
    ("rope_parameters", {"full_attention": {"rope_theta": 1.0}, "sliding_attention": {"rope_theta": 2.0}}, "rotate"),
])
def test_settings_that_are_wrong(tmp_path: Path, key: str, value: Any, words: str) -> None:
    config, found = checkpoint()
    assert words in refused(tmp_path, config | {key: value}, found)


def test_quantised_tensors_are_refused(tmp_path: Path) -> None:
    config, found = checkpoint()
    said = refused(tmp_path, config, found | {"fc.weight": torch.zeros(32, 96, dtype=torch.int8)})
    assert "fc.weight holds torch.int8" in said


# ---------------------------------------------------------------------------------------------- vocabulary maps


@pytest.mark.parametrize(("change", "words"), [
    (lambda m: {**m, "d2t": m["d2t"] + torch.arange(40)}, "offsets"),                  # absolute ids
    (lambda m: {**m, "d2t": m["d2t"].flip(0)}, "does not rise"),
    (lambda m: {**m, "d2t": m["d2t"] + 96}, "does not rise"),
    (lambda m: {**m, "d2t": m["d2t"][:-1]}, "40 integers"),
    (lambda m: {**m, "d2t": m["d2t"].bfloat16()}, "40 integers"),
    (lambda m: {**m, "t2d": m["t2d"][:-1]}, "[95]"),
    (lambda m: {**m, "t2d": ~m["t2d"]}, "40 tokens and t2d 56, of which 0"),
    (lambda m: {"t2d": m["t2d"]}, "no d2t"),
    (lambda m: {}, "40 of the target's 96"),
])
def test_maps_that_are_wrong(tmp_path: Path, change: Callable[[Found], Found], words: str) -> None:
    config, found = checkpoint()
    both = {n: found.pop(n) for n in ("d2t", "t2d")}
    if "offsets" in words:
        both["d2t"] = both["d2t"] + torch.arange(40)
    assert words in refused(tmp_path, config, found | (change(both) if "offsets" not in words else both))


@given(st.sets(st.integers(0, 29), min_size=1, max_size=30))
def test_maps_and_ids_are_one(chosen: set[int]) -> None:
    ids = torch.tensor(sorted(chosen))
    both = maps(ids, 30)
    assert torch.equal(torch.arange(len(ids)) + both["d2t"], ids) and torch.equal(both["t2d"].nonzero().flatten(), ids)
    check_ids(ids, len(ids), 30)
    if len(ids) < 30:
        with pytest.raises(ModelError, match="map"):
            check_ids(None, len(ids), 30)


# ---------------------------------------------------------------------------------------------- the target


@pytest.mark.parametrize(("layout", "facts", "words"), [
    (EAGLE, replace(FACTS, hidden=28), ["32", "28"]), (EAGLE, replace(FACTS, vocab=95), ["96", "95"]),
    (DFLASH, replace(FACTS, hidden=28), ["32", "28"]), (DFLASH, replace(FACTS, vocab=95), ["96", "95"]),
    (EAGLE, replace(FACTS, layers=5), ["[2, 2, 2]"]),
    ("medusa_official", replace(FACTS, vocab=95), ["96", "95"]), ("hydra_mlp", replace(FACTS, hidden=28), ["32", "28"]),
])
def test_a_drafter_of_another_model(tmp_path: Path, layout: str, facts: TargetFacts, words: list[str]) -> None:
    config, found = checkpoint(layout)
    if facts.layers == 5:                  # too small for the usual taps: they coincide, which is no error by itself
        put(tmp_path, config, found)
        assert load(tmp_path, target=facts).config.taps == (2, 2, 2)
        return
    said = refused(tmp_path, config, found, facts)
    assert "another model" in said and all(w in said for w in words)


def test_a_drafter_of_another_tokenizer(tmp_path: Path) -> None:
    config, found = checkpoint()
    words = {f"t{i}": i for i in range(96)}
    put(tmp_path, config, found)
    file = {"model": {"vocab": words}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    assert load(tmp_path, target=replace(FACTS, tokenizer=fingerprint(words))).origin == EAGLE
    other = fingerprint({**words, "t95": 94, "t94": 95})
    with pytest.raises(ModelError) as error:
        load(tmp_path, target=replace(FACTS, tokenizer=other))
    assert fingerprint(words) in str(error.value) and other in str(error.value)
    head = load(tmp_path, target=FACTS)
    own = save_own(head, tmp_path / "own", target=replace(FACTS, tokenizer=other))      # the card keeps it
    with pytest.raises(ModelError, match="tokenizer"):
        load(own, target=replace(FACTS, tokenizer=fingerprint(words)))


# ---------------------------------------------------------------------------------------------- settings that are read


def test_the_rotation_is_the_files_own(tmp_path: Path) -> None:
    """rope_parameters, else rope_theta, else 10000; the target's is nowhere asked for."""
    config, found = checkpoint()
    yarn = {"rope_type": "yarn", "factor": 4.0}
    for i, (change, theta, scaling) in enumerate([
        ({"rope_theta": 7.0}, 7.0, None), ({"rope_theta": None}, 10000.0, None),
        ({"rope_parameters": {"rope_theta": 9.0, "rope_type": "default"}}, 9.0, None),
        ({"rope_parameters": {**yarn}}, 12345.0, yarn), ({"rope_scaling": yarn}, 12345.0, yarn),
    ]):
        put(tmp_path / str(i), config | change, found)
        head = load(tmp_path / str(i), target=FACTS)
        assert (head.config.rope_theta, head.config.rope_scaling) == (theta, scaling)
        assert load(save_own(head, tmp_path / f"{i}o")).config == head.config


def test_taps_of_every_convention(tmp_path: Path) -> None:
    for layout, taps in (
        ("eagle3_official", (2, 6, 9)), ("eagle3_modelopt", (2, 4, 6)), ("eagle3_deepspec", (0, 2, 4, 6, 8)),
        ("dflash_zlab", (2, 4, 6)), ("dflash_speculators", (2, 4, 6)), ("dspark_deepspec", (2, 4, 6)),
    ):
        config, found = checkpoint(layout)
        put(tmp_path / layout, config, found)
        assert load(tmp_path / layout, target=target(layout, "other")).config.taps == taps
    config, found = checkpoint("dflash_zlab", "bare")
    del config["dflash_config"]["target_layer_ids"]
    found["fc.weight"] = torch.zeros(32, 64).bfloat16()
    put(tmp_path / "default", config, found)
    assert load(tmp_path / "default").config.taps == (2, 10)          # round(1 + i (12 - 4) / 1) + 1


def test_heads_are_counted_in_the_file(tmp_path: Path) -> None:
    """A.7 (6): published Medusa configurations say 2 where the file holds 5."""
    config, found = checkpoint("medusa_official")
    put(tmp_path, config | {"medusa_num_heads": 2}, found)
    head = load(tmp_path)
    assert head.config.count == 3 and "says 2 heads, the file holds 3" in head.facts["notes"][0]


def test_medusa_inside_a_whole_model(tmp_path: Path) -> None:
    config, found = checkpoint("medusa_official")
    whole = {f"medusa_head.{n}": t for n, t in found.items()}
    others = ("model.layers.0.mlp.up_proj.weight", "lm_head.weight", "model.norm.weight")
    whole |= {n: torch.zeros(2).bfloat16() for n in others}
    put(tmp_path, config, whole)
    put(tmp_path / "alone", config, found)
    a, b = load(tmp_path), load(tmp_path / "alone")
    assert a.config == b.config and a.tensors.keys() == b.tensors.keys()


def test_where_a_block_begins(tmp_path: Path) -> None:
    for i, (layout, change, begins) in enumerate([
        ("dspark_deepspec", {}, True), ("dspark_deepspec", {"dspark_bonus_anchor": True}, False),
        ("dspark_speculators", {"dspark_bonus_anchor": True, "sample_from_anchor": True}, True),
        ("dflash_speculators", {}, False), ("dflash_speculators", {"sample_from_anchor": True}, True),
        ("dflash_zlab", {}, False),
    ]):
        config, found = checkpoint(layout, "other")
        put(tmp_path / str(i), config | change, found)
        assert load(tmp_path / str(i), target=target(layout, "other")).config.from_anchor is begins


def test_windows(tmp_path: Path) -> None:
    config, found = checkpoint("dflash_speculators")
    config["transformer_layer_config"] |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
    put(tmp_path, config | {"sliding_window_non_causal": False}, found)
    head = load(tmp_path)
    assert head.config.windows == (64, None) and head.config.window_causal and not head.config.causal
    again = load(save(head, tmp_path / "out", "vllm", frozen=Frozen(torch.zeros(96, 32), torch.zeros(96, 32))))
    assert again.config == head.config


# ---------------------------------------------------------------------------------------------- files


def test_torch_files_and_shards(tmp_path: Path) -> None:
    config, found = checkpoint()
    plain = dict(found)
    put(tmp_path / "one", config, plain)
    whole = load(tmp_path / "one", target=FACTS)
    for folder, old in (("bin", False), ("old", True)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        torch.save(plain, tmp_path / folder / "pytorch_model.bin", _use_new_zipfile_serialization=not old)
        torch.save({"lr": 1}, tmp_path / folder / "training_args.bin")
    from safetensors.torch import save_file

    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = sorted(plain)
    where = {n: f"model-{1 + (i % 2)}.safetensors" for i, n in enumerate(names)}
    for file in set(where.values()):
        save_file({n: plain[n] for n in names if where[n] == file}, tmp_path / "shards" / file)
    index = tmp_path / "shards" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}), encoding="utf-8")
    for folder in ("bin", "old", "shards"):
        head = load(tmp_path / folder, target=FACTS)
        assert head.config == whole.config and all(torch.equal(t, head.tensors[n]) for n, t in whole.tensors.items())
    (tmp_path / "shards" / "model-2.safetensors").unlink()
    with pytest.raises(ModelError, match=r"1 of 2 weight files are missing, e\.g\. model-2"):
        load(tmp_path / "shards")


def test_files_that_are_no_drafter(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing is there"):
        recognise(tmp_path / "no")
    with pytest.raises(ModelError, match="holds no weights"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated"):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"a": Anything}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be read as plain tensors"):
        load(tmp_path)
    torch.save({"state": {"a": torch.zeros(1)}}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="more than named tensors"):
        load(tmp_path)
    torch.save({"a": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"config.json is no JSON"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"speculators_model_type": "eagle33"}', encoding="utf-8")
    with pytest.raises(ModelError, match="Did you mean 'eagle3'"):
        load(tmp_path)


# ---------------------------------------------------------------------------------------------- exports


def small() -> Head:
    """A head whose every tensor is its own."""
    config, found = checkpoint("eagle3_official", "other")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), config, found)
        head = load(folder, target=FACTS)
        return replace(head, tensors={n: t.clone() for n, t in head.tensors.items()})


def test_exports_that_would_lose_something(tmp_path: Path) -> None:
    head = small()
    with pytest.raises(ModelError, match=r"would lose the drafter's: give the target's own"):
        save(head, tmp_path, "sglang", target=FACTS)
    with pytest.raises(ModelError, match="it is no copy"):
        save(head, tmp_path, "sglang", target=FACTS, frozen=Frozen(torch.zeros(96, 32)))
    save(head, tmp_path, "sglang", target=FACTS, frozen=Frozen(head.tensors["embed_tokens.weight"]))
    newer = replace(head, config=replace(head.config, norm_output=True))
    with pytest.raises(ModelError, match="cannot say norm_output"):
        save(newer, tmp_path, "sglang", target=FACTS, frozen=Frozen(head.tensors["embed_tokens.weight"]))
    bare = replace(head, tensors={n: t for n, t in head.tensors.items() if n != "embed_tokens.weight"})
    with pytest.raises(ModelError, match=r"carries a copy of the target's embed_tokens\.weight"):
        save(bare, tmp_path, "vllm", target=FACTS)
    with pytest.raises(ModelError, match=r"\[95, 32\]"):
        save(bare, tmp_path, "vllm", target=FACTS, frozen=Frozen(torch.zeros(95, 32)))
    with pytest.raises(UsageError, match="reads no drafter of kind eagle3; that reads vllm or sglang"):
        save(head, tmp_path, "fasterdecoding")
    with pytest.raises(UsageError, match="holds drafters of kind medusa"):
        save(head, tmp_path, "medusa_vllm")
    with pytest.raises(UnknownName, match="Did you mean 'sglang'"):
        save(head, tmp_path, "sglan")
    with pytest.raises(ModelError, match=r"missing: fc\.weight"):
        save_own(replace(head, tensors={n: t for n, t in head.tensors.items() if n != "fc.weight"}), tmp_path)


def test_taps_that_vllm_would_sort_are_refused(tmp_path: Path) -> None:
    head = small()
    turned = replace(head, config=replace(head.config, taps=head.config.taps[::-1]))
    with pytest.raises(ModelError, match="taps out of order"):
        save(turned, tmp_path, "vllm", target=FACTS)
    save(head, tmp_path, "vllm", target=FACTS)
    layer = json.loads((tmp_path / "config.json").read_text())["transformer_layer_config"]
    assert layer["num_aux_hidden_states"] == len(head.config.taps)
    save_own(turned, tmp_path / "own")
    assert load(tmp_path / "own").config.taps == turned.config.taps


def test_taps_that_sglang_counts_otherwise(tmp_path: Path) -> None:
    """SGLang adds one to what a file says, and knows the usual taps without being told."""
    head = small()
    copy = Frozen(head.tensors["embed_tokens.weight"])
    other = replace(head, config=replace(head.config, taps=(1, 5, 9)))
    out = save(other, tmp_path, "sglang", target=FACTS, frozen=copy)
    said = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert said["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 4, 8]
    assert load(out).config.taps == (1, 5, 9)


def test_our_own_layout_keeps_every_fact(tmp_path: Path) -> None:
    head = replace(small(), facts={"seed": 7, "figures": {"tokens_per_step": 2.5}, "notes": ["read so"]})
    head = replace(head, config=replace(head.config, embedding_scale=5.5, norm_output=True))
    back = load(save_own(head, tmp_path, target=FACTS), target=FACTS)
    assert back.config == head.config and back.facts["seed"] == 7 and back.facts["figures"] == {"tokens_per_step": 2.5}
    assert "notes" not in back.facts and back.facts["target"]["name"] == "synthetic"
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["speculators_model_type"] == "eagle3"
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config["hedgerow"]["head"]["colour"] = "green"
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="colour are not known"):
        load(tmp_path)
    config["hedgerow"] = {"version": 2}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="version is 2"):
        load(tmp_path)


# ---------------------------------------------------------------------------------------------- self-test


def reader(feats: Feats, tokens: Any, first: int) -> list[int]:
    """A drafter that finds the next token in its first tap, where the tap is the right one."""
    return feats.taps[0, first - 1 :].argmax(-1)[: len(tokens) - 1 - first].tolist()


def texts() -> list[Sample]:
    """Hidden state 5 of a row is the token two further on; every other is noise."""
    rng, out = np.random.default_rng(0), []
    for length in (40, 60):
        tokens = rng.integers(0, 50, length)
        states = {t: torch.from_numpy(rng.normal(size=(length - 1, 50))) for t in range(9)}
        states[5][np.arange(length - 2), tokens[2:]] += 9.0
        out.append(Sample(tuple(tokens.tolist()), 10, states))
    return out


@pytest.mark.parametrize(("tap", "best"), [(4, 1), (5, 0), (6, -1)])
def test_taps_off_by_one_are_noticed(tap: int, best: int) -> None:
    """A.7 (3)."""
    config = HeadConfig("eagle3", 50, 50, 50, 50, heads=1, taps=(tap,))
    found = self_test(config, texts(), reader)
    assert found.tokens == 29 + 49 and found.acceptance[best] > 0.95
    assert all(a < 0.15 for o, a in found.acceptance.items() if o != best)
    if best:
        assert f"use [{tap + best}]" in found.warnings[0] and any("taps" in s for s in found.suspicions)
    else:
        assert not found.warnings and not found.suspicions


def test_tokens_outside_the_drafters_vocabulary_are_counted() -> None:
    config = HeadConfig("eagle3", 50, 50, 50, 25, taps=(5,))
    found = self_test(config, texts(), reader, torch.arange(0, 50, 2))
    truth = [t for s in texts() for t in s.tokens[s.first + 1 :]]
    assert found.outside == pytest.approx(sum(t % 2 for t in truth) / len(truth))


def test_what_is_asked_of_the_target() -> None:
    config = HeadConfig("eagle3", 8, 8, 32, 32, taps=(0, 5))
    assert wanted_states(config, 6).taps == (0, 1, 4, 5) and not wanted_states(config, 6).last_hidden
    assert wanted_states(replace(config, taps=()), 6).last_hidden
    assert len(suspicions(replace(config, heads=2, block=4))) > len(suspicions(config)) > 3
