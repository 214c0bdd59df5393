"""One request: what was asked, and its state while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Feats, Sampling, Tokenizer, View
from hedgerow.core.rng import Rng, Source
from hedgerow.engine.finish import Finisher, StopRule
from hedgerow.engine.processors import Processors

MAX_STOPS = 16


@dataclass(frozen=True)
class Request:
    """What a user asked for. `tenant` names whose retrieval state may be used and fed; it is never shared.

    Raises: UsageError for an empty prompt or a value out of range.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 256
    min_tokens: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    choice: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: bool = False
    tenant: str = ""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UsageError("the prompt is empty; at least one token is needed")
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens is {self.max_tokens}; at least 1 is needed")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise UsageError(f"min_tokens is {self.min_tokens}; allowed: 0 to max_tokens ({self.max_tokens})")
        if len(self.stop) > MAX_STOPS or any(not s for s in self.stop):
            raise UsageError(f"stop has {len(self.stop)} strings; allowed: up to {MAX_STOPS}, none of them empty")
        if any(i < 0 for i in (*self.prompt, *self.stop_ids)):
            raise UsageError(f"token id {min(*self.prompt, *self.stop_ids)} is negative; allowed: 0 or more")


@dataclass
class Running:
    """A request that holds a slot: everything the loop may change about it."""

    number: int
    request: Request
    slot: int
    rng: Source
    process: Processors
    finish: Finisher
    begun: int = 0                                        # drafters that were told of it
    entropy: float | None = None
    prompt_feats: Feats | None = None                     # kept for the first trace record only
    logprobs: list[float] = field(default_factory=list)
    cached: int = 0                                       # prompt tokens that earlier requests had left
    steps: int = 0
    proposed: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: list[int] = field(default_factory=list)    # [k] = steps that accepted k draft tokens
    forms: dict[str, int] = field(default_factory=lambda: {"plain": 0, "chain": 0, "tree": 0})
    reason: str = ""                                      # why the last step did not draft
    reasons: dict[str, int] = field(default_factory=dict)

    @classmethod
    def start(
        cls, number: int, request: Request, slot: int, tokenizer: Tokenizer | None, eos: frozenset[int], max_len: int,
        rng: Source | None = None,
    ) -> Running:
        """A request on its way into the batch; its length is capped by the context limit."""
        stop_ids = request.stop_ids | (frozenset() if request.ignore_eos else eos)
        limit = min(request.max_tokens, max_len - len(request.prompt))
        rule = StopRule(limit, min(request.min_tokens, limit), stop_ids, request.stop)
        return cls(
            number=number, request=request, slot=slot, rng=rng or Rng(request.seed, request.choice),
            process=Processors(request.sampling, rule.min_tokens, stop_ids), finish=Finisher(rule, tokenizer),
        )

    @property
    def position(self) -> int:
        """Absolute position of the root, the last committed token."""
        return len(self.request.prompt) + len(self.finish.ids) - 1

    @property
    def completed(self) -> int:
        """Completion tokens so far."""
        return len(self.finish.ids)

    def view(self) -> View:
        """What policies and controllers may see of this request in the coming step."""
        completed = self.completed
        return View(
            request=self.number, slot=self.slot, root=self.finish.ids[-1], position=self.position,
            room=self.finish.remaining - 1, sampling=self.request.sampling, rng=self.rng.at(self.position),
            draw=lambda row, depth, ids=None: self.process(row, completed + depth - 1, ids), entropy=self.entropy,
        )
