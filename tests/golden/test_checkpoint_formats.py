"""Every published layout of drafters: synthetic checkpoints of its names and shapes load, and survive a round trip."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hedgerow.core.errors import ModelError
from hedgerow.draft.formats import Frozen, Head, load, rest, save, save_own
from hedgerow.draft.formats.table import BY_ID, ENGINES, LAYOUTS, OWN
from tests.golden.checkpoints import (
    CASES,
    FORMATS,
    GOLDEN,
    IDS,
    SIZES,
    mapped,
    put,
    settings,
    sizes,
    target,
    tensors,
    write,
)

MAPS = ("d2t", "t2d", "token_map")
UNUSED = ("prefix_embeding_layer.embed_tokens.weight",)
KINDS = {"eagle2": "eagle1", "hass": "eagle1", "p-eagle": "peagle", "hydra++": "hydra", "jetspec": "dflash"}
SAME_NAMES = [  # layouts whose names are the canonical ones once the golden file's own renames are applied
    i for i in IDS if not i.startswith(("medusa", "hydra", "mtp"))
]


def bits(found: dict[str, torch.Tensor]) -> list[tuple[tuple[int, ...], bytes]]:
    """Shapes and bytes of tensors, whatever they are called."""
    return sorted((tuple(t.shape), t.view(torch.int16).numpy().tobytes()) for t in found.values())


def renamed(layout: str, name: str) -> str:
    """A name as the golden file's rules change it."""
    rules = {**FORMATS["global_key_rules"]["synonyms"], **GOLDEN[layout].get("rename_to_eagle1", {})}
    for old, new in rules.items():
        name = new + name.removeprefix(old) if name.startswith(old) else name
    return name


def frozen(head: Head) -> Frozen:
    """The target's tensors of which some layouts keep a copy: the head's own where it has them."""
    c = head.config
    own = {name: head.tensors.get(f"{name}.weight") for name in ("embed_tokens", "lm_head")}
    if own["lm_head"] is not None and len(own["lm_head"]) != c.vocab:
        own["lm_head"] = None
    whole = [torch.randn(c.vocab, c.hidden).bfloat16() if t is None else t for t in own.values()]
    return Frozen(*whole)


def same(a: Head, b: Head) -> bool:
    """Equal facts, names and bits."""
    ids = (a.ids is None and b.ids is None) or (a.ids is not None and b.ids is not None and torch.equal(a.ids, b.ids))
    return ids and a.config == b.config and a.tensors.keys() == b.tensors.keys() and all(
        torch.equal(t, b.tensors[n]) and t.dtype == b.tensors[n].dtype for n, t in a.tensors.items()
    )


def test_the_table_has_every_layout_of_the_golden_file() -> None:
    assert set(BY_ID) == {*IDS, OWN} and len(LAYOUTS) == len(BY_ID)


@pytest.mark.parametrize(("layout", "variant"), CASES)
def test_a_layout_is_recognised_and_loses_no_bit(tmp_path: Path, layout: str, variant: str) -> None:
    found = write(tmp_path, layout, variant)
    head = load(tmp_path, target=target(layout, variant))
    assert head.origin == layout
    assert head.config.kind in {KINDS.get(d, d) for d in GOLDEN[layout]["drafter"]}
    ours = {n: t for n, t in found.items() if n not in (*MAPS, *UNUSED)}
    if "token_map" in found:              # rows are put in order of their ids
        order = found["token_map"].argsort()
        ours = {n: t[order] if n.startswith("lm_heads") else t for n, t in ours.items()}
    if layout == "mtp_qwen3next":         # norms are stored around zero
        ours = {n: 1 + t.float() if t.ndim == 1 else t for n, t in ours.items()}
    assert bits(head.tensors) == bits(ours)
    if layout in SAME_NAMES:
        assert head.tensors.keys() == {renamed(layout, n) for n in ours}
        assert all(torch.equal(t, head.tensors[renamed(layout, n)]) for n, t in ours.items())
    if "d2t" in found:
        assert head.ids is not None and torch.equal(head.ids, found["t2d"].nonzero().flatten())
        assert torch.equal(head.ids, torch.arange(SIZES["Vd"]) + found["d2t"])
    s = sizes(layout, variant)
    assert (head.config.hidden, head.config.target_hidden) == (s["H"], s["Ht"])
    assert head.config.vocab == s["V"] and (head.ids is None or head.config.draft_vocab == s["Vd"])


