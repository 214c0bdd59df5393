"""Heads over the target's features: cached trees equal the definition, real features replace predicted ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.control.controller import Fixed
from hedgerow.core.errors import InvariantError, ModelError
from hedgerow.core.parts import Ask, Feats, Frontier, Needs, RowGroup, Sampling, Step, Verdict, View
from hedgerow.core.rng import Rng
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import Growth, Selection
from hedgerow.draft.base import Base
from hedgerow.draft.eagle import EagleDrafter, ParallelDrafter
from hedgerow.draft.formats.head import Head
from hedgerow.draft.nets.base import HeadOut
from hedgerow.draft.nets.reference import TorchHead
from hedgerow.draft.rows import DRAWN
from hedgerow.engine.loop import Loop
from hedgerow.engine.request import Request
from hedgerow.engine.scheduler import Scheduler
from hedgerow.policy.fixed import Fixed as Shape
from hedgerow.target.tiny import TinyTarget
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection
from tests.unit.eagle_kit import drafter_of, fused, naive, random_head

EVERYTHING = Needs(taps=(0, 1, 2), last_hidden=True)
TEXT = [3, 9, 27, 17, 51, 25, 11, 33]                       # a prompt of seven tokens and the first one after it
FORMS: dict[str, dict[str, Any]] = {
    "eagle3": {}, "eagle3 reduced": {"draft_vocab": 24}, "eagle3 residual": {"norm_before_residual": True},
    "eagle3 fc": {"norm_before_fc": True, "biases": True}, "eagle3 3.1": {"fc_norm": True, "norm_output": True},
    "eagle3 two layers": {"layers": 2, "qk_norms": True}, "eagle3 two taps": {"taps": (0, 2)},
    "eagle3 scaled": {"embedding_scale": 3.0, "rope_theta": 500.0},
    "eagle1": {}, "eagle1 two layers": {"layers": 2}, "mtp": {}, "mtp reduced": {"draft_vocab": 24},
}


@pytest.fixture(scope="module")
def target() -> TinyTarget:
    return TinyTarget(seed=0, slots=8)


def head_of(form: str) -> Head:
    return random_head(form.split()[0], **FORMS[form])      # type: ignore[arg-type]


def feats_of(target: TinyTarget, tokens: Sequence[int]) -> Feats:
    """Features of every row of a text."""
    slot = target.acquire()
    group = RowGroup("prefill", slot, np.array(tokens), np.arange(len(tokens)), np.empty((len(tokens), 0), bool))
    _, feats = target.collect(target.submit([group], EVERYTHING))
    target.release(slot)
    return feats[0]


def by_definition(target: TinyTarget, head: Head, text: Sequence[int], path: Sequence[int]) -> torch.Tensor:
    """Logits after a drafted path: pairs of the text with real features, then one fed-back state at a time."""
    feats, base = feats_of(target, text), Base.of(target)
    rows = [head.config.taps.index(k) for k in head.config.taps]
    taps = feats.taps[[EVERYTHING.taps.index(k) for k in head.config.taps]] if rows else feats.taps
    features, tokens = fused(head, taps, feats.last_hidden)[:-1], list(text[1:])
    for token in [*path, None]:
        logits, states = naive(head, base, tokens, features)
        features, tokens = torch.cat([features, states[-1:]]), [*tokens, token]
    return logits[-1]


def says(row: np.ndarray, logits: torch.Tensor, atol: float) -> None:
    """A row without a request's own law holds log q of its best tokens, and nothing of the others."""
    known = np.flatnonzero(row)
    best = logits.topk(min(DRAWN, len(logits)))
    assert len(known) == len(best.indices) and logits[known].min() >= best.values.min() - 2 * atol
    np.testing.assert_allclose(row[known], logits.log_softmax(0)[known].numpy(), rtol=0, atol=atol)


def view(text: Sequence[int], slot: int = 0, growth: Growth | None = None, temperature: float = 1.0) -> View:
    position = len(text) - 1
    return View(
        slot, slot, text[-1], position, 64, Sampling(temperature), Rng(0).at(position), growth=growth or Growth()
    )


