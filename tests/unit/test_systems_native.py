"""The compiled forward pass against a plain one in float32, and every row against itself in other company."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hedgerow.core.tree import TokenTree
from hedgerow.systems import compiled, mask
from hedgerow.systems.kv import Kind, KVStore, open_store
from hedgerow.systems.native import Decoder, LayerWeights, Out, Rows, Weights, group_of, interleave, matrix
from hedgerow.systems.rank import top_k

HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, LAYERS = 160, 4, 2, 64, 96, 333, 2
SCALE, EPS = DIM**-0.5, 1e-5

Raw = dict[str, torch.Tensor]


def angles(positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    inner = torch.arange(positions)[:, None] * 100.0 ** (-torch.arange(0, DIM, 2) / DIM)
    return torch.cat([inner.cos()] * 2, 1), torch.cat([inner.sin()] * 2, 1)


def raw_weights(seed: int) -> tuple[Raw, list[Raw]]:
    source = torch.Generator().manual_seed(seed)

    def draw(*shape: int, gain: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=source) * gain / shape[-1] ** 0.5).bfloat16()

    top = {
        "embedding": draw(VOCAB, HIDDEN, gain=12), "norm": 1 + draw(HIDDEN).float(), "head": draw(VOCAB, HIDDEN, gain=3)
    }
    qkv = (HEADS + 2 * KV_HEADS) * DIM
    layers = [
        {
            "norm_in": 1 + draw(HIDDEN).float(), "norm_mid": 1 + draw(HIDDEN).float(),
            "norm_q": 1 + draw(DIM).float(), "norm_k": 1 + draw(DIM).float(),
            "qkv": draw(qkv, HIDDEN), "qkv_bias": draw(qkv), "out": draw(HIDDEN, HEADS * DIM),
            "gate": draw(INNER, HIDDEN), "up": draw(INNER, HIDDEN), "down": draw(HIDDEN, INNER),
        }
        for _ in range(LAYERS)
    ]
    return top, layers


def decoder(library: ctypes.CDLL, kind: str, seed: int = 0) -> Decoder:
    top, layers = raw_weights(seed)
    made = tuple(
        LayerWeights(
            y["norm_in"], y["norm_mid"], y["norm_q"], y["norm_k"], matrix(y["qkv"], y["qkv_bias"], kind),
            matrix(y["out"], None, kind), matrix(interleave(y["gate"], y["up"]), None, kind),
            matrix(y["down"], None, kind),
        )
        for y in layers
    )
    weights = Weights(
        HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, EPS, SCALE, top["embedding"], top["norm"],
        matrix(top["head"], None, kind), made,
    )
    return Decoder(library, weights, angles)


def reference(tokens: list[int], seed: int = 0) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits and hidden states of a whole sequence, in float32."""
    top, layers = raw_weights(seed)
    cos, sin = (t[: len(tokens), None] for t in angles(len(tokens)))

    def turn(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    x = top["embedding"][tokens].float()
    states = []
    for y in layers:
        states.append(x)
        h = F.linear(F.rms_norm(x, (HIDDEN,), y["norm_in"], EPS), y["qkv"].float(), y["qkv_bias"].float())
        q, k, v = h.view(len(tokens), -1, DIM).split([HEADS, KV_HEADS, KV_HEADS], 1)
        q, k = turn(F.rms_norm(q, (DIM,), y["norm_q"], EPS)), turn(F.rms_norm(k, (DIM,), y["norm_k"], EPS))
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for t in (k, v))
        seen = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k[None], v[None], is_causal=True, scale=SCALE)[0]
        x = x + F.linear(seen.transpose(0, 1).flatten(1), y["out"].float())
        h = F.rms_norm(x, (HIDDEN,), y["norm_mid"], EPS)
        x = x + F.linear(F.silu(F.linear(h, y["gate"].float())) * F.linear(h, y["up"].float()), y["down"].float())
    x = F.rms_norm(x, (HIDDEN,), top["norm"], EPS)
    return F.linear(x, top["head"].float()), [*states, x]


