"""Play a recipe: the engine's loop, real policy, rule and controller, on a simulated world and clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hedgerow.control.controller import Fixed
from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Controller, CostModel, Drafter, Policy, RowGroup, Rule, View
from hedgerow.core.recipe import Built, DraftSource, Recipe, check
from hedgerow.core.record import StepRecord
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Running
from hedgerow.simulate.clock import Clock, TimedDrafter, TimedTarget
from hedgerow.simulate.job import Ending, Job
from hedgerow.simulate.positional import Positional, RankTarget
from hedgerow.simulate.recorded import Recorded
from hedgerow.simulate.replay import ReplayTarget
from hedgerow.simulate.report import AsRecorded, Meter, Report
from hedgerow.verify.match import Match

World = Positional | Recorded
ANY = 1 << 30
CONTEXT = 512                              # of the step a guard's price is taken from
DEFAULT_STEPS = 10_000                     # of a positional world, which has no end
TICK = 256                                 # target calls between two progress reports


def parts(
    policy: Policy, rule: Rule | None = None, kind: str = "autoregressive", nodes: int = 15, name: str = "parts"
) -> Recipe:
    """A recipe of one's own parts to play with: a policy, a rule (match if none is given), one source of a kind.

    Raises: RecipeError for parts that do not fit.

    >>> from hedgerow.policy.bestfirst import BestFirst
    >>> parts(BestFirst(), nodes=7).exact
    True
    """
    source = DraftSource("stand-in", kind, None, "a drafter")
    return Recipe(name, 1, "parts to play with", "", (source,), policy, rule or Match(), nodes)


def play(
    recipe: Recipe, world: World, cost: CostModel | None = None, *, nodes: int | None = None, depth: int | None = None,
    width: int | None = None, batch: int | None = None, steps: int | None = None, seed: int = 0,
    controller: Controller | None = None, as_recorded: bool = False, drafters: Sequence[Drafter] | None = None,
    drafter: str | None = None, corpus: Sequence[int] = (), trace: Callable[[StepRecord], None] | None = None,
    on_progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> Report:
    """Play a recipe in a world and report tokens per step and, with a cost model, seconds and speed-up.

    `nodes`, `depth` and `width` cap the tree; `batch` requests run together (1, or as recorded). `steps` ends the play
    after so many requests' steps (10,000 in a positional world; a trace ends by itself). `controller` replaces the
    recipe's own, whose guard knows the cost model's prices; `as_recorded` plans as many nodes as were planned at every
    step that the trace has. `drafters` replaces the recipe's sources; `drafter` and `corpus` go to retrieval sources
    that need them. `trace` gets a record of every step. `on_progress(done, in all or None)` is called now and then.

    Ctrl-C ends the play after the last whole step: the report has what was played so far, and `interrupted` is true.

    Raises: UsageError for numbers out of range or a source that lacks something; RecipeError for parts that do not fit.

    >>> from hedgerow.recipes import get
    >>> play(get("plain"), Positional([0.6]), steps=100).tau
    1.0
    """
    _check(nodes, depth, width, batch, steps)
    size = recipe.nodes if nodes is None else nodes
    if size and not recipe.sources and not drafters:
        raise UsageError(f"nodes is {size}, but recipe {recipe.name!r} drafts nothing; give nodes 0 or another recipe")
    rule = world.rule(recipe.rule)
    clock, target = Clock(cost), world.target(rule)

    def price(rows: int = size + 1) -> float:
        return clock.ratio(rows, CONTEXT)

    control: Controller = controller or (recipe.controller or Fixed)(nodes=size, price=price)
    if as_recorded:
        if not isinstance(target, ReplayTarget):
            raise UsageError("as_recorded needs a trace; a positional world has no recorded plans")
        control = AsRecorded(control, target)
    check(recipe.name, recipe.policy, rule, control)
    if drafters is None:
        built = Built(info=target.info, target=target, drafter=drafter, corpus=corpus)
        drafters = [world.drafter(source, built, seed + i) for i, source in enumerate(recipe.sources)]
        kinds = [source.kind for source in recipe.sources]
    else:
        kinds = [source.kind for source in recipe.sources][: len(drafters)]
        kinds += ["autoregressive"] * (len(drafters) - len(kinds))
    timed = [TimedDrafter(d, clock, kind) for d, kind in zip(drafters, kinds, strict=True)]
    held: dict[int, Job] = {}             # slot -> the job that runs there

    def of_group(g: RowGroup) -> int:
        fixed = held[g.slot].context
        return int(g.positions[0]) if fixed is None else fixed

    def of_view(view: View) -> int:
        fixed = held[view.slot].context
        return view.position if fixed is None else fixed

    meter = Meter(control, clock, of_view, depth or ANY, width or ANY)
    loop = Loop(TimedTarget(target, clock, of_group), timed, recipe.policy, rule, meter, clock=clock, trace=trace)
    total = steps or (DEFAULT_STEPS if isinstance(world, Positional) else None)
    crew = Crew(loop, target, meter, held, total, on_progress)
    interrupted = False
    try:
        for wave in world.jobs(batch, seed, rule):
            together = batch or max(job.recording.batch if job.recording else 1 for job in wave)
            if not crew.run(wave, together):
                break
    except KeyboardInterrupt:
        interrupted = True
    on_progress(meter.total.steps, total)
    return _report(recipe, world, clock, meter, loop, crew, batch, size, seed, interrupted)


@dataclass
class Crew:
    """Runs waves of jobs on a loop as the engine's scheduler would: admit while there is room, step, retire."""

    loop: Loop
    target: RankTarget | ReplayTarget
    meter: Meter
    held: dict[int, Job]
    steps: int | None
    on_progress: Callable[[int, int | None], None]
    requests: int = 0
    largest: int = 0
    _running: list[Running] = field(default_factory=list)

    def run(self, jobs: Sequence[Job], batch: int) -> bool:
        """Play jobs in order, `batch` at a time, to their end; false if the steps ran out. Mutates everything."""
        waiting = deque(jobs)
        while waiting or self._running:
            while waiting and len(self._running) < batch:
                self._admit(waiting.popleft())
            active = [r for r in self._running if not r.finish.reason]
            if active:
                self.largest = max(self.largest, len(active))
                self.loop.step(active)
            self._retire()
            if self.meter.calls % TICK == 0:
                self.on_progress(self.meter.total.steps, self.steps)
            if self.steps is not None and self.meter.total.steps >= self.steps:
                return False
        return True

    def _admit(self, job: Job) -> None:
        info = self.loop.target.info
        slot = self.loop.target.acquire()
        self.held[slot] = job
        running = Running.start(self.requests, job.request, slot, None, info.eos, info.max_len, job.rng)
        if job.recording is not None:
            assert isinstance(self.target, ReplayTarget)
            self.target.bind(slot, job.recording)
            running.finish = Ending(running.finish.rule, after=job.recording.end, why=job.recording.reason)
        self.requests += 1
        self._running.append(running)
        self.loop.prefill(running)

    def _retire(self) -> None:
        for running in [r for r in self._running if r.finish.reason]:
            self._running.remove(running)
            self.loop.release(running)
            del self.held[running.slot]


