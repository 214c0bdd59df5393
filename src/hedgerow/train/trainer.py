"""The training loop all methods share: a budget in minutes or epochs, validation, checkpoints, resume, early stop."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hedgerow.core.errors import UsageError
from hedgerow.topology.sparse import medusa_tree
from hedgerow.train.data import Corpus, Place
from hedgerow.train.parts import Method

TREE = 15                                  # nodes of the tree whose τ is simulated
PART, OLD = ".part", ".old"                # endings of folders while a checkpoint is swapped


@dataclass(frozen=True)
class Settings:
    """How to train. `minutes` is a budget of training time over all sittings; without it `epochs` decides.

    The learning rate rises over `warmup` updates and falls along a half cosine to a twentieth, over the share of the
    budget that is spent. Matrices of layers follow Muon, all else AdamW.
    """

    minutes: float | None = None
    epochs: int = 3
    rows: int = 2048                       # padded positions of a batch
    rate: float = 4e-3                     # AdamW
    matrix_rate: float = 0.1               # Muon, before its scale by shape
    warmup: int = 60
    decay: float = 0.01                    # of weights
    clip: float = 1.0
    head_from: float = 0.5                 # share of the budget after which the output layer learns too
    check_s: float = 300.0                 # between validations (and checkpoints)
    patience: int = 6                      # validations without a better τ before it stops
    held: float = 0.02                     # share of texts kept for validation
    longest: int = 512                     # rows of a text
    seed: int = 0


@dataclass
class Progress:
    """Where a run stands; part of every checkpoint."""

    update: int = 0
    epoch: int = 0
    batch: int = 0                         # of the epoch
    rows: int = 0                          # trained positions so far
    seconds: float = 0.0
    best: float = 0.0                      # best simulated τ
    stale: int = 0
    history: list[dict[str, float | list[float]]] = field(default_factory=list)


@dataclass(frozen=True)
class Checked:
    """A validation: accepted share by depth given that the path lives, and τ of a chain and of a tree."""

    by_depth: list[float]
    chain: float
    tree: float
    loss: float


def chances(hits: torch.Tensor, alive: torch.Tensor) -> list[list[float]]:
    """Acceptance of rank r at depth d given that the path lives, as `topology.sparse` wants it: in float64, whose
    sums are not above 1 by more than it forgives."""
    return (hits.double() / alive.double().clamp_min(1)[:, None]).tolist()


def simulated(rates: Sequence[Sequence[float]], nodes: int) -> float:
    """τ of the best static tree of `nodes` nodes, 1 + Σ_v Π (rate of its rank at its depth) along its path.

    Ranks are taken to be independent of the path, so a tree that looks at the drafter's confidence does better.

    >>> round(simulated([[0.5, 0.2], [0.5, 0.2]], 2), 2)
    1.75
    """
    shape = medusa_tree([list(r) for r in rates], nodes)
    reach = {-1: 1.0}
    depth = {-1: 0}
    seen: dict[int, int] = {}
    for node, parent in enumerate(shape.parent):
        rank = seen.get(parent, 0)
        seen[parent] = rank + 1
        depth[node] = depth[parent] + 1
        reach[node] = reach[parent] * rates[depth[parent]][rank]
    return 1.0 + math.fsum(v for k, v in reach.items() if k >= 0)


@dataclass
class Trainer:
    """Fits a method to a corpus. Mutates the module and the folder: `state/` (newest), `best/` (best validation)."""

    method: Method
    corpus: Corpus
    settings: Settings
    folder: Path
    told: Callable[[str, Progress, Checked | None], None] = lambda what, progress, checked: None
    clock: Callable[[], float] = time.perf_counter
    progress: Progress = field(default_factory=Progress)
    stopping: bool = False                 # set it to end after the current update, as Ctrl-C does

    def __post_init__(self) -> None:
        module = self.method.module
        self.device = next(module.parameters()).device
        matrices = [p for n, p in module.named_parameters() if p.ndim == 2 and "lm_head" not in n]
        others = [p for n, p in module.named_parameters() if p.ndim != 2 and "lm_head" not in n]
        head = [p for n, p in module.named_parameters() if "lm_head" in n]
        s = self.settings
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(matrices, lr=s.matrix_rate, weight_decay=s.decay, momentum=0.95), s.matrix_rate),
            (torch.optim.AdamW(others, lr=s.rate, weight_decay=0.0, betas=(0.9, 0.95)), s.rate),
        ]
        if head:
            self.optimizers.append(
                (torch.optim.AdamW(head, lr=s.rate, weight_decay=0.0, betas=(0.9, 0.95)), 0.3 * s.rate)
            )
        self.head = head
        if (found := _whole(self.folder / "state")) is not None:
            self._resume(found)

    def fit(self) -> Progress:
        """Train until the budget is spent, validation no longer improves, or `stopping` is set."""
        s, p = self.settings, self.progress
        last_check = self.clock()
        self.method.module.train()
        while not self.stopping and self.share < 1.0 and p.stale < s.patience:
            batches = self.corpus.order(s.seed, p.epoch, s.rows)
            for places in batches[p.batch :]:
                start = self.clock()
                self._update(places, len(batches))
                p.seconds += self.clock() - start
                self.told("update", p, None)
                if self.stopping or self.share >= 1.0:
                    break
                if self.clock() - last_check > s.check_s:
                    self.check()
                    last_check = self.clock()
                    if p.stale >= s.patience:
                        break
            else:
                p.epoch, p.batch = p.epoch + 1, 0
        self.check()
        return p

    @property
    def share(self) -> float:
        """How much of the budget is spent, 0 to 1."""
        p, s = self.progress, self.settings
        if s.minutes is not None:
            return p.seconds / (60.0 * s.minutes)
        return (p.epoch + (p.batch / self._batches if self._batches else 0.0)) / s.epochs

    _batches: int = 0

    def _update(self, places: Sequence[Place], batches: int) -> None:
        s, p, module = self.settings, self.progress, self.method.module
        self._batches = batches
        learns = self.share >= s.head_from
        for parameter in self.head:
            parameter.requires_grad_(learns)
        batch = self.corpus.batch(places, self.device)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            learned = self.method.learn(batch)
        if not math.isfinite(value := float(learned.loss.detach())):
            raise UsageError(
                f"the loss became {value} at update {p.update}; the run goes on from its last checkpoint in "
                f"{self.folder} when it is started again, with another --seed it may not come to this"
            )
        if learned.loss.requires_grad:     # a batch may have nothing that this drafter can say
            learned.loss.backward()
        nn.utils.clip_grad_norm_([x for x in module.parameters() if x.grad is not None], s.clip)
        factor = min(1.0, (p.update + 1) / s.warmup) * (0.05 + 0.475 * (1.0 + math.cos(math.pi * min(self.share, 1.0))))
        for optimizer, rate in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        p.update, p.batch, p.rows = p.update + 1, p.batch + 1, p.rows + batch.rows

    @torch.no_grad()
    def measure(self) -> Checked:
        """Validate on the held-out texts."""
        module = self.method.module
        module.eval()
        hits = alive = None
        losses: list[float] = []
        for places in self.corpus.held_out(self.settings.rows):
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                seen = self.method.learn(self.corpus.batch(places, self.device))
            losses.append(float(seen.loss))
            hits = seen.hits if hits is None else hits + seen.hits
            alive = seen.alive if alive is None else alive + seen.alive
        module.train()
        assert hits is not None and alive is not None
        rates = chances(hits, alive)
        by_depth = [row[0] for row in rates]
        chain = 1.0 + math.fsum(math.prod(by_depth[: d + 1]) for d in range(len(by_depth)))
        return Checked(by_depth, chain, simulated(rates, TREE), math.fsum(losses) / len(losses))

    def check(self) -> Checked:
        """Validate, remember the best, write a checkpoint. Mutates progress and folder."""
        p = self.progress
        start = self.clock()
        seen = self.measure()
        p.history.append({
            "update": p.update, "rows": p.rows, "seconds": p.seconds, "by_depth": seen.by_depth, "chain": seen.chain,
            "tree": seen.tree, "loss": seen.loss,
        })
        better = seen.tree > p.best
        p.best, p.stale = max(p.best, seen.tree), 0 if better else p.stale + 1
        self._save("state")
        if better:
            self._save("best")
        self.told(f"validated in {self.clock() - start:.0f} s", p, seen)
        return seen

    def _save(self, name: str) -> None:
        """Write a checkpoint beside the old one, then swap: an interruption leaves a whole one."""
        folder, part, old = (self.folder / (name + ending) for ending in ("", PART, OLD))
        for left in (part, old):
            if left.exists() and (left is part or folder.exists()):
                shutil.rmtree(left)
        part.mkdir(parents=True)
        files = {
            "model.safetensors": self.method.module.state_dict(), "optimizers.safetensors": self._optimizer_state(),
        }
        for file, tensors in files.items():
            save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, part / file)
        (part / "progress.json").write_text(json.dumps(asdict(self.progress)))
        (part / "settings.json").write_text(json.dumps(asdict(self.settings)))
        if folder.exists():
            folder.rename(old)
        part.rename(folder)
        shutil.rmtree(old, ignore_errors=True)

    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        """Every tensor of every optimizer, as number.parameter.name."""
        return {
            f"{i}.{index}.{key}": tensor
            for i, (optimizer, _) in enumerate(self.optimizers)
            for index, state in optimizer.state_dict()["state"].items() for key, tensor in state.items()
        }

    def _resume(self, folder: Path) -> None:
        try:
            self.method.module.load_state_dict(load_file(folder / "model.safetensors"))
        except RuntimeError:              # torch's own names every tensor
            raise UsageError(
                f"{folder} holds a drafter of other sizes; give the options it was begun with, or another --run"
            ) from None
        saved = load_file(folder / "optimizers.safetensors")
        for i, (optimizer, _) in enumerate(self.optimizers):
            state: dict[int, dict[str, torch.Tensor]] = {}
            for name, tensor in saved.items():
                number, index, key = name.split(".", 2)
                if int(number) == i:
                    state.setdefault(int(index), {})[key] = tensor
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        self.progress = Progress(**json.loads((folder / "progress.json").read_text()))


def _whole(folder: Path) -> Path | None:
    """The folder of a checkpoint, or the one it was about to replace; None where there is neither."""
    places = (folder, folder.with_name(folder.name + OLD))
    return next((f for f in places if (f / "progress.json").exists()), None)


def load_best(method: Method, folder: Path) -> Path | None:
    """Put the weights of the best validation into a method's module; returns where they lie, None without any."""
    best = _whole(folder / "best")
    if best is not None:
        method.module.load_state_dict(load_file(best / "model.safetensors"))
    return best