def store(kind: Kind, slots: int = 2) -> KVStore:
    return open_store(kind, LAYERS, KV_HEADS, DIM, slots, 512, 128, torch.bfloat16, torch.device("cpu"))


def run(
    d: Decoder, kv: KVStore, parts: list[tuple[int, list[int], np.ndarray, np.ndarray]], top: int = 0,
    taps: tuple[int, ...] = (),
) -> Out:
    """One pass over (slot, tokens, positions, ancestors) behind what the slots hold; every row is kept."""
    spans, start = [], 0
    for slot, tokens, _, sees in parts:
        kv.stage(slot, len(tokens))
        spans.append(Rows(start, len(tokens), kv.length(slot), sees.astype(np.uint8), kv.table(slot)[0]))
        start += len(tokens)
    tokens = np.concatenate([t for _, t, _, _ in parts]).astype(np.int64)
    positions = np.concatenate([p for _, _, p, _ in parts]).astype(np.int64)
    return d.forward(kv.pool, tokens, positions, spans, np.arange(start), taps, bool(taps), top)


def chain(kv: KVStore, slot: int, tokens: list[int]) -> tuple[int, list[int], np.ndarray, np.ndarray]:
    n = len(tokens)
    return slot, tokens, np.arange(n) + kv.length(slot), mask.causal(n)


def branches(rng: np.random.Generator, nodes: int, at: int, root: int) -> tuple[TokenTree, list[int], np.ndarray]:
    tree = TokenTree.of(rng.integers(0, VOCAB, nodes), [int(rng.integers(-1, i)) for i in range(nodes)])
    return tree, [root, *tree.tokens.tolist()], tree.positions(at)


@pytest.mark.parametrize(("kind", "limit"), [("bf16", 0.03), ("int8", 0.06)])
@pytest.mark.parametrize("place", ["paged", "contiguous"])
@pytest.mark.parametrize("prefix", [1, 63, 200])
def test_every_path_of_a_tree_is_the_sequence_alone(
    library: ctypes.CDLL, kind: str, limit: float, place: Kind, prefix: int
) -> None:
    rng, d, kv = np.random.default_rng(prefix), decoder(library, kind), store(place)
    prompt = rng.integers(0, VOCAB, prefix).tolist()
    slot = kv.acquire()
    run(d, kv, [chain(kv, slot, prompt)])
    kv.commit(slot, range(prefix))
    tree, tokens, positions = branches(rng, 17, prefix, 5)
    out = run(d, kv, [(slot, tokens, positions, tree.mask)], taps=(0, 1, LAYERS))
    assert out.taps is not None and out.last_hidden is not None
    for node in range(-1, len(tree.tokens)):
        path = [] if node < 0 else list(tree.path(node))
        logits, states = reference([*prompt, 5, *(int(tree.tokens[i]) for i in path)])
        off = (out.logits[node + 1] - logits[-1]).pow(2).mean().sqrt() / logits[-1].std()
        assert off < limit, (node, off)
        for mine, state in zip(out.taps[:, node + 1].float(), (states[0], states[1], states[-1]), strict=True):
            assert (mine - state[-1]).pow(2).mean().sqrt() < limit * state[-1].std()
        assert torch.equal(out.last_hidden[node + 1], out.taps[2, node + 1])


