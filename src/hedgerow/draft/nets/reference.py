"""The reference network of EAGLE heads, P-EAGLE and multi-token modules, in torch's operators.

They differ in three places only: how features enter (`fuse`), how token and feature meet (`Front`), and which state is
fed back. All else is a decoder layer.

    Joined   x = fc [norm? e; norm? f] + b          an ordinary layer follows     EAGLE-1, HASS, MTP
    Wide     r = g (or norm g), x = [norm e; norm g]   attention over twice the width   EAGLE-3, P-EAGLE
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int

from hedgerow.core.errors import ModelError
from hedgerow.core.parts import Feats
from hedgerow.draft.base import Base, fitted
from hedgerow.draft.formats.head import Head, HeadConfig
from hedgerow.draft.nets.base import HeadOut
from hedgerow.draft.nets.rotary import Rotary
from hedgerow.systems.attention import MIN_ROWS, Span, StepAttention, Workspace
from hedgerow.systems.kv import KVStore
from hedgerow.systems.rank import ranks_of

Weight = torch.Tensor | None


@dataclass(frozen=True)
class Tensors:
    """A head's tensors by name, in the type and place they run in; `kind` is for errors."""

    kind: str
    named: dict[str, torch.Tensor]

    def find(self, name: str) -> Weight:
        """A tensor that need not be there."""
        return self.named.get(name)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.named:
            raise ModelError(f"the {self.kind} drafter lacks the tensor {name!r}, without which it cannot be run")
        return self.named[name]

    def linear(self, name: str) -> _Linear:
        """The product of that name, with its bias where it has one."""
        return _Linear(self[f"{name}.weight"], self.find(f"{name}.bias"))

    def side_by_side(self, *names: str) -> _Linear:
        """Products of one input as one."""
        parts = [self.linear(n) for n in names]
        bias = None
        if any(p.bias is not None for p in parts):
            bias = torch.cat([p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in parts])
        return _Linear(torch.cat([p.weight for p in parts]), bias)


class _Linear(NamedTuple):
    weight: torch.Tensor
    bias: Weight = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class _Norm:
    """x / √(mean x² + ε) · w; the identity without a weight."""

    weight: Weight
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.weight is None else F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True)
class _Layer:
    """One decoder layer; the first one's input norm is the front's affair where it has one."""

    norm_in: _Norm
    norm_mid: _Norm
    norm_q: _Norm
    norm_k: _Norm
    qkv: _Linear
    out: _Linear
    gate_up: _Linear
    down: _Linear

    @classmethod
    def of(cls, t: Tensors, at: str, config: HeadConfig, norm_in: bool) -> _Layer:
        def norm(name: str) -> _Norm:
            return _Norm(t.find(f"{at}{name}.weight"), config.eps)

        qkv = t.side_by_side(*(f"{at}self_attn.{x}_proj" for x in "qkv"))
        rows = (config.heads + 2 * config.kv_heads) * config.head_dim
        if len(qkv.weight) != rows:
            raise ModelError(
                f"the {t.kind} drafter's queries, keys and values have {len(qkv.weight)} rows, not the {rows} of "
                f"{config.heads} and {config.kv_heads} heads of {config.head_dim}: attention of this kind is not run"
            )
        return cls(
            norm("input_layernorm") if norm_in else _Norm(None, config.eps), norm("post_attention_layernorm"),
            norm("self_attn.q_norm"), norm("self_attn.k_norm"), qkv, t.linear(f"{at}self_attn.o_proj"),
            t.side_by_side(f"{at}mlp.gate_proj", f"{at}mlp.up_proj"), t.linear(f"{at}mlp.down_proj"),
        )


class Entered(NamedTuple):
    """The residual stream as it enters the first layer, and what that layer's attention reads."""

    residual: Float[torch.Tensor, "rows hidden"]
    seen: Float[torch.Tensor, "rows width"]


Front = Callable[[torch.Tensor, torch.Tensor], Entered]     # (embeddings, features of the rows)


class Form(NamedTuple):
    """How a kind of head differs from the others."""

    fuse: Callable[[torch.Tensor], torch.Tensor]            # [A, rows, target_hidden] -> [rows, hidden]
    front: Front
    norm: _Norm                                             # before the output matrix
    layers: tuple[str, ...]                                 # where their tensors are
    norm_in: bool = True                                    # layer 0 has an input norm of its own
    feed_normed: bool = False                               # the state fed back is the normed one


