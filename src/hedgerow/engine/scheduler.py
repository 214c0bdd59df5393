"""Which requests run: admit while there are slots, step the batch, retire what has finished."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice

from hedgerow.core.errors import CapacityError, UsageError
from hedgerow.core.parts import Tokenizer
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request, Running

NO_SLOT = -1  # of a request that ended before it was admitted


@dataclass
class Scheduler:
    """A queue in front of a `Loop`: requests join and leave between any two steps.

    `add` queues a request and returns its number; `advance` does one unit of work (admissions with their prefill, then
    one step) and returns the requests it touched; `run` loops until everything has finished or `cancel` was called.
    Numbers begin at `first`: give schedulers that share a controller different ones. After an error out of `advance`,
    `abort` gives everything back; `run` and `stream` do so themselves.
    """

    loop: Loop
    tokenizer: Tokenizer | None = None
    max_batch: int = 8
    waiting: deque[tuple[int, Request]] = field(default_factory=deque)
    running: list[Running] = field(default_factory=list)
    cancelled: bool = False
    first: int = 0
    added: int = 0

    def add(self, request: Request) -> int:
        """Queue a request.

        Raises: CapacityError if its prompt can never fit the context; UsageError for a token the target has not.
        """
        info = self.loop.target.info
        limit = info.max_len
        if max(request.prompt) >= info.vocab:
            raise UsageError(f"the prompt has token id {max(request.prompt)}; {info.name} has 0 to {info.vocab - 1}")
        if len(request.prompt) >= limit:
            raise CapacityError(
                f"the prompt has {len(request.prompt)} tokens; the context limit of {info.name} is "
                f"{limit} and one token at least must fit behind it: shorten the prompt"
            )
        number, self.added = self.first + self.added, self.added + 1
        self.waiting.append((number, request))
        return number

    def advance(self) -> list[Running]:
        """Admit, step once, retire; returns the requests that gained tokens, finished ones included.

        Raises: CapacityError if requests wait and no slot can ever become free for them here.
        """
        touched = []
        while self.waiting and len(self.running) < self.max_batch and self.loop.target.capacity().slots > 0:
            running = self._start(*self.waiting.popleft(), self.loop.target.acquire())
            self.running.append(running)
            self.loop.prefill(running)
            touched.append(running)
        if self.waiting and not self.running:
            raise CapacityError(
                f"{len(self.waiting)} requests wait, but others hold all slots of {self.loop.target.info.name} "
                f"or max_batch ({self.max_batch}) is below 1: end those, or load the model with more slots"
            )
        active = [r for r in self.running if not r.finish.reason]
        if active:
            self.loop.step(active)
        touched = list({r.number: r for r in (*touched, *active)}.values())
        self._retire()
        return touched

    def run(self, requests: Sequence[Request], on_progress: Callable[[Running], None] | None = None) -> list[Running]:
        """Run requests to their end and return their states in the order given."""
        numbers = [self.add(r) for r in requests]
        done: dict[int, Running] = {}
        for running in self.stream():
            done[running.number] = running
            if on_progress:
                on_progress(running)
        return [done[n] for n in numbers if n in done]

    def stream(self) -> Iterator[Running]:
        """Yield each request whenever it has gained tokens, until all have finished."""
        try:
            while self.waiting or self.running:
                if self.cancelled:
                    yield from self.abort()
                    return
                yield from self.advance()
        except BaseException:
            with suppress(Exception):  # the first error is the one to tell
                self.abort()
            raise

    def feed(self, requests: Iterable[Request]) -> Iterator[Running]:
        """Run any number of requests, taken from the iterable as places become free; yield each as it ends.

        After `cancel`, what ran is dropped and nothing more is yielded.
        """
        source = iter(requests)
        try:
            while not self.cancelled:
                for request in islice(source, max(self.max_batch - len(self.running) - len(self.waiting), 0)):
                    self.add(request)
                if not (self.waiting or self.running):
                    return
                yield from [r for r in self.advance() if r.finish.reason]
        finally:
            with suppress(Exception):  # the first error is the one to tell
                self.abort()

    def cancel(self) -> None:
        """Ask the loop to stop after the current step; safe to call from a signal handler."""
        self.cancelled = True

    def abort(self) -> list[Running]:
        """End every running request as `interrupted`, and the waiting ones, which have no token; returns them."""
        stopped = [r for r in self.running if not r.finish.reason]
        stopped += [self._start(number, request, NO_SLOT) for number, request in self.waiting]
        self.waiting.clear()
        for running in stopped:
            running.finish.end("interrupted")
        self._retire()
        return stopped

    def _start(self, number: int, request: Request, slot: int) -> Running:
        info = self.loop.target.info
        return Running.start(number, request, slot, self.tokenizer, info.eos, info.max_len)

    def _retire(self) -> None:
        ended = [r for r in self.running if r.finish.reason]
        self.running = [r for r in self.running if not r.finish.reason]
        with ExitStack() as stack:
            for running in ended:
                stack.callback(self.loop.release, running)
