"""EAGLE-3 heads in the compiled library: the same network as the reference, one call a pass."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from hedgerow.core.errors import ModelError
from hedgerow.core.parts import Feats
from hedgerow.draft.base import Base
from hedgerow.draft.formats.head import Head
from hedgerow.draft.nets.base import HeadOut
from hedgerow.draft.nets.rotary import Rotary
from hedgerow.systems.attention import Span
from hedgerow.systems.kv import KVStore
from hedgerow.systems.native import LayerWeights, Matrix, Rows, Weights, interleave, matrix
from hedgerow.systems.native_head import HeadPass, HeadWeights

KINDS = ("eagle3", "peagle")              # heads whose first layer reads embedding and feature side by side


class CompiledHead:
    """A `HeadNet` (and a `SlotNet` where it has `mask_hidden`) whose pass is one call of the compiled library.

    Made by `compiled_head`. Its keys and values are bf16, the states it feeds back float32.
    """

    def __init__(self, head: Head, run: HeadPass) -> None:
        config, body = head.config, run.weights.body
        self.config, self.compiled = config, run
        self.layers, self.kv_heads, self.head_dim = len(body.layers), body.kv_heads, body.head_dim
        self.dtype, self.device, self.mask_token = torch.bfloat16, torch.device("cpu"), config.mask_token or 0
        self.ids = None if head.ids is None else head.ids.cpu().numpy().astype(np.int64)
        self._mask_hidden = head.tensors.get("mask_hidden")

    def fuse(self, feats: Feats) -> Float[torch.Tensor, "rows hidden"]:
        """As `HeadNet.fuse`; taps are taken by their names where the features carry them."""
        taps = self.config.taps
        if not taps:
            return self.compiled.fuse(feats.last_hidden[None])
        raw = feats.taps if feats.tapped in ((), taps) else feats.taps[[feats.tapped.index(k) for k in taps]]
        return self.compiled.fuse(raw)

    @property
    def blank(self) -> Float[torch.Tensor, " hidden"]:
        """As `SlotNet.blank`: the learned raw feature, fused like a real one."""
        if self._mask_hidden is None:
            raise ModelError("the drafter has no tensor 'mask_hidden', so it cannot draft positions without features")
        return self.compiled.fuse(self._mask_hidden.view(self.compiled.weights.taps, 1, -1))[0]

    def run(
        self, kv: KVStore, tokens: Int[np.ndarray, " rows"], features: Float[torch.Tensor, "rows hidden"],
        positions: Int[np.ndarray, " rows"], spans: Sequence[Span], keep: Sequence[int], top: int,
    ) -> HeadOut:
        """As `HeadNet.run`; any number of rows, each with the bits it has alone."""
        rows = [Rows(s.start, s.rows, s.prefix, s.ancestors, kv.table(s.slot)[0]) for s in spans]
        out = self.compiled.forward(kv.pool, tokens, features.float().contiguous(), positions, rows, keep, top)
        return HeadOut(out.logits, out.hidden, out.ranks, out.law)


def compiled_head(head: Head, base: Base, library: ctypes.CDLL, kind: str) -> CompiledHead:
    """A head over a target in bf16 on the CPU; `kind` of its weights: `bf16` or `int8`.

    Raises: ModelError with the reason, where the library does not run its like.
    """
    c, tensors = head.config, _Tensors(head)
    if c.kind not in KINDS:
        raise ModelError(f"a drafter of the kind {c.kind!r}; compiled are {', '.join(KINDS)}")
    if base.device.type != "cpu" or base.dtype != torch.bfloat16:
        raise ModelError(f"its target is in {base.dtype} on {base.device}; compiled are bf16 and int8 on the CPU")
    if c.hidden % 16 or c.target_hidden % 16 or c.head_dim % 64:
        raise ModelError(
            f"its hidden size is {c.hidden}, its target's {c.target_hidden} and a head's {c.head_dim}; multiples of "
            "16, 16 and 64 are compiled"
        )
    embedding, output = tensors.find("embed_tokens.weight"), tensors.find("lm_head.weight")
    embedding = (base.embedding if embedding is None else embedding).to(torch.bfloat16).contiguous()
    if embedding.shape[1] != c.hidden:
        raise ModelError(f"it is {c.hidden} wide and the target's embedding {embedding.shape[1]}")
    if output is None:
        output = base.output()
        output = output if head.ids is None else output[head.ids.to(output.device)]
    taps = max(1, len(c.taps))
    norm_taps = None
    if c.norm_before_fc:
        norm_taps = tensors.norm("input_norm.weight")
    elif c.fc_norm:
        norm_taps = torch.cat([tensors.norm(f"fc_norm.{i}.weight") for i in range(taps)])
    layers = tuple(_layer(tensors, f"layers.{i}.", kind) for i in range(c.layers))
    fc = tensors.matrix(kind, "fc")
    wanted = ((c.heads + 2 * c.kv_heads) * c.head_dim, 2 * c.hidden), (c.hidden, taps * c.target_hidden)
    if ((layers[0].qkv.n, layers[0].qkv.k), (fc.n, fc.k)) != wanted:
        raise ModelError(
            f"its first q/k/v product is {layers[0].qkv[1:3]} and its fc {fc[1:3]}; its config makes them {wanted}"
        )
    body = Weights(
        hidden=c.hidden, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, inner=layers[0].down.k,
        vocab=len(output), eps=c.eps, scale=c.head_dim**-0.5, embedding=embedding, norm=tensors.norm("norm.weight"),
        head=matrix(output, None, kind), layers=layers,
    )
    weights = HeadWeights(
        body, fc, taps, c.target_hidden, tensors.norm("layers.0.hidden_norm.weight"), norm_taps, c.norm_before_fc,
        c.norm_before_residual, c.norm_output, c.embedding_scale,
    )
    rotary = Rotary(c, torch.float32, torch.device("cpu"))

    def angles(positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        rotary.reach(positions - 1)
        return rotary.at(torch.arange(positions))

    return CompiledHead(head, HeadPass(library, weights, angles))


@dataclass(frozen=True)
class _Tensors:
    head: Head

    def find(self, name: str) -> torch.Tensor | None:
        tensor = self.head.tensors.get(name)
        return None if tensor is None else tensor.detach().cpu()

    def get(self, name: str) -> torch.Tensor:
        if (tensor := self.find(name)) is None:
            raise ModelError(f"it lacks the tensor {name!r}")
        return tensor

    def norm(self, name: str) -> torch.Tensor:
        return self.get(name).float().contiguous()

    def norm_of_heads(self, name: str) -> torch.Tensor | None:
        """Of query or key heads, where there is one."""
        tensor = self.find(name)
        if tensor is not None and len(tensor) != self.head.config.head_dim:
            raise ModelError("its query and key norms do not run head by head")
        return None if tensor is None else tensor.float().contiguous()

    def joined(self, names: Sequence[str], end: str) -> torch.Tensor | None:
        """Weights or biases of products with one input as one; None where none has it, zeros where one lacks it."""
        parts = [self.find(f"{n}.{end}") for n in names]
        if all(p is None for p in parts):
            return None
        sizes = [len(self.get(f"{n}.weight")) for n in names]
        return torch.cat([torch.zeros(n) if p is None else p.float() for p, n in zip(parts, sizes, strict=True)])

    def matrix(self, kind: str, *names: str) -> Matrix:
        weight = torch.cat([self.get(f"{n}.weight") for n in names])
        return matrix(weight, self.joined(names, "bias"), kind)


def _layer(t: _Tensors, at: str, kind: str) -> LayerWeights:
    gate, up = t.get(f"{at}mlp.gate_proj.weight"), t.get(f"{at}mlp.up_proj.weight")
    bias = t.joined((f"{at}mlp.gate_proj", f"{at}mlp.up_proj"), "bias")
    return LayerWeights(
        t.norm(f"{at}input_layernorm.weight"), t.norm(f"{at}post_attention_layernorm.weight"),
        t.norm_of_heads(f"{at}self_attn.q_norm.weight"), t.norm_of_heads(f"{at}self_attn.k_norm.weight"),
        qkv=t.matrix(kind, *(f"{at}self_attn.{x}_proj" for x in "qkv")),
        out=t.matrix(kind, f"{at}self_attn.o_proj"),
        gate_up=matrix(interleave(gate, up), None if bias is None else interleave(*bias.chunk(2)), kind),
        down=t.matrix(kind, f"{at}mlp.down_proj"),
    )
