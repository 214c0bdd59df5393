"""Prove or refute a rule: the exact law of a whole step, by enumeration.

Everything random in a step — what is drafted, what is accepted, what is emitted — is asked of one `Source`. A `Tape`
answers with every possibility in turn, so the law of the step's output is a finite sum, and lossless means: equal to
the target's to rounding, not "close". The enumerated unit is the whole step: policy, selection, controller and rule,
for one request or for two that share a budget.

    from hedgerow.testing.law import Grown, Request, step_law
    report = step_law(MyRule(), Request(Grown.levels(2, 2, selection=Selection.IID), p, q))
    print(report); report.assert_lossless()

A law is a function from the tokens below the root to the law of the next token. Keep vocabularies at 3 and drawn trees
at 4 to 6 nodes with two siblings at depth 2: smaller ones hide real bugs, larger ones explode. Where p exceeds q on a
single token many bugs are invisible; let p exceed q on two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Controller, Plan, Rule
from hedgerow.core.rng import Purpose, Source, Tape
from hedgerow.core.tree import Selection
from hedgerow.testing.steps import Edited, Grew, Grown, Judged, Request, drafted, separate, trees
from hedgerow.testing.toy import BIG, Law, play
from hedgerow.verify.onenode import Drafted

__all__ = ["Edited", "Grown", "Report", "Request", "pathwise", "separate", "step_law", "trees", "trees_law"]

TOLERANCE = 1e-12
LEAVES = 200_000


@dataclass(frozen=True)
class Report:
    """What the enumeration found; the law compared is that of the next `horizon` tokens of every request, jointly."""

    name: str
    error: float                          # largest |law − target| over outcomes
    tv: float                             # total variation between them
    leaves: int                           # branches enumerated
    horizon: tuple[int, ...]
    accepted: tuple[float, ...]           # expected accepted draft tokens, per request
    law: np.ndarray = field(repr=False)
    target: np.ndarray = field(repr=False)

    def __str__(self) -> str:
        worst = np.unravel_index(int(np.argmax(np.abs(self.law - self.target))), self.law.shape)
        kind = "lossless" if self.error <= TOLERANCE else "BIASED"
        return (
            f"{self.name}: {kind}, max error {self.error:.3g} (outcome {tuple(int(i) for i in worst)}: "
            f"{self.law[worst]:.12g} instead of {self.target[worst]:.12g}), total variation {self.tv:.3g}, "
            f"accepted {', '.join(f'{a:.9g}' for a in self.accepted)} per step, {self.leaves} branches"
        )

    def assert_lossless(self, tolerance: float = TOLERANCE) -> Report:
        """Raises AssertionError with the report in words if the law is not the target's."""
        assert self.error <= tolerance, str(self)
        return self

    def assert_biased(self, at_least: float = 1e-6) -> Report:
        """Raises AssertionError if the law is the target's: for combinations that must be refused."""
        assert self.error >= at_least, str(self)
        return self


def step_law(
    rule: Rule, *requests: Request, controller: Controller | None = None, name: str = "", limit: int = LEAVES
) -> Report:
    """Enumerate one whole step and compare the joint law of its output with the target's.

    Without a controller each request's plan is its `nodes` and nothing is cut. With one, `plan` is asked before
    drafting and `cut` for every combination of drafted trees, so admission that looks ahead is found out.

    Raises: UsageError beyond `limit` branches or two requests; ValueError if the step uses a random number twice.
    """
    if not 1 <= len(requests) <= 2:
        raise UsageError(f"{len(requests)} requests; one or two are enumerated")
    views = [r.view(i, Tape([]).request(i, r.position)) for i, r in enumerate(requests)]
    plans = controller.plan(views) if controller is not None else [Plan(r.nodes) for r in requests]
    grown, leaves = [], 0
    for i, (request, plan) in enumerate(zip(requests, plans, strict=True)):
        group, count = drafted(request, i, plan)
        grown.append(group)
        leaves += count
    combinations = int(np.prod([len(g) for g in grown]))
    if leaves + combinations > limit:
        raise UsageError(
            f"{leaves} drafts make {combinations} combinations; at most {limit} are allowed: make the case smaller"
        )
    return _report(rule, requests, grown, controller, leaves, name, limit)


def trees_law(rule: Rule, drafted: Drafted, p: Law, q: Law, name: str = "", limit: int = LEAVES) -> Report:
    """The same for trees enumerated elsewhere: `drafted` lists every tree with its probability.

    Raises: UsageError if the probabilities do not sum to one.
    """
    total = sum(w for w, _ in drafted)
    if abs(total - 1.0) > 1e-9:
        raise UsageError(f"the trees' probabilities sum to {total}; they must sum to 1: list every tree once")
    request = Request(Grown.levels(), p, q)
    view = request.view(0, Tape([]).request(0))
    grown = [Grew(w, tree, view, frozenset()) for w, tree in drafted]
    return _report(rule, (request,), [grown], None, len(grown), name, limit)


