"""The decode loop on the table target: a tree changes the number of steps and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hedgerow.control.controller import Fixed
from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Feats, Grow, Needs, Plan, RowGroup, Sampling, View
from hedgerow.core.probs import entropy
from hedgerow.core.tree import TokenTree
from hedgerow.engine.loop import Loop, cap, check_tokens
from hedgerow.engine.request import Running
from hedgerow.engine.scheduler import Scheduler
from hedgerow.target.table import TableLaw, TableTarget, TableTicket
from tests.unit.engine_kit import (
    Counted,
    Dictated,
    Levels,
    Peeking,
    Script,
    Scripted,
    ask,
    chain,
    continuation,
    engine,
    guess,
    ids,
    one_hot,
    run,
    top_tree,
)

LAW = TableLaw.random(vocab=6, order=2, seed=0, temperature=0.5)
EOS = 5
COUNT_UP = one_hot({(i,): i + 1 for i in range(39)}, 40)       # after i comes i + 1, after 39 comes 0

LAWS = {
    "greedy": {"temperature": 0.0},
    "T=1": {"temperature": 1.0},
    "T=0.8 top_p": {"temperature": 0.8, "top_p": 0.7},
    "T=1.5 top_k": {"temperature": 1.5, "top_k": 3},
    "T=1 min_p": {"temperature": 1.0, "min_p": 0.2},
}


def garbage(text: Sequence[int]) -> Dictated:
    """A tree that depends on the text and knows nothing."""
    rng = np.random.default_rng([*text, len(text)])
    def below(depth: int) -> Dictated:
        if depth == 0:
            return {}
        return {int(t): below(depth - 1) for t in rng.permutation(6)[: rng.integers(0, 4)]}
    return below(4)


SCRIPTS: dict[str, Script] = {
    "chain": guess(LAW, (1, 1, 1, 1)),
    "tree": guess(LAW, (2, 2, 1, 1)),
    "wide": guess(LAW, (6, 6)),
    "second best only": guess(LAW, (1, 1, 1), skip=1),
    "garbage": garbage,
    "nothing": lambda text: {},
    "sometimes": lambda text: top_tree(LAW, text, (2, 1)) if len(text) % 3 else {},
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_tokens_and_logprobs_are_plain_decodings(script: str, law: str) -> None:
    requests = [
        ask(*([i % 6] * (1 + i % 3)), seed=i, max_tokens=20, logprobs=True, ignore_eos=i % 2 == 0, **LAWS[law])
        for i in range(6)
    ]
    plain = run(engine(TableTarget(LAW, eos=[EOS])), requests, batch=3)
    tree = run(engine(TableTarget(LAW, eos=[EOS]), SCRIPTS[script], nodes=50), requests, batch=3)
    assert ids(tree) == ids(plain)
    assert [r.finish.reason for r in tree] == [r.finish.reason for r in plain]
    for a, b in zip(tree, plain, strict=True):
        assert len(a.logprobs) == len(a.finish.ids)             # also where a draft was refused and corrected
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-9)
        text = list(a.request.prompt)
        for token, logprob in zip(a.finish.ids, a.logprobs, strict=True):
            assert logprob == pytest.approx(np.log(LAW(text)[token]), abs=1e-9)
            text.append(token)
        assert a.steps <= b.steps
    if script in ("tree", "wide"):
        assert sum(a.steps for a in tree) < sum(b.steps for b in plain)


def test_steps_are_counted_as_documented() -> None:
    requests = [ask(i, seed=i, temperature=1.0, max_tokens=30) for i in range(6)]
    done = run(engine(TableTarget(LAW), SCRIPTS["tree"]), requests)
    for r in done:
        assert sum(r.histogram) == r.steps == sum(r.forms.values())
        assert sum(k * n for k, n in enumerate(r.histogram)) == r.accepted <= r.drafted <= r.proposed
        # every step adds its accepted tokens and one; a step cut by the limit may lack that one
        assert r.steps - 1 <= len(r.finish.ids) - 1 - r.accepted <= r.steps
        assert r.forms["plain"] <= 1                            # only where the last token was alone
    plain = run(engine(TableTarget(LAW)), [ask(0, max_tokens=30)])[0]
    assert (plain.steps, plain.histogram, plain.forms) == (29, [29], {"plain": 29, "chain": 0, "tree": 0})
    assert (plain.proposed, plain.drafted, plain.accepted) == (0, 0, 0)
    assert plain.reasons == {"nodes is 0: plain decoding was asked for": 29}


# -------------------------------------------------------------------------------------------------- one step at a time

def begin(loop: Loop, requests: Sequence[Any]) -> tuple[Scheduler, list[Running]]:
    """Requests after prefill, before their first step."""
    scheduler = Scheduler(loop)
    running = []
    for i, request in enumerate(requests):
        r = Running.start(i, request, loop.target.acquire(), None, loop.target.info.eos, loop.target.info.max_len)
        scheduler.running.append(r)
        loop.prefill(r)
        running.append(r)
    return scheduler, running


def test_accepted_lengths_0_2_4_in_one_step() -> None:
    trees: dict[int, Dictated] = {
        10: {30: {31: {}, 32: {}}, 29: {28: {}, 27: {}}, 26: {}, 25: {}},                # 8 nodes, none right
        15: {30: {31: {}}, 17: {30: {}, 18: {30: {31: {}}}}, 29: {}},                    # 8 nodes, 17 18 right
        20: {22: {23: {24: {25: {}, 30: {}}, 31: {}}}, 32: {}},                          # 8 nodes, 22 23 24 25 right
    }
    target = Counted(COUNT_UP)
    loop = engine(target, lambda text: trees[text[0]])
    scheduler, (a, b, c) = begin(loop, [ask(10, max_tokens=9), ask(15, max_tokens=9), ask(20, max_tokens=9)])
    # roots are 11, 16, 21; the trees above hang below them
    loop.step([a, b, c])
    assert [len(g.tokens) for g in target.groups[-1]] == [9, 9, 8]
    assert [r.finish.ids for r in (a, b, c)] == [[11, 12], [16, 17, 18, 19], [21, 22, 23, 24, 25, 26]]
    assert [r.histogram for r in (a, b, c)] == [[1], [0, 0, 1], [0, 0, 0, 0, 1]]
    assert [target.tokens(r.slot) for r in (a, b, c)] == [[10, 11], [15, 16, 17, 18], [20, 21, 22, 23, 24, 25]]
    scheduler.abort()


def test_a_scattered_path_is_committed_whole() -> None:
    # the right token is the second sibling, the right grandchild the third child there, its child a first one
    tree = {9: {3: {}, 4: {}}, 2: {7: {}, 8: {}, 3: {4: {}}}, 5: {}}
    target = Counted(COUNT_UP)
    loop = engine(target, lambda text: tree if text[-1] == 1 else {})
    scheduler, (r,) = begin(loop, [ask(7, 0, max_tokens=9)])
    loop.step([r])
    group = target.groups[-1][0]
    assert group.tokens.tolist() == [1, 9, 2, 5, 3, 4, 7, 8, 3, 4]          # level by level
    assert group.positions.tolist() == [2, 3, 3, 3, 4, 4, 4, 4, 4, 5]        # siblings share one: root + depth
    assert r.finish.ids == [1, 2, 3, 4, 5]
    assert target.tokens(r.slot) == [7, 0, 1, 2, 3, 4]
    loop.step([r])
    assert r.finish.ids == [1, 2, 3, 4, 5, 6] and target.tokens(r.slot) == [7, 0, 1, 2, 3, 4, 5]
    assert loop.drafters[0].text[r.slot] == [7, 0, *r.finish.ids]
    scheduler.abort()


def test_rows_of_siblings_are_their_own_paths() -> None:
    target = Counted(LAW)
    loop = engine(target, SCRIPTS["wide"], nodes=20)
    scheduler, (r,) = begin(loop, [ask(0, 1, 2, max_tokens=9)])
    packed = loop.propose([r])
    rows, _ = target.collect(target.submit(packed.groups, loop.needs))
    tree, text = packed.trees[0], [0, 1, 2, *r.finish.ids]
    assert tree.nodes == 20
    for node in range(-1, tree.nodes):
        path = [int(tree.tokens[i]) for i in tree.path(node)]
        np.testing.assert_allclose(np.exp(rows.logits(0, node + 1)), LAW([*text, *path]), atol=1e-12)
    target.commit(r.slot, [0])
    scheduler.abort()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_superset_tree_never_accepts_less(temperature: float) -> None:
    def merged(a: Dictated, b: Dictated) -> Dictated:
        return {t: merged(a.get(t, {}), b.get(t, {})) for t in {**a, **b}}

    longer = 0
    for seed in range(40):
        prompt = np.random.default_rng(seed).integers(0, 6, 3).tolist()
        accepted = []
        for superset in (False, True):
            def script(text: Sequence[int], superset: bool = superset, seed: int = seed) -> Dictated:
                small = garbage([*text, seed])
                return merged(small, top_tree(LAW, text, (2, 2, 2))) if superset else small

            loop = engine(TableTarget(LAW), script, nodes=200)
            scheduler, (r,) = begin(loop, [ask(*prompt, temperature=temperature, seed=seed, max_tokens=20)])
            loop.step([r])
            accepted.append(r.accepted)
            scheduler.abort()
        assert accepted[1] >= accepted[0]
        longer += accepted[1] > accepted[0]
    assert longer > 5


def test_a_sibling_more_does_not_shorten() -> None:
    done = []
    for tree in ({1: {2: {}}}, {9: {}, 1: {2: {}}}):                          # [[0], [0, 0]] against [[0], [1], [1, 0]]
        loop = engine(TableTarget(COUNT_UP), lambda text, tree=tree: tree if text[-1] == 0 else {})  # type: ignore[misc]
        scheduler, (r,) = begin(loop, [ask(39, max_tokens=9)])
        loop.step([r])
        done.append((r.finish.ids, r.accepted))
        scheduler.abort()
    assert done == [([0, 1, 2, 3], 2)] * 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_width_1_is_the_chain(temperature: float) -> None:
    requests = [ask(i, 0, seed=i, temperature=temperature, max_tokens=25) for i in range(6)]
    slim = Fixed(15, width=1, guard=False)
    narrow = run(engine(TableTarget(LAW), guess(LAW, (3, 2, 2, 1)), controller=slim), requests)
    linear = run(engine(TableTarget(LAW), guess(LAW, (1, 1, 1, 1))), requests)
    assert ids(narrow) == ids(linear)
    assert [(r.histogram, r.drafted, r.forms) for r in narrow] == [(r.histogram, r.drafted, r.forms) for r in linear]
    assert all(r.forms["tree"] == 0 and r.forms["chain"] > 0 for r in narrow)


def test_a_cap_of_one_node_is_a_draft_of_one() -> None:
    loop = engine(TableTarget(COUNT_UP), lambda text: chain(continuation(COUNT_UP, text, 3)), nodes=1)
    r = run(loop, [ask(0, max_tokens=9)])[0]
    assert r.finish.ids == list(range(1, 10)) and r.histogram == [0, 4] and r.drafted == 4


def test_the_second_best_drafted_first_is_never_accepted_greedily() -> None:
    alone = run(engine(TableTarget(LAW), guess(LAW, (1, 1, 1), skip=1)), [ask(i, max_tokens=30) for i in range(6)])
    assert sum(r.accepted for r in alone) == 0 and sum(r.drafted for r in alone) > 400

    def backwards(text: Sequence[int]) -> Dictated:
        best = top_tree(LAW, text, (2, 2))
        return {t: dict(reversed(list(best[t].items()))) for t in reversed(list(best))}

    loop = engine(TableTarget(LAW), backwards)
    both = run(loop, [ask(i, max_tokens=30) for i in range(6)])
    assert ids(both) == ids(alone)
    full = [(step.tree, step.verdict) for _, step in loop.drafters[0].steps if step.tree.nodes == 6]
    assert len(full) > 50
    assert all(tree.path(path[-1]) == path and path[0] == 1 for tree, v in full if (path := v.path))
    assert all(len(v.path) == 2 for _, v in full)               # the best two of each level: always right


# ----------------------------------------------------------------------------------------------------- prompts, limits

def test_a_prompt_of_one_token() -> None:
    for t in range(6):
        plain = run(engine(TableTarget(LAW)), [ask(t, max_tokens=12)])
        assert ids(run(engine(TableTarget(LAW), SCRIPTS["tree"]), [ask(t, max_tokens=12)])) == ids(plain)


@pytest.mark.parametrize("room", range(1, 12))
@pytest.mark.parametrize("script", ["tree", "chain", "wide"])
def test_the_context_limit_is_met_exactly_and_never_passed(room: int, script: str) -> None:
    target = Counted(LAW, max_len=12)                           # raises beyond its last position
    prompt = [i % 6 for i in range(12 - room)]
    plain = run(engine(TableTarget(LAW, max_len=12)), [ask(*prompt, max_tokens=99)])[0]
    tree = run(engine(target, SCRIPTS[script], nodes=40), [ask(*prompt, max_tokens=99)])[0]
    assert tree.finish.ids == plain.finish.ids and len(tree.finish.ids) == room
    assert tree.finish.reason == plain.finish.reason == "length"
    assert max(int(g.positions.max()) for call in target.groups for g in call) <= 11


@pytest.mark.parametrize("limit", range(1, 9))
def test_max_tokens_is_met_exactly(limit: int) -> None:
    target = Counted(COUNT_UP)
    loop = engine(target, lambda text: chain(continuation(COUNT_UP, text, 9)))
    r = run(loop, [ask(0, max_tokens=limit)])[0]
    assert r.finish.ids == list(range(1, limit + 1)) and r.finish.reason == "length"
    # nothing is drafted that could not be committed
    assert max(int(g.positions.max()) for call in target.groups for g in call) <= limit - 1
    assert r.steps == (limit > 1)


def test_a_plan_is_capped_by_the_room() -> None:
    assert cap(Plan(9), 3) == Plan(9, depth=3)
    assert cap(Plan(9, depth=2), 3) == Plan(9, depth=2)
    assert cap(Plan(0, reason="rest"), 0) == Plan(0, depth=0, reason="rest")
    assert cap(Plan(9), 0).nodes == 0 and "no room" in cap(Plan(9), 0).reason


# --------------------------------------------------------------------------------------------------------------- stops

STOP = 12
NEXT = {9: 10, 10: 11, 11: STOP, STOP: 20, 20: 21, 21: 22, 22: 23, 23: 24}
SENTENCE = one_hot({(a,): b for a, b in NEXT.items()}, 32, rest=24)


def sentence(text: Sequence[int]) -> Dictated:
    return chain(continuation(SENTENCE, text, 9))


@pytest.mark.parametrize("nodes", [0, 1, 2, 3, 9])
def test_a_stop_inside_an_accepted_block(nodes: int) -> None:
    loop = engine(TableTarget(SENTENCE, eos=[STOP]), sentence, nodes)
    short, free, other = run(loop, [
        ask(9, max_tokens=5, logprobs=True), ask(9, max_tokens=5, ignore_eos=True),
        ask(9, max_tokens=9, stop_ids=frozenset({11})),
    ])
    assert (short.finish.ids, short.finish.reason) == ([10, 11, STOP], "stop")
    assert len(short.logprobs) == 3
    assert (free.finish.ids, free.finish.reason) == ([10, 11, STOP, 20, 21], "length")
    assert (other.finish.ids, other.finish.reason) == ([10, 11], "stop")
    if nodes == 9:
        assert (short.steps, short.histogram, short.accepted) == (1, [0, 0, 1], 2)


def test_a_stop_beyond_the_cap_is_a_length() -> None:
    loop = engine(TableTarget(SENTENCE, eos=[22]), sentence)
    r = run(loop, [ask(9, max_tokens=5)])[0]
    assert (r.finish.ids, r.finish.reason) == ([10, 11, STOP, 20, 21], "length")


def test_a_stop_as_the_very_first_token() -> None:
    loop = engine(TableTarget(SENTENCE, eos=[10]), sentence)
    r = run(loop, [ask(9, max_tokens=5, logprobs=True)])[0]
    assert (r.finish.ids, r.finish.reason, r.steps, len(r.logprobs)) == ([10], "stop", 0, 1)


EAGER = TableLaw.of({(): [1, 2, 1, 1, 1, 20], (0,): [1, 3, 1, 1, 1, 9], (1,): [2, 1, 9, 1, 1, 9]})   # EOS all the time


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("minimum", [0, 1, 3, 6, 12])
def test_min_tokens_bars_eos_at_every_node(minimum: int, temperature: float) -> None:
    requests = [
        ask(i % 6, max_tokens=12, min_tokens=minimum, seed=i, temperature=temperature, logprobs=True) for i in range(12)
    ]
    plain = run(engine(TableTarget(EAGER, eos=[EOS])), requests)
    script: Script = lambda text: {EOS: {EOS: {EOS: {}}}, 1: {EOS: {}, 2: {EOS: {}, 1: {}}}}  # noqa: E731
    tree = run(engine(TableTarget(EAGER, eos=[EOS]), script), requests)
    assert ids(tree) == ids(plain)
    assert [r.logprobs for r in tree] == [r.logprobs for r in plain]
    for r in tree:
        assert EOS not in r.finish.ids[:minimum]
        assert len(r.finish.ids) == 12 or (r.finish.ids[-1] == EOS and len(r.finish.ids) > minimum)
    assert any(r.finish.reason == "stop" for r in tree) == (minimum < 12)


def test_several_stop_ids_are_barred_together() -> None:
    loop = engine(TableTarget(EAGER, eos=[EOS]), guess(EAGER, (3, 2)))
    requests = [
        ask(1, max_tokens=12, min_tokens=5, stop_ids=frozenset({2}), temperature=1.0, seed=s) for s in range(9)
    ]
    for r in run(loop, requests):
        assert not {EOS, 2} & set(r.finish.ids[:5])


# ------------------------------------------------------------------------------------------------------ the two halves

class Unreachable(TableTarget):
    """A target that must not be called."""

    reachable = True

    def submit(self, groups: Sequence[RowGroup], needs: Needs) -> TableTicket:
        assert self.reachable, "propose and settle never call the target"
        return super().submit(groups, needs)


def test_neither_half_calls_the_target_and_settle_is_pure() -> None:
    target = Unreachable(LAW)
    loop = engine(target, SCRIPTS["tree"])
    scheduler, running = begin(loop, [ask(i, seed=i, temperature=1.0) for i in range(3)])
    target.reachable = False
    packed = loop.propose(running)
    assert packed.rows == sum(t.rows for t in packed.trees) and len(packed.groups) == 3
    assert packed.proposed == [t.nodes for t in packed.trees]
    target.reachable = True
    rows, _ = target.collect(target.submit(packed.groups, loop.needs))
    target.reachable = False
    before = ids(running)
    first = loop.settle(packed, rows, running)
    assert loop.settle(packed, rows, running) == first and ids(running) == before
    scheduler.abort()


def test_the_target_is_called_once_a_step() -> None:
    target = Counted(LAW)
    done = run(engine(target, SCRIPTS["tree"]), [ask(i, max_tokens=5 + 3 * i) for i in range(5)], batch=3)
    prefills = [call for call in target.groups if call[0].kind == "prefill"]
    steps = [call for call in target.groups if call[0].kind == "tree"]
    assert len(prefills) == 5 and all(len(call) == 1 for call in prefills)
    assert sum(len(call) for call in steps) == sum(r.steps for r in done)
    assert all(len({g.slot for g in call}) == len(call) <= 3 for call in steps)


def test_a_group_is_root_and_tree() -> None:
    target = Counted(LAW)
    loop = engine(target, SCRIPTS["tree"])
    run(loop, [ask(0, 1, max_tokens=20)])
    steps = [step for _, step in loop.drafters[0].steps]
    groups = [call[0] for call in target.groups if call[0].kind == "tree"]
    for step, group in zip(steps, groups, strict=True):
        assert group.tokens.tolist() == [step.root, *step.tree.tokens.tolist()]
        assert group.positions.tolist() == step.tree.positions(step.position).tolist()
        assert np.array_equal(group.ancestors, step.tree.mask)


def test_drafters_get_what_they_need_of_every_row_on_plain_steps_too() -> None:
    begun: list[Feats] = []

    @dataclass
    class Wants(Scripted):
        needs: Needs = field(default_factory=lambda: Needs(top_k=3))

        def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
            begun.append(feats)
            super().begin(slot, tokens, feats, tenant)

    idle = Scripted(lambda text: {})
    wants = Wants(lambda text: top_tree(LAW, text, (2,)) if len(text) % 3 else {})
    loop = engine(TableTarget(LAW), drafters=[wants, idle])
    assert loop.needs == Needs(top_k=3)
    run(loop, [ask(0, 1, 2, max_tokens=20)])
    assert begun[0].top_ids is not None and begun[0].top_ids.shape == (3, 3)
    plain = [step for _, step in wants.steps if not step.tree.nodes]
    assert len(plain) > 2 and len(plain) < len(wants.steps)
    for (_, step), (_, other) in zip(wants.steps, idle.steps, strict=True):
        assert step is other                                   # every drafter records every step
        assert step.feats.top_ids is not None and step.feats.top_ids.shape == (step.tree.rows, 3)
        assert step.feats.top_ids[0, 0] == int(np.argmax(LAW(text_at(step.position, wants, idle)[: step.position + 1])))


def text_at(position: int, *drafters: Scripted) -> list[int]:
    """The whole text a drafter recorded, prompt 0 1 2 included."""
    first = drafters[0].steps[0][1].root
    out = [0, 1, 2, first]
    for _, step in drafters[0].steps:
        out += step.verdict.committed(step.tree)
    return out


def test_the_entropy_that_chose_the_root_reaches_policies_that_read_it() -> None:
    seen: list[tuple[int, float | None]] = []

    @dataclass(frozen=True)
    class Reads(Levels):
        reads_entropy: bool = True

        def grow(self, view: View, plan: Plan) -> Grow:
            seen.append((view.position, view.entropy))
            return (yield from super().grow(view, plan))

    for reads in (True, False):
        loop = engine(TableTarget(LAW), SCRIPTS["tree"], policy=Reads(reads_entropy=reads))
        r = run(loop, [ask(0, 1, max_tokens=20, temperature=1.0)])[0]
        text = [0, 1, *r.finish.ids]
        for position, value in seen:
            assert value == (pytest.approx(entropy(LAW(text[:position]))) if reads else None)
        assert len(seen) > 3
        seen.clear()


def test_a_second_drafter_can_serve_the_policy() -> None:
    first, second = Scripted(lambda text: {}), Scripted(SCRIPTS["tree"])
    loop = engine(TableTarget(LAW), drafters=[first, second], policy=Levels(source=1))
    r = run(loop, [ask(0, max_tokens=20)])[0]
    assert r.accepted > 0 and first.calls == [] and second.calls
    assert {int(s) for _, step in second.steps for s in step.tree.source} == {1}


def test_the_cut_is_the_controllers() -> None:
    @dataclass
    class Cuts(Fixed):
        cuts: bool = True

        def cut(self, trees: Sequence[TokenTree], batch: Any) -> list[int]:
            return [t.nodes // 2 for t in trees]

    done = run(engine(TableTarget(LAW), SCRIPTS["tree"], controller=Cuts(10, guard=False)), [ask(0, max_tokens=30)])
    assert ids(done) == ids(run(engine(TableTarget(LAW)), [ask(0, max_tokens=30)]))
    assert done[0].drafted == pytest.approx(done[0].proposed / 2, abs=done[0].steps / 2)


def test_the_controller_sees_every_requests_part_of_every_step() -> None:
    control = Peeking(6, guard=False)
    target = Counted(LAW)
    done = run(engine(target, SCRIPTS["tree"], controller=control), [ask(i, max_tokens=6 + 4 * i) for i in range(4)], 3)
    calls = [call for call in target.groups if call[0].kind == "tree"]
    assert len(control.seen) == len(calls)
    for step, call in zip(control.seen, calls, strict=True):
        assert {o.batch for o in step} == {len(call)} and {o.rows for o in step} == {sum(len(g.tokens) for g in call)}
        assert [o.tree.rows for o in step] == [len(g.tokens) for g in call]
        assert len({o.step_s for o in step}) == 1 and step[0].step_s > 0
    for r in done:
        mine = [o for step in control.seen for o in step if o.request == r.number]
        assert sum(o.committed for o in mine) == len(r.finish.ids) - 1
        assert [o.finished for o in mine] == [False] * (r.steps - 1) + [True]
        assert all(o.committed == len(o.verdict.path) + 1 for o in mine[:-1])


def test_a_token_the_target_has_not_is_an_error_in_words() -> None:
    check_tokens([TokenTree.empty(), TokenTree.of([0, 5], [-1, -1])], 6)
    for wrong in (6, -1):
        with pytest.raises(InvariantError, match="a drafter maps its ids to the target's"):
            check_tokens([TokenTree.of([0, wrong], [-1, -1])], 6)
    loop = engine(TableTarget(LAW), lambda text: {99: {}})
    with pytest.raises(InvariantError, match="drafted tokens are 99 to 99, the target's 0 to 5"):
        run(loop, [ask(0)])


def test_seconds_are_booked_by_part() -> None:
    ticks = iter(range(10**6))
    loop = engine(TableTarget(LAW), SCRIPTS["tree"], clock=lambda: float(next(ticks)))
    r = run(loop, [ask(0, max_tokens=20)])[0]
    assert loop.seconds == {"prefill": 1.0, "draft": r.steps, "verify": r.steps, "other": r.steps}


def test_a_sampling_view_shows_the_law_a_drafter_should_imitate() -> None:
    target = TableTarget(EAGER, eos=[EOS])
    loop = engine(target, lambda text: {})
    scheduler, (r,) = begin(loop, [ask(1, temperature=1.0, top_k=2, min_tokens=3)])
    view = r.view()
    row = np.log(EAGER([1]))
    assert r.completed == 1 and view.position == 1 and view.sampling == Sampling(1.0, top_k=2)
    assert view.draw(row, 1)[EOS] == 0 and view.draw(row, 2)[EOS] == 0       # completion tokens 1 and 2: barred
    assert view.draw(row, 3)[EOS] > 0
    assert (view.draw(row, 3) > 0).sum() == 2
    scheduler.abort()
