"""Which transformers models the compiled forward pass can run, and how their weights get there.

A model qualifies by its modules — root-mean-square norms, rotary grouped-query attention, gated SiLU products, each
under its usual name — and then by the same self-test every model passes: the rows of a small tree against the model's
own forward pass. What the modules do not show (another residual, a cap, another rotation) fails there, and the model
runs on torch's operators.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import nn

from hedgerow.core.errors import ModelError
from hedgerow.core.parts import Needs
from hedgerow.models.runner import NetOut, Network
from hedgerow.systems.attention import Span
from hedgerow.systems.clusters import clusters
from hedgerow.systems.kv import KVStore
from hedgerow.systems.native import Decoder, LayerWeights, Matrix, Rows, Weights, interleave, matrix

SHARED = 256                              # keys; fewer are read from the processor's caches anyway
TILE = 12                                 # queries that meet a block of keys at once, as in kernels.h
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class NativeNet(Network):
    """A `Network` whose whole pass is one call of the compiled library.

    `seconds`: if set, the time of each part of a pass (`systems.native.PARTS`) is added to it. `shared`: the fewest
    keys that requests have in common for these to be read once for all of them; it changes no bit of a row.
    """

    streamed = None
    shared = SHARED

    def __init__(self, decoder: Decoder, config: Any, model: Any) -> None:
        w = decoder.weights
        self.decoder, self.config, self.model = decoder, config, model
        self.vocab, self.layers, self.heads = w.vocab, len(w.layers), w.heads
        self.kv_heads, self.head_dim = w.kv_heads, w.head_dim
        self.dtype, self.device = torch.bfloat16, torch.device("cpu")
        self.seconds: np.ndarray | None = None

    @property
    def tolerance(self) -> float:
        """Wider for int8, whose weights are others; a wrong structure is off by more than the spread."""
        return 0.25 if self.decoder.weights.head.kind == "bf16" else 0.7

    def run(
        self, kv: KVStore, tokens: Int[np.ndarray, " rows"], positions: Int[np.ndarray, " rows"], spans: Sequence[Span],
        keep: Sequence[int], needs: Needs,
    ) -> NetOut:
        """As `Network.run`; any number of rows."""
        tables = [np.ascontiguousarray(kv.table(s.slot)[0], np.int32) for s in spans]
        rows = []
        for c in clusters(tables, [s.prefix for s in spans], kv.pool.shape[3], self.shared):
            fill = self._fill(sum(spans[i].rows for i in c.members), len(c.members))
            for i in c.members:
                s, sees = spans[i], np.ascontiguousarray(spans[i].ancestors).view(np.uint8)
                joined = c.shared if fill and i != c.members[0] else 0
                rows.append(Rows(s.start, s.rows, s.prefix, sees, tables[i], joined))
        out = self.decoder.forward(
            kv.pool, np.ascontiguousarray(tokens, np.int64), np.ascontiguousarray(positions, np.int64), rows,
            np.array(keep, np.int64), [t % (self.layers + 1) for t in needs.taps], needs.last_hidden, needs.top_k,
            self.seconds,
        )
        return NetOut(out.logits, out.taps, out.last_hidden, out.ranks)

    def _fill(self, rows: int, members: int) -> bool:
        """Whether rows of requests fill the kernel's tiles of 12 queries together and not each on its own."""
        queries = rows * self.heads // self.kv_heads
        return queries >= 2 * TILE and queries < TILE * members

    def first(self, layers: int) -> NativeNet:
        """A network of the first layers with the same embedding, norm and head; no weight is copied."""
        w = dataclasses.replace(self.decoder.weights, layers=self.decoder.weights.layers[:layers])
        return NativeNet(Decoder(self.decoder.library, w, self.decoder.angles), self.config, None)

    def let_go(self) -> None:
        """Drop the transformers model: its weights lie in panels now, and only the embedding is still read there."""
        self.model = None