def _report(
    rule: Rule, requests: Sequence[Request], grown: list[list[Grew]], controller: Controller | None, leaves: int,
    name: str, limit: int,
) -> Report:
    combinations = int(np.prod([len(g) for g in grown]))
    horizons = tuple(1 + max((g.tree.max_depth for g in group), default=0) for group in grown)
    judges = [Judged(rule, r, i, h) for i, (r, h) in enumerate(zip(requests, horizons, strict=True))]
    target = judges[0].after(()) if len(judges) == 1 else np.outer(judges[0].after(()), judges[1].after(()))
    law, accepted = np.zeros_like(target), np.zeros(len(requests))
    for cuts, weights in _cuts(grown, controller):
        laws, means = [], []
        for judge, group, cut, used in zip(judges, grown, cuts, _alive(weights), strict=True):
            zero = np.zeros(judge.vocab**judge.horizon), 0.0
            judged = [judge(g, cut if controller else BIG) if u else zero for g, u in zip(group, used, strict=True)]
            laws.append(np.stack([j[0] for j in judged]))
            means.append(np.array([j[1] for j in judged]))
        if len(judges) == 1:
            law += weights @ laws[0]
            accepted[0] += float(weights @ means[0])
        else:
            law += laws[0].T @ weights @ laws[1]
            accepted += [float(means[0] @ weights.sum(axis=1)), float(weights.sum(axis=0) @ means[1])]
        if sum(j.leaves for j in judges) + leaves > limit:
            raise UsageError(f"more than {limit} branches; make the case smaller")
    gap = np.abs(law - target)
    total = leaves + combinations * (controller is not None) + sum(j.leaves for j in judges)
    return Report(
        name or f"{rule.name} on {_labels(grown)}",
        float(gap.max()), float(gap.sum() / 2), total, horizons, tuple(accepted.tolist()), law, target,
    )


def _labels(grown: list[list[Grew]]) -> str:
    found = {int(s) for group in grown for g in group for s in g.tree.selection}
    return ", ".join(Selection(s).label for s in sorted(found)) or "nothing drafted"


def _alive(weights: np.ndarray) -> list[np.ndarray]:
    """Which trees of each request have weight in some combination."""
    alive = weights > 0
    return [alive] if alive.ndim == 1 else [np.any(alive, axis=1), np.any(alive, axis=0)]


def _cuts(grown: list[list[Grew]], controller: Controller | None) -> Iterable[tuple[tuple[int, ...], np.ndarray]]:
    """Every vector of cuts with the probability of each combination of trees that gets it."""
    weights = [np.array([g.weight for g in group]) for group in grown]
    joint = weights[0] if len(weights) == 1 else np.outer(*weights)
    if controller is None:
        yield (BIG,) * len(grown), joint
        return
    out: dict[tuple[int, ...], np.ndarray] = {}
    for at in product(*(range(len(group)) for group in grown)):
        chosen = [group[i] for group, i in zip(grown, at, strict=True)]
        cut = tuple(controller.cut([g.tree for g in chosen], [g.view for g in chosen]))
        out.setdefault(cut, np.zeros_like(joint))[at] += joint[at]
    yield from out.items()


# ------------------------------------------------------------------------------------------------ path by path

def pathwise(rule: Rule, request: Request, rngs: Iterable[Source]) -> Report:
    """Whether a step's tokens are plain decoding's own, random number by random number: stronger than equal laws.

    Plain decoding draws the token at each position from the target with `Purpose.TARGET`. `error` is 1 if any of the
    given sources tells them apart, and `accepted` the mean over them.
    """
    worst, accepted, count = 0.0, 0.0, 0
    vocab = len(request.p(()))
    for rng in rngs:
        count += 1
        rng = rng.at(request.position)
        view = request.view(0, rng)
        laws = [request.q] if callable(request.q) else list(request.q)
        tree = play(request.policy, laws, request.nodes, view=view, plan=Plan(request.nodes)).tree
        paths = {v: tuple(int(tree.tokens[i]) for i in tree.path(v)) for v in range(-1, tree.nodes)}
        verdict = rule.verify(
            tree, lambda node, at=paths: request.p(at[node]),  # type: ignore[misc]
            lambda node, source, at=paths: request.draft(source)(at[node]), rng, request.position,  # type: ignore[misc]
        )
        plain: tuple[int, ...] = ()
        for token in verdict.committed(tree):
            drawn = rng.categorical(request.p(plain), request.position + len(plain) + 1, Purpose.TARGET)
            worst = max(worst, float(drawn != token))
            plain = (*plain, token)
        accepted += len(verdict.path)
    none = np.zeros(vocab)
    return Report(f"{rule.name} against plain decoding", worst, worst, count, (0,), (accepted / count,), none, none)