def grow(drafter: EagleDrafter | ParallelDrafter, seen: View, levels: Sequence[int], slot: int = 0) -> None:
    """A tree with `levels[d]` children below every node of depth d."""
    layer: Sequence[int] = [-1]
    for count in levels:
        got = drafter.children([Ask(slot, Frontier(layer, [count] * len(layer)), seen)])
        layer = seen.growth.add(layer, got.count, got.token, got.log_q, got.origin, got.mult)


def assert_defined(target: TinyTarget, drafter: EagleDrafter, head: Head, text: Sequence[int], slot: int = 0) -> None:
    """Every row of a small tree is what the definition says."""
    seen = view(text, slot)
    grow(drafter, seen, (3, 2, 1), slot)
    growth = seen.growth
    for node in range(len(growth)):
        path = growth.tokens_to(growth.parent[node])
        logits = by_definition(target, head, text, path)
        row = drafter.row(slot, growth.origin[node])
        ids = slice(None) if head.ids is None else head.ids.numpy()
        says(row[ids], logits, 2e-4)
        assert growth.log_q[node] == pytest.approx(float(logits.log_softmax(0).sort(descending=True).values[
            [v for v in range(len(growth)) if growth.parent[v] == growth.parent[node]].index(node)
        ]), abs=1e-4)
    if head.ids is not None:
        assert set(growth.token) <= set(head.ids.tolist()) and not np.delete(row, ids).any()


@pytest.mark.parametrize("form", FORMS)
def test_a_cached_tree_is_what_the_definition_says(target: TinyTarget, form: str) -> None:
    head = head_of(form)
    drafter = drafter_of(target, head)
    drafter.begin(0, TEXT, feats_of(target, TEXT[:-1]))
    assert_defined(target, drafter, head, TEXT)
    drafter.release(0)


def finished(target: TinyTarget, text: list[int], drafted: View | None, accepted: int) -> tuple[Step, list[int]]:
    """A step that accepts the first `accepted` nodes along the best path; returns it and the text behind it."""
    growth = drafted.growth if drafted else Growth()
    tree = growth.tree(range(len(growth)), np.exp(growth.score))
    path: list[int] = []
    while len(path) < accepted:
        path.append(tree.children[(path[-1] if path else -1) + 1][0])
    committed = [*(int(tree.tokens[v]) for v in path), 7]
    slot = target.acquire()
    group = RowGroup("prefill", slot, np.array(text[:-1]), np.arange(len(text) - 1), np.empty((len(text) - 1, 0), bool))
    target.collect(target.submit([group], Needs()))
    target.commit(slot, range(len(text) - 1))
    rows = RowGroup("tree", slot, np.concatenate([[text[-1]], tree.tokens]), tree.positions(len(text) - 1), tree.mask)
    _, feats = target.collect(target.submit([rows], EVERYTHING))
    target.release(slot)
    done = Step(tree, Verdict(tuple(path), 7, "bonus"), feats[0], text[-1], len(text) - 1, 0.0)
    return done, text + committed


@pytest.mark.parametrize("options", [{}, {"chunk": 3}, {"max_lag": 4, "chunk": 2}, {"kv": "contiguous"}])
@pytest.mark.parametrize("form", ["eagle3", "eagle1", "mtp"])
def test_after_any_steps_the_keys_are_those_of_real_features(
    target: TinyTarget, form: str, options: dict[str, Any]
) -> None:
    """Steps that accept much, little and nothing, and steps that were not drafted at all."""
    head, text = head_of(form), list(TEXT)
    drafter = drafter_of(target, head, **options)
    drafter.begin(0, text, feats_of(target, text[:-1]))
    for accepted in (2, None, 0, 3, None, None, 1, None):
        seen = None if accepted is None else view(text)
        if seen is not None:
            grow(drafter, seen, (3, 2, 1))
        step, text = finished(target, text, seen, accepted or 0)
        drafter.commit(0, step)
    assert_defined(target, drafter, head, text)
    drafter.pairs.kv.check_integrity()
    drafter.release(0)


