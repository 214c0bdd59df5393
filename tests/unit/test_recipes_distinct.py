"""What counts as a method: two recipes are two only if they draft other trees, or decide otherwise, on fixed views.

Fifty requests, alike for all: a text, a target law, draft laws for three sources, a temperature, a budget, the entropy
of the law before. A recipe's fingerprint is, per view, its tree (tokens, parents, in order) and what its rule makes of
it with fixed random numbers. Its drafters are toys that answer from the view's laws, but for retrieval drafters, which
the recipe makes itself: they have read the view's text and the rows of its prompt.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hedgerow.core.parts import Ask, Children, Drafter, Feats, Needs, Plan, Row, Sampling, TargetInfo, View
from hedgerow.core.probs import law as law_of
from hedgerow.core.recipe import Built, DraftSource, Recipe
from hedgerow.core.rng import Rng
from hedgerow.core.tree import TokenTree
from hedgerow.engine.lockstep import lockstep
from hedgerow.recipes import get, names
from hedgerow.testing.toy import BIG, Law, children_of, marginals, random_law

VIEWS, VOCAB, DEPTH = 50, 20, 14
TEMPERATURES = (0.0, 0.6, 1.0)
CAPS = (BIG, BIG, BIG, 31, 9)              # on the recipe's own size
ENTROPIES = (None, 0.1, 0.8, 1.6, 2.6)
INFO = TargetInfo("toy", VOCAB, 4096, "cpu", "float64", "numpy")


class Situation:
    """One view, the same for every recipe."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.temperature = TEMPERATURES[number % 3]
        self.cap = CAPS[number // 3 % 5]
        self.entropy = ENTROPIES[number % 5]
        self.block = number % 2 == 1       # drafts know the depth only, as a block's do
        draw = np.random.default_rng([7, number])
        piece = draw.integers(0, VOCAB, 4 + number % 5).tolist()
        self.text = [*piece, *draw.integers(0, VOCAB, 3).tolist(), *piece, *piece[: 1 + number % 3]]
        concentration = (0.02, 0.08, 0.25, 1.0)[number // 2 % 4]   # from one likely token to many
        self.share = (0.97, 0.8, 0.6)[number // 4 % 3]             # how well the first source knows the target
        if self.block:
            rows = draw.dirichlet(np.full(VOCAB, concentration), DEPTH).tolist()
            self.base = marginals(rows)
        else:
            self.base = random_law(number, VOCAB, DEPTH, concentration)
        self.noise = [random_law(1000 + 100 * s + number, VOCAB, DEPTH, 0.5) for s in range(3)]
        self.rows: dict[tuple[int, float, tuple[int, ...]], Row] = {}

    def sampling(self) -> Sampling:
        return Sampling(self.temperature)

    def target(self, path: tuple[int, ...]) -> Row:
        """The target's law after a token path, as the request samples it; beyond the drafters' reach too."""
        return self._law(1.0, path[: DEPTH - 1], 0, self.temperature)

    def draft(self, source: int, temperature: float) -> Law:
        """A source's law: the later the source, the worse it knows the target."""

        def law(path: tuple[int, ...]) -> Row:
            if len(path) >= DEPTH:
                return np.zeros(VOCAB)
            return self._law(self.share - 0.15 * source, path, source, temperature)

        return law

    def _law(self, share: float, path: tuple[int, ...], source: int, temperature: float) -> Row:
        key = (int(share * 100), temperature, path)
        if key not in self.rows:
            other = self.noise[source](() if self.block else path)
            mixed = share * self.base(path) + (1.0 - share) * other
            self.rows[key] = law_of(np.log(np.maximum(mixed, 1e-12)), Sampling(temperature))
        return self.rows[key]


class Toy:
    """A drafter of every selection, with what `aux` may hold; greedy requests rank by the law at temperature 1."""

    needs = Needs()

    def __init__(self, situation: Situation, source: int) -> None:
        self.situation, self.source = situation, source

    def children(self, asks: Sequence[Ask]) -> Children:
        (ask,) = asks
        now = self.situation.temperature
        ranked = 1.0 if now == 0.0 and not ask.frontier.selection.drawn else now
        law = self.situation.draft(self.source, ranked)
        got = children_of(law, ask.frontier, ask.view)
        if self.situation.block:
            table = [sorted((math.log(x) for x in law((0,) * d) if x > 0.0), reverse=True) for d in range(DEPTH)]
            got.aux["block"] = [table if node < 0 else [] for node in ask.frontier.nodes]  # type: ignore[misc]
        return got


def drafter(source: DraftSource, number: int, situation: Situation) -> Drafter | Toy:
    """A recipe's own retrieval drafter, which has read the text and its rows; else a toy."""
    if source.make is None or source.kind != "retrieval":
        return Toy(situation, number)
    made = source.make(Built(INFO))
    prompt = situation.text[:-1]
    rows = np.array([situation.target((t,)) + 1e-9 for t in prompt])
    best = np.argsort(-rows, axis=1, kind="stable")[:, : made.needs.top_k]
    feats = Feats(top_ids=best, top_logits=np.log(np.take_along_axis(rows, best, 1))) if made.needs.top_k else Feats()
    made.begin(0, situation.text, feats)
    return made


@cache
def situations() -> list[Situation]:
    return [Situation(i) for i in range(VIEWS)]


def decided(recipe: Recipe, situation: Situation) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Tokens and parents of the tree, in order, and the path and token the rule makes of it."""
    position = len(situation.text) - 1
    rng = Rng(situation.number).at(position)
    view = View(
        situation.number, 0, situation.text[-1], position, BIG, situation.sampling(), rng, entropy=situation.entropy,
    )
    drafters = [drafter(s, i, situation) for i, s in enumerate(recipe.sources)]
    plan = Plan(min(recipe.nodes, situation.cap))
    (tree,) = lockstep(recipe.policy, drafters, [view], [plan])  # type: ignore[arg-type]
    paths = [tuple(int(tree.tokens[i]) for i in tree.path(v)) for v in range(tree.nodes)]

    def at(node: int) -> tuple[int, ...]:
        return paths[node] if node >= 0 else ()

    verdict = recipe.rule.verify(
        tree, lambda node: situation.target(at(node)),
        lambda node, source: situation.draft(source, situation.temperature)(at(node)), rng, position,
    )
    assert_verdict(tree, verdict.path)
    return tuple(tree.tokens.tolist()), tuple(tree.parent.tolist()), (*verdict.path, -1, verdict.token)


def assert_verdict(tree: TokenTree, path: tuple[int, ...]) -> None:
    assert path == (tree.path(path[-1]) if path else ())


@cache
def fingerprint(name: str) -> tuple[object, ...]:
    recipe = get(name)
    fresh = replace(recipe, policy=copy.deepcopy(recipe.policy))         # without what it learned in other tests
    return tuple(decided(fresh, s) for s in situations())


@pytest.mark.parametrize("name", names())
def test_a_recipe_plays_every_view(name: str) -> None:
    trees = [len(tokens) for tokens, _, _ in fingerprint(name)]  # type: ignore[misc]
    assert len(trees) == VIEWS
    assert max(trees) <= get(name).nodes
    assert (sum(trees) > 0) is bool(get(name).sources), f"{name} drafts nothing on all views"


UNDRAFTED = {"auto_memories": "auto"}      # the same where no drafter is shipped, as for the model of these views


def test_recipes_differ_unless_they_say_so() -> None:
    first: dict[tuple[object, ...], str] = {}
    for name in sorted(names(), key=lambda n: (bool(get(n).alias_of), n)):   # originals before their aliases
        same = first.setdefault(fingerprint(name), name)
        alias = get(name).alias_of or UNDRAFTED.get(name)
        assert alias or same == name, f"{name} drafts and decides as {same} does: declare alias_of, or change it"
        assert not alias or same == alias, f"{name} says it is {alias}, but does not do the same"
    assert len(first) >= 40


def test_at_least_forty_published_methods_count() -> None:
    counted = {fingerprint(name) for name in names() if get(name).paper and not get(name).alias_of}
    assert len(counted) >= 40


def test_the_views_cover_what_they_should() -> None:
    seen = situations()
    assert {s.temperature for s in seen} == set(TEMPERATURES) and {s.cap for s in seen} == set(CAPS)
    assert {s.entropy for s in seen} == set(ENTROPIES) and {s.block for s in seen} == {False, True}
    assert {(s.temperature, s.block) for s in seen} == {(t, b) for t in TEMPERATURES for b in (False, True)}
    for s in seen:
        for row in (s.target(()), s.draft(0, 1.0)((1, 2))):
            assert row.shape == (VOCAB,) and abs(float(row.sum()) - 1.0) < 1e-12
