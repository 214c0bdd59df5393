"""What a training run is asked for, and who hears how it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hedgerow.core.errors import UsageError
from hedgerow.train.trainer import Checked, Progress, Settings


@dataclass(frozen=True)
class Told:
    """Who hears how a run goes: lines, counts of a stage, updates with validations."""

    line: Callable[[str], None] = lambda message: None
    count: Callable[[str, int, int], None] = lambda what, done, total: None
    update: Callable[[float, Progress, Checked | None], None] = lambda share, progress, checked: None


@dataclass(frozen=True)
class Job:
    """What to train, on what, for how long. `tokens`: answers to write; `minutes`: for the whole run, text included.

    Raises: UsageError for a number out of range.
    """

    model: str
    folder: Path
    tokens: int = 1_000_000
    minutes: float | None = None
    prompts: Path | None = None
    draft_vocab: int = 8192
    taps: tuple[int, ...] = ()             # (): the method's own
    batch: int = 64
    seed: int = 0
    threads: int | None = None
    device: str = "auto"
    settings: Settings = field(default_factory=Settings)
    banned: tuple[str, ...] = ()           # texts whose runs of 8 words must not appear in a written prompt

    def __post_init__(self) -> None:
        for name, value, ok, allowed in (
            ("tokens", self.tokens, self.tokens >= 1000, "1000 or more"),
            ("minutes", self.minutes, self.minutes is None or 0 < self.minutes < float("inf"), "more than 0"),
            ("draft-vocab", self.draft_vocab, self.draft_vocab >= 16, "16 or more"),
            ("batch", self.batch, 1 <= self.batch <= 1024, "1 to 1024"),
            ("threads", self.threads, self.threads is None or self.threads >= 1, "1 or more"),
        ):
            if not ok:
                raise UsageError(f"--{name} is {value}; allowed: {allowed}")
        if list(self.taps) != sorted(set(self.taps)) or (self.taps and self.taps[0] < 0):
            raise UsageError(
                f"--taps is {','.join(map(str, self.taps))}; numbers of hidden states from 0 on are expected, rising, "
                "as 2,15,27"
            )