def test_features_of_a_request_that_is_not_drafted_do_not_pile_up(target: TinyTarget) -> None:
    head = head_of("eagle3")
    drafter, text = drafter_of(target, head, max_lag=10, chunk=4), list(TEXT)
    drafter.begin(0, text, feats_of(target, text[:-1]))
    held = []
    for _ in range(40):
        step, text = finished(target, text, None, 0)
        drafter.commit(0, step)
        held.append(drafter.pairs.waiting(0))
    assert max(held) <= 10 and min(held) == 0
    assert_defined(target, drafter, head, text)


def test_requests_of_a_batch_do_not_see_each_other(target: TinyTarget) -> None:
    head = head_of("eagle3")
    together, alone = drafter_of(target, head), drafter_of(target, head)
    texts = {0: TEXT, 3: TEXT[:4], 5: TEXT[2:]}
    for slot, text in texts.items():
        for drafter in (together, alone):
            drafter.begin(slot, text, feats_of(target, text[:-1]))
    views = {slot: view(text, slot) for slot, text in texts.items()}
    layers: dict[int, Sequence[int]] = {slot: [-1] for slot in texts}
    for count in (3, 2, 2):
        asks = [Ask(slot, Frontier(layers[slot], [count] * len(layers[slot])), views[slot]) for slot in texts]
        parts = together.children(asks).split(len(layers[slot]) for slot in texts)
        for slot, got in zip(texts, parts, strict=True):
            layers[slot] = views[slot].growth.add(layers[slot], got.count, got.token, got.log_q, got.origin, got.mult)
    for slot, text in texts.items():
        seen = view(text, slot)
        grow(alone, seen, (3, 2, 2), slot)
        assert seen.growth.token == views[slot].growth.token
        np.testing.assert_allclose(seen.growth.log_q, views[slot].growth.log_q, atol=1e-4)


def test_a_node_below_nodes_of_another_drafter_is_run_with_its_ancestors(target: TinyTarget) -> None:
    head = head_of("eagle3")
    drafter = drafter_of(target, head)
    drafter.begin(0, TEXT, feats_of(target, TEXT[:-1]))
    seen = view(TEXT)
    seen.growth.add([-1], [1], [40], [0.0])
    seen.growth.add([0], [1], [41], [0.0])
    got = drafter.children([Ask(0, Frontier([1], [2]), seen)])
    want = by_definition(target, head, TEXT, [40, 41])
    assert list(got.token) == want.sort(descending=True).indices[:2].tolist()


@pytest.mark.parametrize("length", [len(TEXT), len(TEXT) - 2])
@pytest.mark.parametrize("drafted", [False, True])
def test_a_fork_goes_on_by_itself(target: TinyTarget, length: int, drafted: bool) -> None:
    """Where the pair before the new root was run and let go, the first step is not drafted; the next one is."""
    head = head_of("eagle3")
    drafter = drafter_of(target, head)
    drafter.begin(0, TEXT, feats_of(target, TEXT[:-1]))
    if drafted:
        grow(drafter, view(TEXT), (2, 2))
    drafter.fork(0, 1, length)
    drafter.release(0)
    text = TEXT[:length]
    if drafted and length < len(TEXT):
        got = drafter.children([Ask(1, Frontier([-1], [3]), view(text, 1))])
        assert list(got.count) == [0]
    else:
        assert_defined(target, drafter, head, text, slot=1)
    step, text = finished(target, text, None, 0)
    drafter.commit(1, step)
    assert_defined(target, drafter, head, text, slot=1)
    drafter.release(1)
    assert drafter.pairs.kv.free_slots == 8