def _joined(fc: _Linear, norm_e: _Norm, norm_f: _Norm) -> Front:
    """x = fc [norm? e; norm? f] + b."""

    def front(e: torch.Tensor, f: torch.Tensor) -> Entered:
        x = fc(torch.cat([norm_e(e), norm_f(f)], -1))
        return Entered(x, x)

    return front


def _only(raw: torch.Tensor) -> torch.Tensor:
    return raw[0]


def eagle(t: Tensors, config: HeadConfig) -> Form:
    """The feature is the target's last hidden state; layer 0 reads what fc made, mostly as it is; no final norm."""
    norms = (_Norm(t.find(f"{name}_layernorm.weight"), config.eps) for name in ("embedding", "hidden_states"))
    layers = tuple(f"layers.{i}." for i in range(config.layers))
    final = _Norm(t.find("norm.weight"), config.eps)
    return Form(_only, _joined(t.linear("fc"), *norms), final, layers, norm_in=config.norm_input)


def module(t: Tensors, config: HeadConfig) -> Form:
    """A module trained with the target, the first of them: used again and again on its own normed output."""
    at = "mtp_layers.0."
    norms = (_Norm(t[f"{at}{name}_layernorm.weight"], config.eps) for name in ("token", "hidden"))
    final = _Norm(t[f"{at}final_layernorm.weight"], config.eps)
    return Form(_only, _joined(t.linear(f"{at}input_proj"), *norms), final, (at,), feed_normed=True)


def wide(t: Tensors, config: HeadConfig) -> Form:
    """g = fc [taps], with the norms its flags name; attention reads [norm e; norm g], the residual is g."""
    eps, fc = config.eps, t.linear("fc")
    norm_e, norm_g = _Norm(t["layers.0.input_layernorm.weight"], eps), _Norm(t["layers.0.hidden_norm.weight"], eps)
    whole = _Norm(t["input_norm.weight"] if config.norm_before_fc else None, eps)
    count = max(1, len(config.taps))
    each = [_Norm(t[f"fc_norm.{i}.weight"] if config.fc_norm else None, eps) for i in range(count)]

    def fuse(raw: torch.Tensor) -> torch.Tensor:
        return fc(whole(torch.cat([norm(x) for norm, x in zip(each, raw, strict=True)], -1)))

    def front(e: torch.Tensor, g: torch.Tensor) -> Entered:
        normed = norm_g(g)
        return Entered(normed if config.norm_before_residual else g, torch.cat([norm_e(e), normed], -1))

    layers = tuple(f"layers.{i}." for i in range(config.layers))
    norm = _Norm(t["norm.weight"], eps)
    return Form(fuse, front, norm, layers, norm_in=False, feed_normed=config.norm_output)


FORMS: dict[str, Callable[[Tensors, HeadConfig], Form]] = {
    "eagle1": eagle, "eagle3": wide, "peagle": wide, "mtp": module,
}


def _law(logits: torch.Tensor) -> torch.Tensor:
    """log Σ exp and −Σ p log p of every row."""
    total = logits.logsumexp(1, keepdim=True)
    weight = (logits - total).exp()
    return torch.cat([total, total - (weight * logits).sum(1, keepdim=True)], 1)


