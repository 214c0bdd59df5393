"""One decode step, in two halves that never call the target, and the loop that puts the target between them.

    propose   plans  = controller.plan(batch)               caps; 0 nodes = do not even draft
              trees  = lockstep(policy, drafters, plans)    ordered trees, one drafter call per source and round
              packed = pack(trees, controller.cut(trees))   every prefix of a tree is a tree
    target    rows   = target.collect(target.submit(...))   the only target call
    settle    verdicts = rule.verify(tree, p, q, rng)       per request; exact
    commit    target and drafters keep the accepted path and drop the rest
    emit      stop conditions token by token; controller.observe(...)

Plain decoding is a plan of 0 nodes, a chain is a tree of width 1: there is no other path through this file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np

from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import (
    Controller,
    Drafter,
    Needs,
    Observation,
    Packed,
    Plan,
    Policy,
    Row,
    RowGroup,
    Rule,
    Step,
    Target,
    TargetRows,
    Verdict,
    View,
)
from hedgerow.core.probs import OneHot, entropy, log_law
from hedgerow.core.record import StepRecord
from hedgerow.core.tree import TokenTree
from hedgerow.engine.lockstep import lockstep
from hedgerow.engine.request import Running
from hedgerow.engine.trace import record

PARTS = ("prefill", "draft", "verify", "other")


@dataclass
class Loop:
    """The parts of one recipe on one target. `clock` returns seconds; `trace` gets a record per request and step."""

    target: Target
    drafters: Sequence[Drafter]
    policy: Policy
    rule: Rule
    controller: Controller
    clock: Callable[[], float] = time.perf_counter
    trace: Callable[[StepRecord], None] | None = None
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @property
    def needs(self) -> Needs:
        """What the drafters want of every row."""
        out = Needs()
        for drafter in self.drafters:
            out |= drafter.needs
        return out

    def propose(self, batch: Sequence[Running]) -> Packed:
        """Draft and cut a tree per request and lay out the rows of the coming target call. Mutates drafters only."""
        views = [r.view() for r in batch]
        plans = [cap(plan, view.room) for plan, view in zip(self.controller.plan(views), views, strict=True)]
        grown = lockstep(self.policy, self.drafters, views, plans)
        cuts = self.controller.cut(grown, views)
        trees = [tree.prefix(n) for tree, n in zip(grown, cuts, strict=True)]
        check_tokens(trees, self.target.info.vocab)
        groups = [
            RowGroup("tree", v.slot, np.concatenate([[v.root], t.tokens]), t.positions(v.position), t.mask)
            for v, t in zip(views, trees, strict=True)
        ]
        return Packed(views, plans, [t.nodes for t in grown], trees, groups)

    def settle(self, packed: Packed, rows: TargetRows, batch: Sequence[Running]) -> list[Verdict]:
        """Judge every tree by the target's rows. Pure but for the lazy transfer of rows."""
        return [
            self.rule.verify(
                tree, self._target_law(rows, i, tree, running), self._draft_law(tree, view), view.rng, view.position
            )
            for i, (tree, view, running) in enumerate(zip(packed.trees, packed.views, batch, strict=True))
        ]

    def step(self, batch: Sequence[Running]) -> None:
        """One step for the whole batch: propose, target, settle, commit, emit. Mutates every part and request."""
        start = self.clock()
        packed = self.propose(batch)
        drafted = self.clock()
        rows, feats = self.target.collect(self.target.submit(packed.groups, self.needs))
        called = self.clock()
        verdicts = self.settle(packed, rows, batch)
        for i, (running, tree, verdict) in enumerate(zip(batch, packed.trees, verdicts, strict=True)):
            self.target.commit(running.slot, [0, *(node + 1 for node in verdict.path)])
            done = Step(tree, verdict, feats[i], packed.views[i].root, packed.views[i].position, called - drafted)
            for drafter in self.drafters:
                drafter.commit(running.slot, done)
        parts = zip(batch, packed.trees, verdicts, strict=True)
        kept = [self._emit(*part, packed, rows, i) for i, part in enumerate(parts)]
        self.controller.observe([
            Observation(
                v.request, plan, tree, verdict, n, running.finish.reason is not None, called - drafted,
                packed.rows, len(batch), drafted - start,
            )
            for v, plan, tree, verdict, n, running in zip(
                packed.views, packed.plans, packed.trees, verdicts, kept, batch, strict=True
            )
        ])
        end = self.clock()
        spent = {"draft": drafted - start, "verify": called - drafted, "other": end - called}
        for part, seconds in spent.items():
            self.seconds[part] += seconds
        if self.trace:
            for i, running in enumerate(batch):
                self.trace(record(packed, i, verdicts[i], kept[i], running, rows, spent))

    def prefill(self, running: Running) -> None:
        """Run what is new of a prompt, draw the first token, start the drafters. Mutates every part and the request."""
        start = self.clock()
        prompt, slot = running.request.prompt, running.slot
        n = len(prompt)
        running.cached = cached = self.target.reuse(slot, prompt, self.needs, running.request.tenant)
        new = n - cached
        group = RowGroup("prefill", slot, np.array(prompt[cached:]), np.arange(cached, n), np.empty((new, 0), np.bool_))
        rows, feats = self.target.collect(self.target.submit([group], self.needs))
        p = running.process(rows.logits(0, new - 1), 0)
        token = running.rng.at(n - 1).categorical(p, n)
        self.target.commit(slot, range(new))
        if running.request.logprobs:
            running.logprobs.append(float(log_law(rows.logits(0, new - 1))[token]))
        running.finish.take([token])
        running.entropy = self._entropy(rows, 0, new - 1)
        running.prompt_feats = feats[0] if self.trace else None
        for drafter in self.drafters:
            running.begun += 1
            drafter.begin(slot, [*prompt, token], feats[0], running.request.tenant)
        self.seconds["prefill"] += self.clock() - start

    def release(self, running: Running) -> None:
        """Give back everything the request holds; a part whose release raises keeps no other from it."""
        with ExitStack() as stack:
            stack.callback(self.target.release, running.slot)
            for drafter in self.drafters[: running.begun]:
                stack.callback(drafter.release, running.slot)

    def _target_law(self, rows: TargetRows, group: int, tree: TokenTree, running: Running) -> Callable[[int], Row]:
        """p(node): the request's processed law after a node; a greedy row never leaves the device."""
        vocab, completed = self.target.info.vocab, running.completed
        best: list[int] = []

        def p(node: int) -> Row:
            at = completed + (int(tree.depth[node]) if node >= 0 else 0)
            if not running.process.plain_greedy(at):
                return running.process(rows.logits(group, node + 1), at)
            if not best:
                best.extend(rows.argmax(group).tolist())
            return OneHot.of(best[node + 1], vocab)

        return p

    def _draft_law(self, tree: TokenTree, view: View) -> Callable[[int, int], Row]:
        def q(node: int, source: int) -> Row:
            child = next(c for c in tree.children[node + 1] if tree.source[c] == source)
            return self.drafters[source].row(view.slot, int(tree.origin[child]))

        return q

    def _entropy(self, rows: TargetRows, group: int, row: int) -> float | None:
        """Of the raw law that chose a root, for policies that declare `reads_entropy`: it costs a row's transfer."""
        if not getattr(self.policy, "reads_entropy", False):
            return None
        return entropy(np.exp(log_law(rows.logits(group, row))))

    def _emit(
        self, running: Running, tree: TokenTree, verdict: Verdict, packed: Packed, rows: TargetRows, i: int
    ) -> int:
        """Pass the committed tokens through the stop conditions; returns how many were kept."""
        tokens = verdict.committed(tree)
        kept = running.finish.take(tokens)
        if running.request.logprobs:
            for parent, token in zip((-1, *verdict.path), tokens[:kept], strict=False):
                running.logprobs.append(float(log_law(rows.logits(i, parent + 1))[token]))
        running.entropy = self._entropy(rows, i, verdict.path[-1] + 1 if verdict.path else 0)
        accepted = min(len(verdict.path), kept)
        running.steps += 1
        running.proposed += packed.proposed[i]
        running.drafted += tree.nodes
        running.accepted += accepted
        running.histogram += [0] * (accepted + 1 - len(running.histogram))
        running.histogram[accepted] += 1
        running.forms[tree.form] += 1
        unused = "the drafts were not worth verifying" if packed.proposed[i] else "nothing was proposed"
        running.reason = "" if tree.nodes else packed.plans[i].reason or unused
        if running.reason:
            running.reasons[running.reason] = running.reasons.get(running.reason, 0) + 1
        return kept


def cap(plan: Plan, room: int) -> Plan:
    """A plan whose depth fits the room a request has left; without room nothing is drafted."""
    if plan.nodes > 0 and room <= 0:
        return Plan(0, reason="no room: the next token is the last one allowed")
    return plan if plan.depth <= room else replace(plan, depth=room)


def check_tokens(trees: Sequence[TokenTree], vocab: int) -> None:
    """Raise InvariantError for a drafted token that the target has not."""
    for tree in trees:
        if tree.nodes and not 0 <= tree.tokens.min() <= tree.tokens.max() < vocab:
            raise InvariantError(
                f"drafted tokens are {tree.tokens.min()} to {tree.tokens.max()}, the target's 0 to {vocab - 1}: "
                "a drafter maps its ids to the target's"
            )
