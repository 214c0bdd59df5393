"""The canonical names and shapes of every kind of drafter, and the check that a `Head` is whole.

    decoder layer i   layers.{i}.self_attn.{q,k,v,o}_proj.weight (.bias)   layers.{i}.self_attn.{q,k}_norm.weight
                      layers.{i}.mlp.{gate,up,down}_proj.weight   layers.{i}.{input,post_attention}_layernorm.weight
    eagle1            fc (bias), layers (0 with input_layernorm only where norm_input says so), embedding_layernorm,
                      hidden_states_layernorm
    eagle3, peagle    fc, layers (0 is 2·hidden wide, with hidden_norm), norm, lm_head; input_norm or fc_norm.{a};
                      mask_hidden of peagle
    dflash            fc, hidden_norm, layers, norm, hidden_dim_adapter.proj; dflash2 adds convolutions and a selector
    dspark            dflash and markov_head.{markov_w1, markov_w2, gate_proj, joint_proj}, confidence_head.proj
    domino            dflash and prefix_gru.weight_{ih,hh}_l0, embed_proj.{0,2}
    medusa            heads.{i}.blocks.{l}.{weight,bias}, heads.{i}.lm_head.weight
    hydra             heads.{i}.blocks.{l}, heads.{i}.residual, heads.{i}.lm_head, all with bias;
                      prefix.layers.0, prefix.norm
    falcon            lstm.{weight,bias}_{ih,hh}_l{0,1}, layers (0 without input_layernorm)
    mtp               mtp_layers.{i}.{input_proj, token_layernorm, hidden_layernorm, final_layernorm} and a block
    any               embed_tokens.weight and lm_head.weight where the drafter has its own; all heads may share one
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from hedgerow.core.errors import ModelError
from hedgerow.draft.formats.head import Head, HeadConfig, Kind

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Want:
    """One tensor of a drafter: its shape (None: any) and whether the drafter is broken without it."""

    shape: Shape | None
    required: bool = True


Wants = dict[str, Want]
Names = Collection[str]


def decoder_layer(
    c: HeadConfig, at: str, names: Names, wide: int, input_norm: bool = True, qk_norm: bool | None = None
) -> Wants:
    """A llama or qwen3 layer whose attention reads `wide` features. Norms of q and k, and biases, come all or none.

    `qk_norm`: whether q and k are normed; None: if the file has one of the two.
    """
    q, kv, h = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.hidden
    attention = f"{at}self_attn."
    out: Wants = {
        f"{attention}q_proj.weight": Want((q, wide)), f"{attention}k_proj.weight": Want((kv, wide)),
        f"{attention}v_proj.weight": Want((kv, wide)), f"{attention}o_proj.weight": Want((h, q)),
        f"{at}mlp.gate_proj.weight": Want((c.inner, h)), f"{at}mlp.up_proj.weight": Want((c.inner, h)),
        f"{at}mlp.down_proj.weight": Want((h, c.inner)), f"{at}post_attention_layernorm.weight": Want((h,)),
    }
    if input_norm:
        out[f"{at}input_layernorm.weight"] = Want((h,))
    norms = {f"{attention}{x}_norm.weight": Want((c.head_dim,)) for x in "qk"}
    biases = {f"{attention}{x}_proj.bias": Want((q if x == "q" else kv,)) for x in "qkv"}
    if qk_norm or (qk_norm is None and any(n in names for n in norms)):
        out |= norms
    if any(n in names for n in biases):
        out |= biases
    return out


def _embedding(c: HeadConfig, names: Names) -> Wants:
    """The drafter's own embedding: needed where the target's rows have another width."""
    return {"embed_tokens.weight": Want((c.vocab, c.hidden), required=c.hidden != c.target_hidden)}


def _eagle1(c: HeadConfig, names: Names) -> Wants:
    h = c.hidden
    out: Wants = {"fc.weight": Want((h, 2 * h)), "fc.bias": Want((h,), required=False)}
    for norm in ("embedding_layernorm", "hidden_states_layernorm"):
        out[f"{norm}.weight"] = Want((h,), required=False)
    for i in range(c.layers):
        out |= decoder_layer(c, f"layers.{i}.", names, h, input_norm=i > 0 or c.norm_input)
    return out | _embedding(c, names)


def _eagle3(c: HeadConfig, names: Names) -> Wants:
    h, taps = c.hidden, max(len(c.taps), 1)
    raw = taps * c.target_hidden
    out: Wants = {"fc.weight": Want((h, raw)), "layers.0.hidden_norm.weight": Want((h,))}
    for i in range(c.layers):
        out |= decoder_layer(c, f"layers.{i}.", names, h if i else 2 * h)
    if c.norm_before_fc:
        out["input_norm.weight"] = Want((raw,))
    if c.fc_norm:
        out |= {f"fc_norm.{a}.weight": Want((c.target_hidden,)) for a in range(taps)}
    return out | {"norm.weight": Want((h,)), "lm_head.weight": Want((c.draft_vocab, h))} | _embedding(c, names)


def _peagle(c: HeadConfig, names: Names) -> Wants:
    raw = max(len(c.taps), 1) * c.target_hidden
    own = {"embed_tokens.weight": Want((c.vocab, c.hidden))}          # trained: the mask token has a row of its own
    return _eagle3(c, names) | own | {"mask_hidden": Want((1, 1, raw))}


def _dflash(c: HeadConfig, names: Names) -> Wants:
    h = c.hidden
    out: Wants = {
        "fc.weight": Want((h, len(c.taps) * h)), "hidden_norm.weight": Want((h,)), "norm.weight": Want((h,)),
        "lm_head.weight": Want((c.draft_vocab, h), required=c.draft_vocab != c.vocab),
        "embed_tokens.weight": Want((c.vocab, h), required=False),
        "mask_embedding": Want((h,), required=False),     # in place of a token's row
    }
    if c.target_hidden != h:
        out["hidden_dim_adapter.proj.weight"] = Want((h, c.target_hidden))
    for i in range(c.layers):
        out |= decoder_layer(c, f"layers.{i}.", names, h, qk_norm=True)
    return out


def _dflash2(c: HeadConfig, names: Names) -> Wants:
    """Shapes that nobody has written down are taken as they are."""
    out = _dflash(c, names)
    for i in range(c.layers):
        for conv in ("attention_conv", "mlp_conv"):
            out[f"layers.{i}.{conv}.base_kernel"] = Want(None)
            out[f"layers.{i}.{conv}.kernel_projection.weight"] = Want(None)
    selector = ("predecessor_codebook", "successor_codebook", "hidden_projection.weight")
    return out | {f"candidate_selector.{part}": Want(None) for part in selector}


def _dspark(c: HeadConfig, names: Names) -> Wants:
    h, r = c.hidden, c.rank
    out = _dflash(c, names) | {
        "markov_head.markov_w1.weight": Want((c.vocab, r)), "markov_head.markov_w2.weight": Want((c.draft_vocab, r)),
    }
    mixing: dict[str, tuple[str, Shape]] = {
        "gated": ("gate_proj", (r, h + r)), "rnn": ("joint_proj", (3 * r, 2 * r + h)),
    }
    if c.markov in mixing:
        part, shape = mixing[c.markov]
        out[f"markov_head.{part}.weight"], out[f"markov_head.{part}.bias"] = Want(shape), Want(shape[:1])
    if "confidence_head.proj.weight" in names:        # over hidden, or hidden and markov_w1's row: its width says
        out |= {"confidence_head.proj.weight": Want(None), "confidence_head.proj.bias": Want((1,), required=False)}
    return out


def _domino(c: HeadConfig, names: Names) -> Wants:
    h, g, e = c.hidden, c.gru, c.bottleneck
    return _dflash(c, names) | {
        "prefix_gru.weight_ih_l0": Want((3 * g, h)), "prefix_gru.weight_hh_l0": Want((3 * g, g)),
        "embed_proj.0.weight": Want((e, h + g)), "embed_proj.2.weight": Want((c.draft_vocab, e)),
    }


def _shared_head(c: HeadConfig, names: Names) -> Wants:
    """One matrix for all heads, where a file has that instead of one a head."""
    return {"lm_head.weight": Want((c.draft_vocab, c.hidden))} if "lm_head.weight" in names else {}


def _medusa(c: HeadConfig, names: Names) -> Wants:
    out: Wants = {}
    biased = any(n.startswith("heads.") and n.endswith(".bias") for n in names)
    shared = _shared_head(c, names)
    for i in range(c.count):
        for layer in range(c.depth):
            out[f"heads.{i}.blocks.{layer}.weight"] = Want((c.hidden, c.hidden))
            if biased:
                out[f"heads.{i}.blocks.{layer}.bias"] = Want((c.hidden,))
        if not shared:
            out[f"heads.{i}.lm_head.weight"] = Want((c.draft_vocab, c.hidden))
    return out | shared


def _hydra(c: HeadConfig, names: Names) -> Wants:
    h = c.hidden
    shared = _shared_head(c, names)
    out: Wants = {}

    def linear(name: str, rows: int, columns: int) -> None:
        out[f"{name}.weight"], out[f"{name}.bias"] = Want((rows, columns)), Want((rows,))

    for i in range(c.count):
        for part in ("blocks.0", "residual"):
            linear(f"heads.{i}.{part}", h, (i + 2) * h)
        for layer in range(1, c.depth):
            linear(f"heads.{i}.blocks.{layer}", h, h)
        if not shared:
            linear(f"heads.{i}.lm_head", c.draft_vocab, h)
    if c.arch == "prefix-mlp":
        out |= decoder_layer(c, "prefix.layers.0.", names, h) | {"prefix.norm.weight": Want((h,))}
    return out | shared


def _falcon(c: HeadConfig, names: Names) -> Wants:
    h = c.hidden
    parts = [(x, i) for i in (0, 1) for x in ("ih", "hh")]
    out: Wants = {f"lstm.weight_{x}_l{i}": Want((4 * h, 2 * h if (x, i) == parts[0] else h)) for x, i in parts}
    biases = {f"lstm.bias_{x}_l{i}": Want((4 * h,)) for x, i in parts}
    if any(n in names for n in biases):
        out |= biases
    for i in range(c.layers):
        norm = f"layers.{i}.input_layernorm.weight"
        out |= decoder_layer(c, f"layers.{i}.", names, h, input_norm=norm in names)
    return out | _embedding(c, names)


def _mtp(c: HeadConfig, names: Names) -> Wants:
    """The block is the target's own, whatever it is (latent attention, experts): its tensors are taken as they are."""
    h = c.hidden
    out: Wants = {name: Want(None) for name in names if name.startswith("mtp_layers.")}
    for i in range(c.layers):
        out[f"mtp_layers.{i}.input_proj.weight"] = Want((h, 2 * h))
        for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            out[f"mtp_layers.{i}.{norm}.weight"] = Want((h,))
    return out | {f"{own}.weight": Want((c.vocab, h), required=False) for own in ("embed_tokens", "lm_head")}