def test_what_an_earlier_request_left_in_the_cache_is_not_run_again() -> None:
    target = TinyTarget(seed=0, slots=2, max_len=512)
    head, prompt = random_head(), [i * 5 % 64 for i in range(150)]
    drafter = drafter_of(target, head)
    ran: list[int] = []
    net_run = drafter.net.run
    drafter.net.run = lambda kv, tokens, *rest: ran.append(len(tokens)) or net_run(kv, tokens, *rest)
    shape = Shape(TreeShape.from_paths([(0,), (1,), (0, 0)]))
    loop = Loop(target, [drafter], shape, Match(), Fixed(3, guard=False))
    outs = [Scheduler(loop).run([Request((*prompt, i), max_tokens=6)])[0].finish.ids for i in (1, 1, 2)]
    assert ran[0] == 151 and sum(ran[1:]) < 100, f"rows of the drafter's passes: {ran}"
    for i, ids in zip((1, 1, 2), outs, strict=True):
        plain = Loop(TinyTarget(seed=0, slots=2, max_len=512), [], shape, Match(), Fixed(0))
        assert Scheduler(plain).run([Request((*prompt, i), max_tokens=6)])[0].finish.ids == ids


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 2.0}, {"type": "yarn", "factor": 4.0}])
def test_texts_longer_than_the_head_was_trained_for(scaling: dict[str, Any] | None) -> None:
    target = TinyTarget(seed=0, slots=2, max_len=1024)
    head = random_head(max_len=32, rope_scaling=scaling)
    text = [i * 7 % 64 for i in range(700)]
    drafter = drafter_of(target, head)
    drafter.begin(0, text, feats_of(target, text[:-1]))
    seen = view(text)
    grow(drafter, seen, (2, 2))
    if scaling is None:
        want = by_definition(target, head, text, [seen.growth.token[0]])
        says(drafter.row(0, seen.growth.origin[2]), want, 1e-3)
    assert len(seen.growth) == 6


@pytest.mark.parametrize("form", [{}, {"draft_vocab": 24, "layers": 2}])
def test_masked_rows_are_what_the_definition_says(target: TinyTarget, form: dict[str, Any]) -> None:
    """One pass: pairs of the text, then rows of the blank feature and the mask token; the same after a step."""
    head = random_head("peagle", block=4, mask_token=5, **form)
    base, text = Base.of(target), list(TEXT)
    drafter = ParallelDrafter(TorchHead(head, base), head.config, base.slots, base.max_len)
    drafter.begin(0, text, feats_of(target, text[:-1]))
    for _ in range(2):
        features = fused(head, feats_of(target, text).taps, torch.empty(0))[:-1]
        blank = fused(head, head.tensors["mask_hidden"].view(3, 1, -1), torch.empty(0))
        want, _ = naive(head, base, [*text[1:], 5, 5, 5], torch.cat([features, blank.expand(3, -1)]))
        seen = view(text)
        grow(drafter, seen, (2, 1, 1, 1))
        ids = slice(None) if head.ids is None else head.ids.numpy()
        for node, at in enumerate(seen.growth.origin):
            assert at == seen.growth.depth[node] - 1
            says(drafter.row(0, at)[ids], want[len(text) - 2 + at], 2e-4)
        got = drafter.children([Ask(0, Frontier([len(seen.growth) - 1], [2]), seen)])
        assert list(got.count) == [0], "deeper than its rows"
        step, text = finished(target, text, seen, 3)
        drafter.commit(0, step)
    drafter.release(0)


# ---------------------------------------------------------------------------------------------- in the loop


def run(
    target: TinyTarget, drafter: EagleDrafter | None, policy: Any, rule: Any, temperature: float, nodes: int
) -> tuple[list[list[int]], float]:
    loop = Loop(target, [drafter] if drafter else [], policy, rule, Fixed(nodes, guard=False))
    done = Scheduler(loop, max_batch=3).run([
        Request((1, 2, 3 + i % 3) * (1 + i), max_tokens=30, sampling=Sampling(temperature), seed=i) for i in range(4)
    ])
    committed = sum(len(r.finish.ids) - 1 for r in done)
    return [r.finish.ids for r in done], committed / sum(r.steps for r in done)


TREE = TreeShape.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("selection", [Selection.TOP_K, Selection.COUPLED])
@pytest.mark.parametrize("form", ["eagle3 reduced", "eagle1", "mtp"])
def test_the_same_tokens_as_plain_decoding(
    target: TinyTarget, form: str, selection: Selection, temperature: float
) -> None:
    plain, _ = run(target, None, Shape(TREE), Match(), temperature, 0)
    drafter = drafter_of(target, head_of(form))
    ids, tau = run(target, drafter, Shape(TREE, selection), Match(), temperature, 7)
    assert ids == plain and tau > 1.0
    assert drafter.pairs.kv.free_slots == 8
    drafter.pairs.kv.check_integrity()


