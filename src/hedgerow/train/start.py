"""Where training begins: the target's own tensors, and heads that start as one of its layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hedgerow.core.errors import ModelError, UsageError
from hedgerow.draft.formats.head import HeadConfig
from hedgerow.draft.formats.target import TargetFacts, fingerprint
from hedgerow.models.convert import quiet, read_tokenizer
from hedgerow.models.tokenizer import HFTokenizer
from hedgerow.train.eagle import EagleModule

NOISE = 0.01
NEEDED = ("model.embed_tokens.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight")


@dataclass(frozen=True)
class TargetWeights:
    """A target's configuration and tensors in bf16, under transformers' names, and the directory they came from."""

    config: Any
    tensors: dict[str, torch.Tensor]
    path: Path | None = None

    @classmethod
    def read(cls, path: Path) -> TargetWeights:
        """Load a model directory for its tensors alone.

        Raises: ModelError for a model whose tensors have other names than a llama's.
        """
        from transformers import AutoModelForCausalLM

        with quiet():
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, local_files_only=True)
        tensors = {k: v.detach() for k, v in model.state_dict().items()}
        missing = [name for name in NEEDED if name not in tensors]
        if missing or not hasattr(model.config, "rms_norm_eps"):
            raise ModelError(
                f"no drafter can be trained for models of type {model.config.model_type}: they have no "
                f"{missing[0] if missing else 'RMS norms'}; models with a llama's layers and names can have one"
            )
        return cls(model.config, tensors, path)

    @property
    def embedding(self) -> torch.Tensor:
        """[vocab, hidden]."""
        return self.tensors["model.embed_tokens.weight"]

    @property
    def output(self) -> torch.Tensor:
        """[vocab, hidden] of the output layer."""
        return self.tensors.get("lm_head.weight", self.embedding)

    def head_config(self, kind: Any, draft_vocab: int, **more: Any) -> HeadConfig:
        """A head of the target's own sizes; rotary positions turn as EAGLE's public heads do, with base 10000."""
        c = self.config
        heads = int(c.num_attention_heads)
        return HeadConfig(
            kind=kind, hidden=int(c.hidden_size), target_hidden=int(c.hidden_size), vocab=len(self.embedding),
            draft_vocab=draft_vocab, heads=heads, kv_heads=int(getattr(c, "num_key_value_heads", heads)),
            head_dim=int(getattr(c, "head_dim", None) or c.hidden_size // heads), inner=int(c.intermediate_size),
            eps=float(c.rms_norm_eps), **more,
        )

    def taps(self) -> tuple[int, ...]:
        """EAGLE-3's: the inputs of layers 2, L/2 and L − 3. Raises UsageError for a model of fewer than 6 layers."""
        if self.layers < 6:
            raise UsageError(
                f"the target has {self.layers} layers; EAGLE-3's taps need at least 6, give others with --taps: "
                f"numbers from 0 to {self.layers}, the input of a layer each"
            )
        return tuple(sorted({2, self.layers // 2, self.layers - 3}))

    def same_taps(self) -> tuple[int, ...]:
        """EAGLE-3's taps for a method that reads none, so that one text serves all methods; none where there are none.
        """
        return self.taps() if self.layers >= 6 else ()

    def facts(self, name: str) -> TargetFacts:
        """What a drafter's files say of the target, and what a loader compares: sizes, names, the vocabulary."""
        words = None
        if self.path is not None:
            words = fingerprint(HFTokenizer(*read_tokenizer(self.path), name).vocabulary())
        kinds = getattr(self.config, "architectures", None) or [""]
        return TargetFacts(
            int(self.config.hidden_size), len(self.embedding), self.layers, name, str(kinds[0]), words,
        )

    @property
    def layers(self) -> int:
        """How many there are."""
        return int(self.config.num_hidden_layers)


def warm(module: EagleModule, target: TargetWeights, ids: torch.Tensor, seed: int = 0) -> None:
    """Start a head as the target's last layers, its final norm and output rows. Mutates the module.

    The first layer's products read [embedding, feature]: the feature's half is the target's, the embedding's begins
    near zero. The fusing product passes the last tap on.
    """
    c = module.config
    rng = torch.Generator().manual_seed(seed)
    count = int(target.config.num_hidden_layers)
    with torch.no_grad():
        module.fc.weight.normal_(std=NOISE / len(c.taps), generator=rng)
        module.fc.weight[:, -c.target_hidden :] += torch.eye(c.hidden, c.target_hidden)
        for i, layer in enumerate(module.layers):
            base = f"model.layers.{count - c.layers + i}."
            for name, parameter in layer.named_parameters():
                source = target.tensors.get(base + name)
                if name == "hidden_norm.weight":
                    source = target.tensors[base + "input_layernorm.weight"]
                if source is None or (name == "input_layernorm.weight" and i == 0):
                    continue
                source = source.float()
                if parameter.shape != source.shape:              # a product over both halves
                    parameter.normal_(std=NOISE, generator=rng)
                    parameter[:, -source.shape[1] :] = source
                else:
                    parameter.copy_(source)
        module.norm.weight.copy_(target.tensors["model.norm.weight"].float())
        module.lm_head.weight.copy_(target.output[ids].float())