@pytest.mark.parametrize("kind", ["bf16", "int8"])
@pytest.mark.parametrize("prefix", [2, 61, 64, 129])
def test_a_row_has_the_same_bits_in_any_company(library: ctypes.CDLL, kind: str, prefix: int) -> None:
    rng, d, kv = np.random.default_rng(prefix), decoder(library, kind), store("paged", 3)
    prompt = rng.integers(0, VOCAB, prefix).tolist()
    together, alone, other = (kv.acquire() for _ in range(3))
    run(d, kv, [chain(kv, together, prompt), chain(kv, other, prompt[: prefix // 2 + 1])])
    kv.commit(together, range(prefix))
    kv.commit(other, range(prefix // 2 + 1))
    for token in prompt:                  # one by one, where the other had them all at once
        run(d, kv, [chain(kv, alone, [token])])
        kv.commit(alone, [0])
    tree, tokens, positions = branches(rng, 29, prefix, 9)
    side = branches(rng, 6, prefix // 2 + 1, 3)
    out = run(d, kv, [(other, side[1], side[2], side[0].mask), (together, tokens, positions, tree.mask)])
    leaf = max(range(len(tree.tokens)), key=lambda i: len(tree.path(i)))
    path = list(tree.path(leaf))
    for step, (node, token) in enumerate(zip([-1, *path], [9, *tree.tokens[path]], strict=True)):
        one = run(d, kv, [chain(kv, alone, [int(token)])])
        kv.commit(alone, [0])
        assert torch.equal(one.logits[0], out.logits[7 + node + 1]), f"row {step} of the path"


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(library: ctypes.CDLL, threads: int) -> None:
    before = torch.get_num_threads()
    found = []
    for n in (1, threads):
        torch.set_num_threads(n)
        kv = store("contiguous")
        found.append(run(decoder(library, "bf16"), kv, [chain(kv, kv.acquire(), list(range(40)))]).logits)
    torch.set_num_threads(before)
    assert torch.equal(*found)


def test_ranks_are_those_of_the_reference_ties_to_the_lowest_id(library: ctypes.CDLL) -> None:
    top, _ = raw_weights(0)
    head = top["head"].clone()
    head[[7, 300, 332]] = head[100] * 2   # four equal rows but for a factor: exact ties
    head[100] = head[7]
    d = decoder(library, "bf16")
    d = Decoder(library, Weights(**{**vars(d.weights), "head": matrix(head, None, "bf16")}), angles)
    kv = store("paged")
    out = run(d, kv, [chain(kv, kv.acquire(), list(range(50)))], top=9)
    ids, values = top_k(out.logits, 9)
    assert torch.equal(out.ranks[:, 1:10].long(), ids) and torch.equal(out.ranks[:, 10:], values)
    assert torch.equal(out.ranks[:, 0].long(), ids[:, 0])
    assert any(7 in row and 100 in row for row in ids.tolist()), "the tied ids were met"


def test_groups_and_panels() -> None:
    assert [group_of(k) for k in (96, 576, 1536, 4096, 160, 100)] == [96, 96, 96, 64, 32, 100]
    w = torch.randn(40, 64)
    m = matrix(w, None, "int8")
    assert m.scale is not None and m.panels.shape == (2, 16, 32, 4)
    back = m.panels.permute(0, 2, 1, 3).reshape(64, 1, 64) * m.scale.T.reshape(64, 1, 1)
    assert (back[:40, 0] - w).abs().max() <= m.scale.max() / 2 + 1e-6
    assert not back[40:].any()


def test_without_a_compiler_or_with_a_broken_one_there_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = compiled.build(tmp_path, compilers=("no-such-compiler",))
    assert none.library is None and "C compiler" in none.why_not
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'error: out of paper' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    failed = compiled.build(tmp_path / "cache", compilers=("broken",))
    assert failed.library is None and "out of paper" in failed.why_not
    assert not list((tmp_path / "cache").glob("*.so")), "nothing half-made is left"
    monkeypatch.setattr(compiled, "_features", lambda: ("sse2",))
    old = compiled.build(tmp_path)
    assert old.library is None and "avx512f" in old.why_not


def test_a_second_build_takes_the_file_of_the_first(native_folder: Path) -> None:
    assert shutil.which("gcc") or shutil.which("cc")
    (made,) = native_folder.iterdir()                     # nothing else is left of the first
    stamp = made.stat().st_mtime_ns
    assert compiled.build(native_folder).library is not None
    assert made.suffix == ".so" and made.stat().st_mtime_ns == stamp and list(native_folder.iterdir()) == [made]