def _check(
    nodes: int | None, depth: int | None, width: int | None, batch: int | None, steps: int | None
) -> None:
    for name, value, least in (
        ("nodes", nodes, 0), ("depth", depth, 1), ("width", width, 1), ("batch", batch, 1), ("steps", steps, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"{name} is {value}; allowed: {least} or more")


def _report(
    recipe: Recipe, world: World, clock: Clock, meter: Meter, loop: Loop, crew: Crew, batch: int | None, size: int,
    seed: int, interrupted: bool,
) -> Report:
    total, priced = meter.total, clock.cost is not None
    seconds = {"total": total.seconds, "draft": loop.seconds["draft"], "verify": loop.seconds["verify"]}
    replayed = crew.target if isinstance(crew.target, ReplayTarget) else None
    return Report(
        recipe=recipe.name, recipe_version=recipe.version, world=type(world).__name__.lower(),
        tau=total.tau, tau_error=total.error, requests=crew.requests, calls=meter.calls, steps=total.steps,
        tokens=total.tokens, proposed=meter.proposed, drafted=meter.drafted, accepted=meter.accepted,
        acceptance_rate=meter.accepted / meter.drafted if meter.drafted else None,
        mean_nodes=meter.drafted / total.steps if total.steps else None, histogram=meter.histogram,
        share={form: n / total.steps if total.steps else 0.0 for form, n in meter.forms.items()},
        by_context=meter.by_context(), draft_calls=[getattr(d, "calls", 0) for d in loop.drafters],
        batch=batch or crew.largest, nodes=size, seed=seed,
        seconds=seconds if priced else None,
        plain_seconds=total.plain_s if priced else None, speedup=total.speedup if priced else None,
        tok_s=total.tokens / total.seconds if priced and total.seconds else None,
        profile=getattr(clock.cost, "name", None),
        known=1.0 - replayed.unknown / replayed.rows if replayed and replayed.rows else 1.0, interrupted=interrupted,
    )
