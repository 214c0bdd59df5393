"""The three-line way: `load` a model once, `generate` from it; or `hedgerow.generate(prompt)` for a single text.

    import hedgerow
    lm = hedgerow.load("demo")
    print(lm.generate("Why do hedgerows matter?").text)
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hedgerow.control.controller import Fixed
from hedgerow.core.errors import UnknownName, UsageError
from hedgerow.core.parts import Controller, Drafter, Policy, Sampling, Target, Tokenizer
from hedgerow.core.recipe import Built, Recipe, check
from hedgerow.core.record import StepRecord
from hedgerow.cost.measure import Prices
from hedgerow.draft.opening import drafters_of
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request, Running
from hedgerow.engine.result import Chunk, Result, versions
from hedgerow.engine.scheduler import Scheduler
from hedgerow.recipes import get

__all__ = ["Chunk", "Prompt", "Result", "Session", "assemble", "generate", "load", "versions"]

Prompt = str | Sequence[dict[str, str]]     # a text, or the messages of a conversation


@dataclass
class Session:
    """A loaded model with a recipe. Retrieval state lives as long as the session and serves all its requests."""

    target: Target
    tokenizer: Tokenizer
    recipe: Recipe
    policy: Policy                        # the recipe's, copied: some remember what they saw
    drafters: list[Drafter]
    controller: Controller
    nodes: int
    prices: Prices
    seconds_load: float = 0.0
    threads: int | None = None
    profile: str | None = None
    max_batch: int = 8
    trace: Callable[[StepRecord], None] | None = None
    drafter: str | None = None
    corpus: Sequence[int] = ()
    _scheduler: Scheduler | None = None
    _requests: int = 0                    # so far: their numbers are never used twice

    def generate(
        self, prompts: Prompt | list[str] | list[Sequence[dict[str, str]]], *, raw: bool = False, **options: Any
    ) -> Any:
        """Generate from one prompt (a `Result`) or a list of prompts as one batch (a list of them, in order).

        A prompt is a text (put as the user's turn into the chat template unless `raw`) or a list of messages. Options:
        max_tokens, min_tokens, temperature, top_p, top_k, min_p, seed, stop, stop_ids, ignore_eos, logprobs, tenant.

        Raises: UsageError, CapacityError.
        """
        many = isinstance(prompts, list) and not (prompts and isinstance(prompts[0], dict))
        batch: list[Any] = list(prompts) if many else [prompts]
        requests = [self.request(p, raw=raw, **options) for p in batch]
        start = time.perf_counter()
        loop = self._loop()
        states = self._schedule(loop, len(requests)).run(requests)
        total_s = time.perf_counter() - start
        results = [self._result(r, loop, total_s) for r in states]
        return results if many else results[0]

    def stream(self, prompt: Prompt, *, raw: bool = False, **options: Any) -> Iterator[Chunk]:
        """Generate from one prompt, piece by piece; no piece splits a character, none has to be taken back."""
        start = time.perf_counter()
        loop = self._loop()
        scheduler = self._schedule(loop, 1)
        scheduler.add(self.request(prompt, raw=raw, **options))
        sent_text, sent_ids = 0, 0
        for running in scheduler.stream():
            text, ids = running.finish.text, running.finish.ids
            piece = Chunk(text[sent_text:], ids[sent_ids:])
            sent_text, sent_ids = len(text), len(ids)
            done = running.finish.reason is not None
            yield replace(piece, result=self._result(running, loop, time.perf_counter() - start)) if done else piece

    def run(self, requests: Iterable[Request]) -> Iterator[Running]:
        """Run requests as one ever-full batch of `max_batch` and yield each as it ends; ask for as many as you like.

        Requests are taken from the iterable as places become free. After `cancel`, what ran is not yielded.
        """
        scheduler = self._schedule(self._loop(), 0)
        try:
            yield from scheduler.feed(requests)
        finally:
            self._requests += scheduler.added

    def cancel(self) -> None:
        """End what runs after its current step, as `interrupted`; safe in a signal handler."""
        if self._scheduler:
            self._scheduler.cancel()

    def request(self, prompt: Prompt, *, raw: bool = False, **options: Any) -> Request:
        """The engine's request for a prompt and options; unknown options are refused with a did-you-mean."""
        known = {"max_tokens", "min_tokens", "seed", "choice", "ignore_eos", "logprobs", "tenant"}
        law = {"temperature", "top_k", "top_p", "min_p"}
        for extra in sorted(set(options) - known - law - {"stop", "stop_ids"}):
            raise UnknownName("option", extra, known | law | {"stop", "stop_ids"})
        if isinstance(prompt, str):
            if not prompt:
                raise UsageError("the prompt is empty; give some text")
            ids = self.tokenizer.encode(prompt) if raw else self.tokenizer.chat([{"role": "user", "content": prompt}])
        else:
            ids = self.tokenizer.chat(prompt)
        stop = options.get("stop") or ()
        return Request(
            prompt=tuple(ids), sampling=Sampling(**{k: options[k] for k in law & set(options)}),
            stop=(stop,) if isinstance(stop, str) else tuple(stop), stop_ids=frozenset(options.get("stop_ids") or ()),
            **{k: options[k] for k in known & set(options)},
        )

    def with_recipe(self, name: str, *, nodes: int | None = None) -> Session:
        """The same loaded model under another recipe, with its own drafters and state."""
        return self._again(get(name), nodes)

    def fresh(self) -> Session:
        """The same loaded model and recipe with empty drafters: nothing learned from earlier requests."""
        return self._again(self.recipe, self.nodes)

    def _again(self, recipe: Recipe, nodes: int | None) -> Session:
        other = assemble(
            self.target, self.tokenizer, recipe, nodes=nodes, drafter=self.drafter, corpus=self.corpus,
            prices=self.prices,
        )
        return replace(
            other, seconds_load=self.seconds_load, threads=self.threads, profile=self.profile, max_batch=self.max_batch
        )

    def _loop(self) -> Loop:
        return Loop(self.target, self.drafters, self.policy, self.recipe.rule, self.controller, trace=self.trace)

    def _schedule(self, loop: Loop, requests: int) -> Scheduler:
        self._scheduler = Scheduler(loop, self.tokenizer, self.max_batch, first=self._requests)
        self._requests += requests
        return self._scheduler

    def _result(self, r: Running, loop: Loop, total_s: float) -> Result:
        info, finish = self.target.info, r.finish
        spent = loop.seconds
        count, decode_s = len(finish.ids), total_s - spent["prefill"]
        drafted_steps, steady = r.forms["chain"] + r.forms["tree"], getattr(self.controller, "steady", False)
        reason = "" if drafted_steps else max(r.reasons, key=lambda k: r.reasons[k], default="nothing was proposed")
        return Result(
            text=finish.text, token_ids=list(finish.ids), prompt_tokens=len(r.request.prompt), completion_tokens=count,
            finish_reason=finish.reason or "interrupted", model=info.name, recipe=self.recipe.name,
            recipe_version=self.recipe.version, exact=self.recipe.exact,
            reproducible=self.recipe.exact and (steady or not self.recipe.rule.needs_q),
            speculation={
                "active": drafted_steps > 0, "reason": reason or None,
                "share": {k: (v / r.steps if r.steps else 0.0) for k, v in r.forms.items()},
            },
            steps=r.steps, proposed=r.proposed, drafted=r.drafted, accepted=r.accepted, committed=max(count - 1, 0),
            tokens_per_step=(count - 1) / r.steps if r.steps else None,
            acceptance_rate=r.accepted / r.drafted if r.drafted else None, histogram=list(r.histogram),
            seconds={
                "load": self.seconds_load, "total": total_s, "prefill": spent["prefill"], "draft": spent["draft"],
                "verify": spent["verify"], "overhead": decode_s - spent["draft"] - spent["verify"],
            },
            tok_s=(count - 1) / decode_s if count > 1 and decode_s > 0 else None,
            nodes=self.nodes, temperature=r.request.sampling.temperature, top_p=r.request.sampling.top_p,
            seed=r.request.seed, device=info.device, dtype=info.dtype, quant=info.quant, backend=info.backend,
            threads=self.threads, profile=self.profile, versions=versions(),
            logprobs=list(r.logprobs) if r.request.logprobs else None,
        )


def assemble(
    target: Target, tokenizer: Tokenizer, recipe: Recipe, *, nodes: int | None = None, drafter: str | None = None,
    corpus: Sequence[int] = (), controller: Controller | None = None, prices: Prices | None = None,
) -> Session:
    """A session from parts that are already loaded; `prices` are step times of the target that are known already.

    Raises: UsageError for a bad node count or a drafter that is missing; RecipeError for parts that do not fit.
    """
    if nodes is not None and nodes < 0:
        raise UsageError(f"nodes is {nodes}; allowed: 'auto', 0 (plain decoding) or more")
    size = recipe.nodes if nodes is None else nodes
    if size and not recipe.sources:
        raise UsageError(f"nodes is {size}, but recipe {recipe.name!r} drafts nothing: use another")
    built = Built(target.info, target, drafter, corpus, tokenizer)
    drafters = drafters_of(recipe, built)
    known = prices or Prices(target)
    control = controller or (recipe.controller or Fixed)(nodes=size, price=known.pricer(size + 1))
    check(recipe.name, recipe.policy, recipe.rule, control)
    policy = copy.deepcopy(recipe.policy)
    return Session(target, tokenizer, recipe, policy, drafters, control, size, known, drafter=drafter, corpus=corpus)


def load(
    model: str = "demo", *, recipe: str = "auto", nodes: int | str = "auto", drafter: str | None = None,
    dtype: str = "auto", device: str = "auto", quant: str = "none", threads: int | None = None, compile: bool = True,
    max_batch: int = 8, stream_bytes: int | None = None, report: Callable[[str], None] = lambda message: None,
) -> Session:
    """Load a model (`demo`, a directory, a .gguf file, a hub id) under a recipe; `stream_bytes`: see `load_target`.

    Raises: UnknownName, UsageError, ModelError.
    """
    chosen = get(recipe)
    size = None if nodes == "auto" else _count(nodes)
    start = time.perf_counter()
    from hedgerow.target.lm import load_target
    target, tokenizer = load_target(
        model, dtype=dtype, device=device, quant=quant, threads=threads, max_slots=max_batch,
        compile=compile, stream_bytes=stream_bytes, report=report,
    )
    session = assemble(target, tokenizer, chosen, nodes=size, drafter=drafter)
    session.prices.ratio(session.nodes + 1)  # also warms the machine up, so that the first step is like the others
    return replace(session, seconds_load=time.perf_counter() - start, threads=threads, max_batch=max_batch)


def generate(prompt: Prompt, model: str = "demo", **options: Any) -> Result:
    """Load a model, generate once, and let it go: `load` it yourself for more than one text."""
    keys = {"recipe", "nodes", "drafter", "dtype", "device", "quant", "threads", "compile", "stream_bytes"}
    session = load(model, **{k: options.pop(k) for k in keys & set(options)})
    result: Result = session.generate(prompt, **options)
    return result


def _count(nodes: int | str) -> int:
    if not str(nodes).isdecimal():
        raise UsageError(f"nodes is {nodes!r}; allowed: 'auto', 0 (plain decoding) or a number of nodes")
    return int(nodes)