def _of_target(base: Base, ids: np.ndarray | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """The target's output matrix, over the drafter's ids."""
    if ids is None:
        return base.head
    some = torch.from_numpy(ids).to(base.device)
    return lambda x: base.head(x)[:, some]


class TorchHead:
    """A `HeadNet` (and a `SlotNet` where it has `mask_hidden`) over a `Head`, of the target's type and device.

    Raises: ModelError for a missing tensor or a size that does not fit the target's.

    Source: EAGLE (2401.15077) section 3, EAGLE-3 (2503.01840) section 3, P-EAGLE (2602.01469), DeepSeek-V3 (2412.19437)
    section 2.2.
    """

    def __init__(self, head: Head, base: Base) -> None:
        config = self.config = head.config
        self.dtype, self.device = base.dtype, base.device
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.head_dim, self.mask_token = config.head_dim, config.mask_token or 0
        tensors, self.ids = fitted(head, base)
        t = Tensors(config.kind, tensors)
        self.form = FORMS[config.kind](t, config)
        self.layers = len(self.form.layers)
        self._layers = [
            _Layer.of(t, at, config, i > 0 or self.form.norm_in) for i, at in enumerate(self.form.layers)
        ]
        own = t.find("embed_tokens.weight")
        self._embedding = base.embedding.to(base.dtype) if own is None else own
        if self._embedding.shape[1] != config.hidden:
            raise ModelError(
                f"the drafter is {config.hidden} wide, its embedding {self._embedding.shape[1]}: a drafter of another "
                "width than its target brings an embedding of its own"
            )
        own = t.find("lm_head.weight")
        self._logits = _of_target(base, self.ids) if own is None else _Linear(own)
        raw = t.find("mask_hidden")
        self._blank = None if raw is None else self.form.fuse(raw.view(max(1, len(config.taps)), 1, -1))[0]
        self._rotary = Rotary(config, base.dtype, base.device)
        self._workspace = Workspace()

    @torch.inference_mode()
    def fuse(self, feats: Feats) -> Float[torch.Tensor, "rows hidden"]:
        """As `HeadNet.fuse`; taps are taken by their names where the features carry them."""
        return self.form.fuse(self._raw(feats).to(self.device, self.dtype))

    def _raw(self, feats: Feats) -> torch.Tensor:
        taps = self.config.taps
        if not taps:
            return feats.last_hidden[None]
        if feats.tapped in ((), taps):
            return feats.taps
        return feats.taps[[feats.tapped.index(k) for k in taps]]

    @property
    def blank(self) -> Float[torch.Tensor, " hidden"]:
        """As `SlotNet.blank`: the learned raw feature, fused like a real one. Raises ModelError without one."""
        if self._blank is None:
            raise ModelError("the drafter has no tensor 'mask_hidden', so it cannot draft positions without features")
        return self._blank

    @torch.inference_mode()
    def run(
        self, kv: KVStore, tokens: Int[np.ndarray, " rows"], features: Float[torch.Tensor, "rows hidden"],
        positions: Int[np.ndarray, " rows"], spans: Sequence[Span], keep: Sequence[int], top: int,
    ) -> HeadOut:
        """As `HeadNet.run`; never fewer than `MIN_ROWS` rows go through the products."""
        rows, short = len(tokens), max(0, MIN_ROWS - len(tokens))
        if short:
            blank = np.zeros(short, np.int64)
            tokens, positions = np.concatenate([tokens, blank]), np.concatenate([positions, blank])
            features = F.pad(features, (0, 0, 0, short))
        self._rotary.reach(int(positions.max()))
        at = torch.from_numpy(positions).to(self.device)
        e = F.embedding(torch.from_numpy(tokens).to(self.device), self._embedding)
        if self.config.embedding_scale != 1.0:
            e = e * self.config.embedding_scale
        step = StepAttention(kv, spans, rows + short, self.heads, self._workspace)
        out = self._body(e, features, step, *self._rotary.at(at))
        normed = self.form.norm(out)
        kept = normed[torch.tensor(list(keep), dtype=torch.int64, device=self.device)]
        logits = self._logits(kept).float()
        hidden = (normed if self.form.feed_normed else out)[:rows]
        return HeadOut(logits, hidden, ranks_of(logits, top), _law(logits) if top else None)

    def _body(
        self, e: torch.Tensor, features: torch.Tensor, step: StepAttention, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """All layers; the output before the final norm."""
        residual, seen = self.form.front(e, features)
        total, scale = len(seen), self.head_dim**-0.5
        for i, y in enumerate(self._layers):
            x = y.norm_in(seen if not i else residual)
            q, k, v = y.qkv(x).view(total, -1, self.head_dim).transpose(0, 1).split(
                [self.heads, self.kv_heads, self.kv_heads]
            )
            step.write(i, self._rotary.turn(y.norm_k(k), cos, sin), v)
            mixed = step.attend(i, self._rotary.turn(y.norm_q(q), cos, sin), scale)
            residual = residual + y.out(mixed.reshape(total, -1))
            gate, up = y.gate_up(y.norm_mid(residual)).chunk(2, -1)
            residual = residual + y.down(F.silu(gate) * up)
        return residual