def compiled_net(model: Any, library: ctypes.CDLL, quant: str) -> NativeNet:
    """A loaded bf16 model on the CPU as a `NativeNet`; `quant` is `none` or `int8`. The model is left as it is.

    Raises: ModelError with the reason, where its modules are not of the kind the library runs.
    """
    kind = "bf16" if quant == "none" else quant
    base, head = getattr(model, model.base_model_prefix), model.get_output_embeddings()
    names = {name for name, _ in base.named_children()}
    if names != {"embed_tokens", "layers", "norm", "rotary_emb"} or type(head) is not nn.Linear:
        raise ModelError(f"its body has the parts {', '.join(sorted(names))}")
    config, layers = model.config, [_layer(y, model.config, kind) for y in base.layers]
    attention = base.layers[0].self_attn
    heads = int(config.num_attention_heads)
    dim = attention.q_proj.out_features // heads
    weights = Weights(
        hidden=base.embed_tokens.embedding_dim, heads=heads, kv_heads=attention.k_proj.out_features // dim,
        head_dim=dim, inner=base.layers[0].mlp.gate_proj.out_features, vocab=head.out_features, eps=_eps(base.norm),
        scale=float(attention.scaling), embedding=base.embed_tokens.weight.detach(), norm=_norm(base.norm),
        head=_matrix([head], kind), layers=tuple(layers),
    )
    if weights.hidden % 16 or dim % 64:
        raise ModelError(f"its hidden size is {weights.hidden} and a head's {dim}; multiples of 16 and 64 are compiled")
    if {_eps(n) for n in base.modules() if _is_norm(n)} != {weights.eps}:
        raise ModelError("its norms do not share one epsilon")
    rotary = base.rotary_emb

    def angles(positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            cos, sin = rotary(torch.zeros(1), torch.arange(positions)[None])
        return cos[0].float(), sin[0].float()

    return NativeNet(Decoder(library, weights, angles), config, model)


def _layer(layer: Any, config: Any, kind: str) -> LayerWeights:
    attention: Any = getattr(layer, "self_attn", None)
    mlp: Any = getattr(layer, "mlp", None)
    for module, allowed in ((layer, _LAYER), (attention, _ATTENTION), (mlp, _MLP)):
        names = {name for name, _ in module.named_children()} if isinstance(module, nn.Module) else {"nothing"}
        if strange := sorted(names - allowed):
            raise ModelError(f"a layer has the part {strange[0]}")
    x = torch.linspace(-4, 4, 33)
    if not torch.allclose(mlp.act_fn(x), nn.functional.silu(x), atol=1e-5):
        raise ModelError("its gate is not a SiLU")
    dim = attention.q_proj.out_features // int(config.num_attention_heads)
    norm_q, norm_k = (
        _norm(n) if (n := getattr(attention, name, None)) is not None else None for name in ("q_norm", "k_norm")
    )
    if any(n is not None and len(n) != dim for n in (norm_q, norm_k)):
        raise ModelError("its query and key norms do not run head by head")
    gate, up = mlp.gate_proj, mlp.up_proj
    bias = None
    if (gate.bias is None) != (up.bias is None):
        raise ModelError("only one of its gate and up products has a bias")
    if gate.bias is not None:
        bias = interleave(gate.bias.detach(), up.bias.detach())
    return LayerWeights(
        _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm), norm_q, norm_k,
        qkv=_matrix([attention.q_proj, attention.k_proj, attention.v_proj], kind),
        out=_matrix([attention.o_proj], kind),
        gate_up=matrix(interleave(gate.weight.detach(), up.weight.detach()), bias, kind),
        down=_matrix([mlp.down_proj], kind),
    )


def _matrix(linears: Sequence[Any], kind: str) -> Matrix:
    """Linears of one input as one product."""
    if any(type(m) is not nn.Linear or m.in_features % 4 for m in linears):
        raise ModelError("its products are not plain linears")
    bias = None
    if any(m.bias is not None for m in linears):
        bias = torch.cat([m.weight.new_zeros(m.out_features) if m.bias is None else m.bias.detach() for m in linears])
    weight = linears[0].weight if len(linears) == 1 else torch.cat([m.weight for m in linears])
    return matrix(weight.detach(), bias, kind)


def _is_norm(module: Any) -> bool:
    return type(module).__name__.endswith("RMSNorm")


def _eps(module: Any) -> float:
    return float(getattr(module, "variance_epsilon", getattr(module, "eps", None)) or 0.0)


def _norm(module: Any) -> torch.Tensor:
    """The weight of a norm. Raises ModelError if it is not x / √(mean x² + ε) · w."""
    weight = getattr(module, "weight", None)
    if not _is_norm(module) or weight is None or weight.ndim != 1 or not _eps(module):
        raise ModelError(f"it has norms of the kind {type(module).__name__}")
    x = torch.linspace(-3, 5, len(weight)).to(weight.dtype)
    with torch.no_grad():
        theirs, ours = module(x[None])[0], nn.functional.rms_norm(x, weight.shape, weight, _eps(module))
    if not torch.allclose(theirs.float(), ours.float(), rtol=0.02, atol=1e-3):
        raise ModelError("its norms are not plain root-mean-square norms")
    return weight.detach().float().contiguous()
