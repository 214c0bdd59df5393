"""Distilling a few-layer copy of the target: a language model of its own, which drafts as any companion does.

Row j reads x_0 … x_j and learns p(x_{j+1} | x_{≤j}). Embedding and output rows stay the target's, so the copy speaks
all of its vocabulary; only layers and the final norm learn.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from hedgerow.core.errors import ModelError, UsageError
from hedgerow.draft.formats.files import CARD
from hedgerow.models.convert import quiet
from hedgerow.models.weights import check_directory
from hedgerow.train.data import Batch
from hedgerow.train.losses import soft_cross_entropy
from hedgerow.train.parts import Learned, Tally, ranked
from hedgerow.train.start import TargetWeights

OTHERS = 1024                              # tokens outside the frequent ones that an update draws
SLICE = 512                                # rows judged at once in validation
LAYERS = "model.layers."
KEPT_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model",
              "chat_template*", "generation_config.json")


class Copy(nn.Module):
    """What learns of a copy: layers and final norm. The embedding is frozen and no parameter of this module."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.layers, self.norm = whole.layers, whole.norm
        self._whole = (whole,)            # a tuple, so that its embedding is not found here

    def forward(self, tokens: Int[torch.Tensor, "texts len"]) -> Float[torch.Tensor, "texts len hidden"]:
        """States behind the final norm; texts are padded behind their ends, where nothing is read."""
        out: torch.Tensor = self._whole[0](input_ids=tokens, use_cache=False).last_hidden_state
        return out