def test_a_rule_that_reads_q_is_served(target: TinyTarget) -> None:
    plain, _ = run(target, None, Shape(TREE), Match(), 0.0, 0)
    policy = Shape(TREE, Selection.WITHOUT_REPLACEMENT)
    drafter = drafter_of(target, head_of("eagle3 reduced"))
    assert run(target, drafter, policy, Rejection(), 0.0, 7)[0] == plain
    assert run(target, drafter, policy, Rejection(), 1.0, 7)[1] > 1.0


class Stale:
    """A network that sees no feature of the target behind the prompt: its own states stand for them."""

    def __init__(self, net: TorchHead) -> None:
        self.net = net
        self.states: list[torch.Tensor] = []
        self.begins = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)

    def fuse(self, feats: Feats) -> torch.Tensor:
        self.begins, real = True, self.net.fuse(feats)
        return torch.stack([*self.states[: len(real)], *real[len(self.states) :]])

    def run(self, *args: Any) -> HeadOut:
        out = self.net.run(*args)
        self.states = [out.hidden[-1]] if self.begins else [*self.states, *out.hidden]
        self.begins = False
        return out


def chained() -> tuple[TinyTarget, Head]:
    """A target that says T(x) after x, and a head that knows T(T(x)) but for an error that grows when fed back."""
    target = TinyTarget(seed=5, layers=1, slots=2)
    net = target.runner.net
    net.blocks = [(qkv, 0 * out, up, 0 * down) for qkv, out, up, down in net.blocks]   # type: ignore[attr-defined]
    features = torch.nn.functional.rms_norm(net.embedding, (64,))                      # type: ignore[attr-defined]
    after = (features @ net.head.T).argmax(1)                                          # type: ignore[attr-defined]
    step = torch.linalg.lstsq(features, features[after]).solution.T
    head = random_head("eagle1")
    zero = {n: 0 * t for n, t in head.tensors.items() if n.endswith(("o_proj.weight", "down_proj.weight", "bias"))}
    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) / 8
    fc = torch.cat([torch.zeros(64, 64), step + 0.45 * noise], 1)
    return target, Head(head.config, {**head.tensors, **zero, "fc.weight": fc})


def test_real_features_of_accepted_tokens_are_worth_having() -> None:
    target, head = chained()
    chain = Shape(TreeShape.from_paths([(0,) * n for n in range(1, 5)]))
    taus = []
    for wrap in (lambda net: net, Stale):
        drafter = drafter_of(target, head)
        drafter.net = drafter.pairs.net = wrap(drafter.net)
        loop = Loop(target, [drafter], chain, Match(), Fixed(4, guard=False))
        [done] = Scheduler(loop).run([Request((1, 2, 3), max_tokens=60)])
        taus.append((len(done.finish.ids) - 1) / done.steps)
    assert taus[0] > 1.5 * taus[1], taus


def test_an_error_in_words_for_rows_and_tensors_that_are_not_there(target: TinyTarget) -> None:
    head = head_of("eagle3")
    drafter = drafter_of(target, head)
    drafter.begin(0, TEXT, feats_of(target, TEXT[:-1]))
    with pytest.raises(InvariantError, match="drafted nothing since its last commit"):
        drafter.row(0, 0)
    less = {n: t for n, t in head.tensors.items() if n != "layers.0.mlp.up_proj.weight"}
    with pytest.raises(ModelError, match=r"lacks the tensor 'layers.0.mlp.up_proj.weight'"):
        drafter_of(target, Head(head.config, less))
    twice = {**head.tensors, "layers.0.self_attn.q_proj.weight": torch.zeros(128, 128)}
    with pytest.raises(ModelError, match="attention of this kind is not run"):
        drafter_of(target, Head(head.config, twice))
