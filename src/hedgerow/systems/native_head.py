"""The compiled forward pass of an EAGLE-3 drafter: its weights in panels, and the calls of it.

One call takes packed rows of many slots through all layers and returns, for the rows asked for, logits over the draft
vocabulary, their best ids, and the log-sum-exp and entropy of each row, so that the host need not touch a vocabulary.
The state fed back stays float32: it is the residual stream, and rounding it would save nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from hedgerow.systems import structs
from hedgerow.systems.native import Matrix, Weights, describe, linear
from hedgerow.systems.structs import Angles, Rotary, Rows, Scratch, address, store_of


@dataclass(frozen=True)
class HeadWeights:
    """`body`: a decoder over the target's embedding whose first q/k/v product reads [norm embedding; norm feature].

    Its `vocab` and `head` are the draft vocabulary's. `norm_taps` [taps · target hidden] (float32, or None) are the
    weights of one norm a tap, or with `norm_whole` of one over all taps.
    """

    body: Weights
    fc: Matrix
    taps: int
    target_hidden: int
    norm_feature: Float[torch.Tensor, " hidden"]
    norm_taps: Float[torch.Tensor, " inner"] | None = None
    norm_whole: bool = False
    normed_residual: bool = False
    normed_output: bool = False
    embedding_scale: float = 1.0

    @property
    def matrices(self) -> list[Matrix]:
        """Every product of a pass with logits, in order; `fc` is not among them."""
        return self.body.matrices


class HeadRun(NamedTuple):
    """Of kept rows: logits, `ranks` (best id, k best ids, their logits) and `law` (log-sum-exp, entropy in nats).

    `hidden`: of every row the state to feed back.
    """

    logits: Float[torch.Tensor, "kept draft_vocab"]
    hidden: Float[torch.Tensor, "rows hidden"]
    ranks: Float[torch.Tensor, "kept ranks"]
    law: Float[torch.Tensor, "kept 2"]


class Given:
    """What a call is given, copied to memory whose addresses are known: asking an array for its own costs more."""

    def __init__(self) -> None:
        self._spans = (structs.Span * 1)()
        self._make(64, 4096, 512)

    def _make(self, rows: int, seen: int, pages: int) -> None:
        self._numbers = np.empty((3, rows), np.int64)
        self._seen, self._pages = np.empty(seen, np.bool_), np.empty(pages, np.int32)
        self._at = tuple(a.ctypes.data for a in (*self._numbers, self._seen, self._pages))

    def fill(
        self, step: Any, tokens: Int[np.ndarray, " rows"], positions: Int[np.ndarray, " rows"], keep: Sequence[int],
        spans: Sequence[Rows],
    ) -> Any:
        """Write all of it, point `step` to it, and return the table of spans; valid until the next call."""
        rows, seen, pages = len(tokens), sum(s.sees.size for s in spans), sum(len(s.table) for s in spans)
        room = self._numbers.shape[1], len(self._seen), len(self._pages)
        if rows > room[0] or seen > room[1] or pages > room[2]:
            self._make(*(max(a, 2 * b) for a, b in zip(room, (rows, seen, pages), strict=True)))
        if len(spans) > len(self._spans):
            self._spans = (structs.Span * (2 * len(spans)))()
        numbers = self._numbers
        numbers[0, :rows], numbers[1, :rows], numbers[2, : len(keep)] = tokens, positions, keep
        step.tokens, step.positions, step.keep = self._at[:3]
        seen = pages = 0
        for to, s in zip(self._spans, spans, strict=False):
            to.start, to.rows, to.prefix, to.width = s.start, s.rows, s.prefix, s.sees.shape[1]
            to.sees, to.table = self._at[3] + seen, self._at[4] + 4 * pages
            self._seen[seen : seen + s.sees.size] = s.sees.ravel()
            self._pages[pages : pages + len(s.table)] = s.table
            seen, pages = seen + s.sees.size, pages + len(s.table)
        return self._spans


class HeadPass:
    """The compiled pass of one drafter."""

    def __init__(self, library: ctypes.CDLL, weights: HeadWeights, angles: Angles) -> None:
        self.library, self.weights = library, weights
        model, self._layers = describe(weights.body)
        w = weights
        self._drafter = structs.Drafter(
            model, w.taps, w.target_hidden, w.norm_whole, w.normed_residual, w.normed_output, w.embedding_scale,
            address(w.norm_feature), address(w.norm_taps), linear(w.fc),
        )
        self._rotary, self._scratch = Rotary(self._drafter.body, angles), Scratch()
        self._at, self._given, self._head = ctypes.byref(self._drafter), Given(), structs.HeadStep()
        integer, pointer = structs.INT, structs.POINTER
        for name, result, arguments in (
            ("scratch_bytes", integer, [pointer, integer, integer, integer]),
            ("head_forward", None, [pointer, pointer, pointer, integer, pointer]),
            ("fuse_bytes", integer, [pointer, integer, integer]),
            ("head_fuse", None, [pointer, pointer, integer, integer, integer, pointer, pointer, integer]),
        ):
            call = getattr(library, name)
            call.restype, call.argtypes = result, arguments

    def fuse(self, taps: Float[torch.Tensor, "taps rows target_hidden"]) -> Float[torch.Tensor, "rows hidden"]:
        """fc [tap 0; tap 1; …] of every row, with the norms before it; taps are read as bf16."""
        if taps.dtype != torch.bfloat16 or taps.stride(2) != 1:
            taps = taps.to(torch.bfloat16).contiguous()
        rows, threads = taps.shape[1], torch.get_num_threads()
        out = torch.empty(rows, self.weights.body.hidden)
        scratch = self._scratch.at(self.library.fuse_bytes(self._at, rows, threads))
        self.library.head_fuse(
            self._at, taps.data_ptr(), taps.stride(0), taps.stride(1), rows, out.data_ptr(), scratch, threads
        )
        return out

    def forward(
        self, pool: torch.Tensor, tokens: Int[np.ndarray, " rows"], features: Float[torch.Tensor, "rows hidden"],
        positions: Int[np.ndarray, " rows"], spans: Sequence[Rows], keep: Sequence[int], top: int = 0,
    ) -> HeadRun:
        """All rows (`tokens` of the target, `positions`) through all layers; logits of rows `keep`.

        `features` (float32, contiguous) are `fuse`d ones, or states fed back. `pool`: as in `Decoder.forward`.
        """
        w, threads = self.weights.body, torch.get_num_threads()
        rows, kept, top = len(tokens), len(keep), min(top, w.vocab)
        self._rotary.reach(max(positions.tolist()))
        logits, ranks, law = torch.empty(kept, w.vocab), torch.empty(kept, 1 + 2 * top), torch.empty(kept, 2)
        hidden = torch.empty(rows, w.hidden)
        head, most = self._head, max(s.prefix + s.sees.shape[1] for s in spans)
        table = self._given.fill(head.step, tokens, positions, keep, spans)
        step = head.step
        step.rows, step.kept, step.top, step.threads = rows, kept, top, threads
        step.logits, step.ranks = logits.data_ptr(), ranks.data_ptr()
        step.scratch = self._scratch.at(self.library.scratch_bytes(self._at, rows, most, threads))
        head.features, head.hidden, head.law = features.data_ptr(), hidden.data_ptr(), law.data_ptr()
        self.library.head_forward(self._at, ctypes.byref(store_of(pool)), table, len(spans), ctypes.byref(head))
        return HeadRun(logits, hidden, ranks, law)