@pytest.mark.parametrize(("layout", "variant"), CASES)
def test_every_head_survives_our_own_layout_and_its_own(tmp_path: Path, layout: str, variant: str) -> None:
    write(tmp_path / "in", layout, variant)
    facts = target(layout, variant)
    head = load(tmp_path / "in", target=facts)
    assert same(head, load(save_own(head, tmp_path / "own", target=facts)))
    if BY_ID[layout].writer and not (layout == "eagle3_official" and variant != "bare"):    # it drops the embedding
        copies = frozen(head)
        back = load(save(head, tmp_path / "again", layout, target=facts, frozen=copies), target=facts)
        extra = set(back.tensors) - set(head.tensors)
        assert extra <= {"embed_tokens.weight", "lm_head.weight"}
        kept = Head(back.config, {n: t for n, t in back.tensors.items() if n not in extra}, back.ids)
        assert same(head, kept) and back.origin == layout


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_gets_the_golden_names(tmp_path: Path, engine: str) -> None:
    """What we export has exactly the names, shapes and types that the golden file gives for the layout."""
    for kind, layout in ENGINES[engine].items():
        variant = "full" if "speculators" in layout or layout in ("peagle", "medusa_vllm") else "bare"
        found = write(tmp_path / kind, layout, variant)
        head = load(tmp_path / kind, target=target(layout, variant))
        out = save(head, tmp_path / f"{kind}-out", engine, target=target(layout, variant), frozen=frozen(head))
        (weights,) = out.glob("*.safetensors")
        written = load_file(weights)
        assert {n: (t.shape, t.dtype) for n, t in written.items() if n != "embed_tokens.weight"} == {
            n: (t.shape, t.dtype) for n, t in found.items() if n != "embed_tokens.weight"
        }
        required = GOLDEN[layout]["config"].get("required", [])
        said = json.loads((out / "config.json").read_text(encoding="utf-8"))
        assert set(required) <= set(said) and all(
            said.get(k) == v for k, v in GOLDEN[layout]["config"].get("constant", {}).items()
        )


def test_one_head_goes_to_both_engines(tmp_path: Path) -> None:
    """The same bits for vLLM and SGLang, every flag said, the rotation under its old and new keys."""
    found = {n: t for n, t in tensors("eagle3_official", "other").items() if n != "embed_tokens.weight"}
    put(tmp_path / "in", settings("eagle3_official", "other", set(found)), found)
    facts = target("eagle3_official", "other")
    head = load(tmp_path / "in", target=facts)
    vllm = save(head, tmp_path / "vllm", "vllm", target=facts, frozen=frozen(head))
    sglang = save(head, tmp_path / "sglang", "sglang", target=facts)
    for out in (vllm, sglang):
        back = load(out, target=facts)
        assert back.config == head.config and all(torch.equal(t, back.tensors[n]) for n, t in head.tensors.items())
    assert load_file(sglang / "model.safetensors").keys() == found.keys()
    said = json.loads((vllm / "config.json").read_text(encoding="utf-8"))
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    assert [said[f] for f in flags] == [False] * 4 and "model_type" not in said
    body = said["transformer_layer_config"]
    assert body["rope_theta"] == body["rope_parameters"]["rope_theta"] == 12345.0 and body["model_type"] == "qwen3"
    assert said["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
    assert "eagle_config" not in json.loads((sglang / "config.json").read_text(encoding="utf-8"))  # the usual taps


def test_midlayer_and_layers_0_are_one_drafter(tmp_path: Path) -> None:
    """A.7 (2): the same tensors under either prefix load as the same head."""
    found = write(tmp_path / "a", "eagle3_official", "full")
    config = settings("eagle3_official", "full", set(found))
    put(tmp_path / "b", config, {f"model.{re.sub('^midlayer', 'layers.0', n)}": t for n, t in found.items()})
    facts = target("eagle3_official", "full")
    assert same(load(tmp_path / "a", target=facts), load(tmp_path / "b", target=facts))


def test_a_rest_datastore_is_read_and_is_no_head(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = []
    for n in (5, 1, 300):
        text = rng.integers(0, 1 << 16, n).astype(np.uint16)
        order = sorted(range(n), key=lambda i, text=text: text[i:].tolist())  # type: ignore[misc]
        parts.append(rest.SubIndex(text, np.array(order, np.int32)))
    file = tmp_path / "store.idx"
    rest.write(file, parts)
    raw = file.read_bytes()
    assert raw[:4] == (10).to_bytes(4, "little") and raw[14:18] == (20).to_bytes(4, "little")
    back = rest.read(file)
    for ours, theirs in zip(back, parts, strict=True):
        assert (ours.tokens == theirs.tokens).all() and (ours.suffixes == theirs.suffixes).all()
    with pytest.raises(ModelError, match="datastore"):
        load(tmp_path)
    with pytest.raises(ModelError, match="datastore"):
        load(file)
    for cut in (2, 8, len(raw) - 3):
        file.write_bytes(raw[:cut])
        with pytest.raises(ModelError, match=r"ends inside|cut short"):
            rest.read(file)


def test_maps_are_drawn_apart() -> None:
    """The kit's own maps are what the golden file says, or the tests above would agree on nonsense."""
    torch.manual_seed(0)
    both = mapped("eagle3_official", {"d2t": torch.empty(0), "t2d": torch.empty(0)})
    assert int(both["t2d"].sum()) == SIZES["Vd"] and int(both["d2t"].min()) >= 0