KINDS: Mapping[Kind, Callable[[HeadConfig, Names], Wants]] = {
    "eagle1": _eagle1, "eagle3": _eagle3, "peagle": _peagle, "mtp": _mtp, "medusa": _medusa, "hydra": _hydra,
    "dflash": _dflash, "dflash2": _dflash2, "dspark": _dspark, "domino": _domino, "falcon": _falcon,
}


def check_tensors(config: HeadConfig, shapes: Mapping[str, Shape], source: Mapping[str, str] | None = None) -> None:
    """Compare canonical names and shapes with what the kind needs; `source` maps canonical names to those of the file.

    Raises: ModelError naming every missing, unused or misshapen tensor.
    """
    wants = KINDS[config.kind](config, shapes)

    def shown(name: str) -> str:
        there = (source or {}).get(name, name)
        return name if there == name else f"{there} (our {name})"

    missing = sorted(n for n, want in wants.items() if want.required and n not in shapes)
    unused = sorted(n for n in shapes if n not in wants)
    wrong = sorted(n for n, w in wants.items() if n in shapes and w.shape is not None and tuple(shapes[n]) != w.shape)
    said = []
    if missing:
        said.append(f"missing: {', '.join(missing)}")
    if unused:
        said.append(f"unused: {', '.join(map(shown, unused))}")
    said += [f"{shown(n)} is {list(shapes[n])}, its settings say {list(wants[n].shape or ())}" for n in wrong]
    if said:
        raise ModelError(f"as a drafter of kind {config.kind} its tensors do not fit: {'; '.join(said)}")


