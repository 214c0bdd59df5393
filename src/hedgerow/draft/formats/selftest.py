"""Does a loaded drafter draft? How often its first guess is the target's next token, also with its taps one off.

An index off by one in the taps is the commonest fault of a drafter's file, and nothing but this shows it: the shapes
fit, and most guesses are wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hedgerow.core.parts import Ask, Drafter, Feats, Frontier, Needs, RowGroup, Sampling, Step, Target, Verdict, View
from hedgerow.core.rng import Rng
from hedgerow.core.tree import ROOT, TokenTree
from hedgerow.draft.formats.head import Head, HeadConfig

OFFSETS = (-1, 0, 1)
SUSPICIOUS = 0.15                         # first-token acceptance below which something is wrong
CLEARLY = 0.05                            # another offset must be better by more: about two deviations of 200 tokens
Guess = Callable[[Feats, Sequence[int], int], list[int]]
"""(features of the rows of all tokens but the last, tokens, first root) -> a guess of the token after each root."""


@dataclass(frozen=True)
class Sample:
    """A text the target wrote: its tokens, the first root to judge, its hidden states by index (-1: the last)."""

    tokens: tuple[int, ...]
    first: int
    states: dict[int, torch.Tensor]       # [rows, hidden], rows of all tokens but the last


@dataclass(frozen=True)
class SelfTest:
    """Acceptance of the first guess, by offset of the taps; `outside`: share of tokens the drafter cannot name."""

    tokens: int
    acceptance: dict[int, float]
    outside: float
    warnings: list[str] = field(default_factory=list)
    suspicions: list[str] = field(default_factory=list)


def self_test(config: HeadConfig, samples: Sequence[Sample], guess: Guess, ids: torch.Tensor | None = None) -> SelfTest:
    """Measure a drafter on texts of its target; offsets that would leave the target's layers are left out.

    acceptance(o) = share of roots whose guess, from taps + o, is the token the target wrote. Nothing is mutated.
    """
    truth = [t for s in samples for t in s.tokens[s.first + 1 :]]
    acceptance: dict[int, float] = {}
    for offset in OFFSETS if config.taps else (0,):
        wanted = tuple(t + offset for t in config.taps)
        if all(t in s.states for s in samples for t in wanted):
            said = [g for s in samples for g in guess(features(s, wanted), s.tokens, s.first)]
            acceptance[offset] = sum(a == b for a, b in zip(said, truth, strict=True)) / max(len(truth), 1)
    known = None if ids is None else set(ids.tolist())
    outside = 0.0 if known is None else sum(t not in known for t in truth) / max(len(truth), 1)
    best = max(acceptance, key=lambda o: (acceptance[o], o == 0))
    warnings = []
    if acceptance[best] > acceptance[0] + CLEARLY:
        warnings.append(
            f"taps {list(config.taps)} are accepted {acceptance[0]:.1%} of the time, {best:+d} would be "
            f"{acceptance[best]:.1%}: the file counts layers in another way, use {[t + best for t in config.taps]}"
        )
    return SelfTest(
        len(truth), acceptance, outside, warnings, suspicions(config) if acceptance[0] < SUSPICIOUS else []
    )


def suspicions(config: HeadConfig) -> list[str]:
    """What to look at when a drafter is hardly ever right, the likeliest first."""
    out = [f"taps: {list(config.taps)} as hidden_states indices; a file may count one lower or higher"] if (
        config.taps
    ) else ["the feature: it reads the last hidden state, after the final norm"]
    if config.heads:
        out.append(
            f"rotary base: {config.rope_theta:g} by its config.json; many heads were trained with 10000, some with the "
            "target's"
        )
    if config.kind in ("eagle3", "peagle"):
        flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        out.append(f"norms: {', '.join(f'{f} {str(getattr(config, f)).lower()}' for f in flags)}; engines differ")
    if config.block:
        start = "predicts already" if config.from_anchor else "is the known token"
        out.append(f"block: {config.block} slots, the first {start}; mask token {config.mask_token}")
    return [
        *out, "overflow: heads stored in fp16 that need bf16",
        "chat template: it was trained under another than the target's",
        f"embedding scale: {config.embedding_scale:g}; some targets multiply their embedding",
    ]


def wanted_states(config: HeadConfig, layers: int) -> Needs:
    """What the target must return for a self-test: the taps at every offset; layer `layers`' output only if declared.

    >>> wanted_states(HeadConfig("eagle3", 8, 8, 32, 32, taps=(2, 5)), 6).taps
    (1, 2, 3, 4, 5)
    """
    most = max(layers - 1, *config.taps) if config.taps else 0
    taps = {t + o for t in config.taps for o in OFFSETS if 0 <= t + o <= most}
    return Needs(taps=tuple(sorted(taps)), last_hidden=not config.taps)


def sample_of(target: Target, needs: Needs, prompt: Sequence[int], written: Sequence[int]) -> Sample:
    """Run a prompt and what the target wrote after it through the target, once, for its hidden states."""
    tokens = (*prompt, *written)
    rows = len(tokens) - 1
    slot = target.acquire()
    try:
        group = RowGroup("prefill", slot, np.array(tokens[:-1]), np.arange(rows), np.empty((rows, 0), np.bool_))
        _, feats = target.collect(target.submit([group], needs))
        states = dict(zip(needs.taps, feats[0].taps, strict=True)) if needs.taps else {}
        if needs.last_hidden:
            states[-1] = feats[0].last_hidden
        return Sample(tokens, len(prompt), states)
    finally:
        target.release(slot)


def features(sample: Sample, taps: tuple[int, ...]) -> Feats:
    """The features of a sample's rows at these taps, () being the last hidden state."""
    if not taps:
        return Feats(last_hidden=sample.states[-1])
    return Feats(taps=torch.stack([sample.states[t] for t in taps]))