@dataclass
class Independent:
    """The training method of a copy: `kept` are the target's layers it began as, `steps` the depths that are counted.

    An update compares p and q on the `frequent` tokens and on `OTHERS` of the rest, drawn anew, both laws taken within
    that set. q = p minimises this on every set, and the tokens outside are held down although the drafter's whole
    vocabulary, several times as dear as its layers, never runs. Validation compares on all tokens.

    Source: distillation for drafting, DistillSpec (2310.08461), forward KL. Differs from the paper: the texts are the
    target's own, not the drafter's, and the copy begins as some of its layers, as DistilBERT (1910.01108) does.
    """

    module: Copy
    target: TargetWeights
    kept: tuple[int, ...]
    output: Float[torch.Tensor, "vocab hidden"]
    frequent: Int[torch.Tensor, " frequent"]
    steps: int = 3
    seed: int = 0
    name: str = "independent"
    source: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.source.manual_seed(self.seed)
        rest = torch.ones(len(self.output), dtype=torch.bool)
        rest[self.frequent.cpu()] = False
        self._rest = rest.nonzero()[:, 0]

    def learn(self, batch: Batch) -> Learned:
        """Loss of a batch, differentiable, with the counts of `Learned`. Draws tokens while training."""
        device, (texts, rows) = batch.tokens.device, batch.tokens.shape
        at = batch.loss.flatten().nonzero()[:, 0]
        state, seen = self.module(batch.tokens).flatten(0, 1)[at], batch.last.flatten(0, 1)[at]
        output = self.output[self._tokens(device)] if self.module.training else self.output
        total = torch.zeros((), device=device)
        hits: list[torch.Tensor] = []
        size = len(at) if self.module.training else SLICE
        for begin in range(0, len(at), size):
            part = slice(begin, begin + size)
            z = F.linear(state[part], output.to(state.dtype)).float()
            with torch.no_grad():
                p = F.linear(seen[part].to(output.dtype), output).float().softmax(1)
                hits.append(ranked(z, p.argmax(1)))
            total = total + soft_cross_entropy(z, p).sum()
        return self._counted(at, torch.cat(hits), texts, rows).learned(total / max(len(at), 1))

    def _tokens(self, device: torch.device) -> Int[torch.Tensor, " some"]:
        """The frequent tokens and some others."""
        drawn = torch.randperm(len(self._rest), generator=self.source)[:OTHERS]
        return torch.cat([self.frequent, self._rest[drawn].to(device)])

    def _counted(self, at: torch.Tensor, hit: torch.Tensor, texts: int, rows: int) -> Tally:
        """Depth k of row j is the law of position j + k: a model reads the same whether a token is drafted or not."""
        of = torch.full((texts * rows,), -1, dtype=torch.int64, device=at.device)
        of[at] = torch.arange(len(at), device=at.device)
        tally = Tally.of(texts * rows, at.device)
        for k in range(self.steps):
            place = F.pad(of.view(texts, rows)[:, k:], (0, min(k, rows)), value=-1).flatten()
            judged = (place >= 0).nonzero()[:, 0]
            tally.count(judged, hit[place[judged]])
        return tally

    def save(self, folder: Path, facts: dict[str, Any]) -> None:
        """Write the copy as a model directory with the target's tokenizer. Mutates: the folder, in one go.

        Raises: ModelError when the target's directory is not known.
        """
        if self.target.path is None:
            raise ModelError("the target was not read from a directory, so there is no tokenizer to copy")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as name:
            out = Path(name)
            save_file(self._tensors(), out / "model.safetensors", metadata={"format": "pt"})
            (out / "model.safetensors").chmod(0o644)
            cut(self.target.config, self.kept).save_pretrained(out)
            for pattern in KEPT_FILES:
                for file in self.target.path.glob(pattern):
                    if file.is_file():
                        shutil.copy(file, out / file.name)
            card = {**facts, "layers_of_target": self.kept}
            (out / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
            check_directory(out)
            for file in sorted(out.iterdir()):
                shutil.move(str(file), str(folder / file.name))

    def _tensors(self) -> dict[str, torch.Tensor]:
        """All tensors of the copy in bf16 under the target's names; a tied output layer is left out."""
        tied = bool(getattr(self.target.config, "tie_word_embeddings", False))
        out = {
            name: t for name, t in self.target.tensors.items()
            if not name.startswith(LAYERS) and not (tied and name == "lm_head.weight")
        }
        out |= {f"model.{name}": t for name, t in self.module.state_dict().items()}
        return {name: t.detach().bfloat16().cpu().contiguous().clone() for name, t in out.items()}


def spread(layers: int, count: int) -> tuple[int, ...]:
    """`count` of `layers` layers, evenly, the first and the last among them; the last alone where there is but one.

    Raises: UsageError for a number that is not of the target's.

    >>> spread(30, 4), spread(30, 1)
    ((0, 10, 19, 29), (29,))
    """
    if not 1 <= count <= layers:
        raise UsageError(f"--layers is {count}; the target has {layers}, allowed: 1 to {layers}")
    return tuple(round(i * (layers - 1) / (count - 1)) for i in range(count)) if count > 1 else (layers - 1,)


def cut(config: Any, kept: Sequence[int]) -> Any:
    """A configuration of these layers alone; settings that say something of every layer keep theirs."""
    settings = config.to_dict()
    count = int(config.num_hidden_layers)
    settings |= {
        name: [value[i] for i in kept] for name, value in settings.items()
        if "layer" in name and isinstance(value, list) and len(value) == count
    }
    return type(config).from_dict({**settings, "num_hidden_layers": len(kept)})


def begun(
    target: TargetWeights, frequent: torch.Tensor, device: torch.device, layers: int, steps: int, seed: int
) -> Independent:
    """A copy that begins as `layers` of the target's layers, evenly spread, with its final norm."""
    from transformers import AutoModel

    kept = spread(target.layers, layers)
    with quiet():
        whole = AutoModel.from_config(cut(target.config, kept), dtype=torch.float32)
    tensors = {name.removeprefix("model."): t for name, t in target.tensors.items() if not name.startswith(LAYERS)}
    for new, old in enumerate(kept):
        base = f"{LAYERS}{old}."
        tensors |= {
            f"layers.{new}.{name.removeprefix(base)}": t for name, t in target.tensors.items() if name.startswith(base)
        }
    wanted = whole.state_dict()
    whole.load_state_dict({name: tensors[name].float() for name in wanted if name in tensors}, strict=True)
    whole.to(device)
    return Independent(
        Copy(whole), target, kept, target.output.to(device), frequent.to(device), steps, seed,
    )