def check_head(head: Head) -> None:
    """The same for a whole head, and that its ids are ids.

    Raises: ModelError.
    """
    check_tensors(head.config, {name: tuple(t.shape) for name, t in head.tensors.items()})
    check_ids(head.ids, head.config.draft_vocab, head.config.vocab)


def check_ids(ids: object, draft_vocab: int, vocab: int) -> None:
    """Raise ModelError unless ids [draft_vocab] are strictly increasing ids of the target; None stands for all."""
    import torch

    if ids is None:
        if draft_vocab != vocab:
            raise ModelError(
                f"it drafts {draft_vocab} of the target's {vocab} tokens, but which is not said: a map (d2t) is missing"
            )
        return
    assert isinstance(ids, torch.Tensor)
    if tuple(ids.shape) != (draft_vocab,):
        raise ModelError(f"its map of ids has shape {list(ids.shape)} for a vocabulary of {draft_vocab}")
    steps = ids[1:] - ids[:-1]
    if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= vocab or (len(steps) and int(steps.min()) <= 0)):
        raise ModelError(
            f"its map of ids does not rise from 0 to {vocab - 1} (first {int(ids[0])}, last {int(ids[-1])}, smallest "
            f"step {int(steps.min()) if len(steps) else 0}): d2t holds offsets, the token is i + d2t[i]"
        )