def through(drafter: Drafter) -> Guess:
    """A drafter as a `Guess`: it follows the text as in plain decoding and is asked for one child of every root."""
    calls = itertools.count()             # a tenant each: no call may re-use what another saw of the same tokens

    def guess(feats: Feats, tokens: Sequence[int], first: int) -> list[int]:
        out = []
        drafter.begin(0, list(tokens[: first + 1]), _rows(feats, 0, first), f"self-test {next(calls)}")
        try:
            for at in range(first, len(tokens) - 1):
                view = View(0, 0, tokens[at], at, 1, Sampling(), Rng(0))
                found = drafter.children([Ask(0, Frontier([ROOT], [1]), view)])
                out.append(int(found.token[0]) if len(found.token) else -1)
                done = Verdict((), tokens[at + 1], "bonus")
                drafter.commit(0, Step(TokenTree.empty(), done, _rows(feats, at, at + 1), tokens[at], at, 0.0))
        finally:
            drafter.release(0)
        return out

    return guess


def _rows(feats: Feats, begin: int, end: int) -> Feats:
    return Feats(
        taps=None if feats.taps is None else feats.taps[:, begin:end],
        last_hidden=None if feats.last_hidden is None else feats.last_hidden[begin:end],
    )


def facts(head: Head) -> dict[str, Any]:
    """What a report says of a head: its layout, sizes and flags, and what was assumed when it was read."""
    c = head.config
    shown: dict[str, Any] = {
        "layout": head.origin, "kind": c.kind, "parameters": sum(t.numel() for t in head.tensors.values()),
        "bytes": sum(t.numel() * t.element_size() for t in head.tensors.values()),
        "dtype": ", ".join(sorted({str(t.dtype).removeprefix("torch.") for t in head.tensors.values()})),
        "hidden": c.hidden, "target_hidden": c.target_hidden, "vocab": c.vocab, "draft_vocab": c.draft_vocab,
        "layers": c.layers, "heads": c.count or None, "taps": list(c.taps),
        "rope_theta": c.rope_theta if c.heads else None,
        "block": c.block or None, "own_embedding": "embed_tokens.weight" in head.tensors,
        "own_head": any(n.endswith("lm_head.weight") for n in head.tensors), "notes": head.facts.get("notes", []),
    }
    return {**shown, "card": {k: v for k, v in head.facts.items() if k != "notes"}}
