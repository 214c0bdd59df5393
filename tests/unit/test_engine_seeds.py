"""Seeds: the same seed gives the same text, whoever else is in the batch and whenever they arrived."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.engine.request import Request
from hedgerow.target.table import TableLaw, TableTarget
from tests.unit.engine_kit import Levels, Scripted, ask, engine, guess, ids, run, top_tree

LAW = TableLaw.random(vocab=8, order=2, seed=2)


def sampled(seed: int, **options: object) -> Request:
    return ask(seed % 8, 1, seed=seed, temperature=1.0, max_tokens=16, **options)


def texts(requests: list[Request], drafted: bool = True, batch: int = 8) -> list[list[int]]:
    return ids(run(engine(TableTarget(LAW), guess(LAW, (3, 2, 1)) if drafted else None), requests, batch))


def test_the_same_seed_twice_and_another_one() -> None:
    same = [ask(0, seed=4, temperature=1.0, max_tokens=16)] * 2
    one, two = texts(same)
    assert one == two == texts(same[:1], drafted=False)[0]
    assert len({tuple(t) for t in texts([ask(0, seed=s, temperature=1.0, max_tokens=16) for s in range(20)])}) == 20


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_batch_mates_and_arrival_do_not_matter(batch: int) -> None:
    requests = [sampled(s) for s in range(8)]
    alone = [texts([r], drafted=False)[0] for r in requests]
    assert texts(requests, batch=batch) == alone
    order = np.random.default_rng(batch).permutation(8).tolist()
    shuffled = texts([requests[i] for i in order], batch=batch)
    assert [shuffled[order.index(i)] for i in range(8)] == alone
    # and with strangers in between
    strangers = [sampled(100 + i) for i in range(8)]
    mixed = texts([r for pair in zip(requests, strangers, strict=True) for r in pair], batch=batch)
    assert mixed[::2] == alone


def test_choices_of_one_request_differ_and_are_reproducible() -> None:
    """Identical requests without a seed of their own get choice numbers: five samples, not one five times."""
    choices = [ask(0, 1, temperature=1.0, max_tokens=16, choice=i) for i in range(5)]
    first = texts(choices)
    assert len({tuple(t) for t in first}) == 5
    assert texts(choices[::-1], drafted=False)[::-1] == first
    assert texts([ask(0, 1, temperature=1.0, max_tokens=16)])[0] == first[0]


def test_choices_do_not_matter_to_greedy_decoding() -> None:
    greedy = texts([ask(0, 1, max_tokens=16, choice=i, seed=i) for i in range(3)])
    assert greedy[0] == greedy[1] == greedy[2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_goes_on_as_it_would_have(temperature: float) -> None:
    """Draws are keyed by absolute position: a prompt with its first k tokens appended gets the rest."""
    whole = texts([ask(0, 1, seed=5, temperature=temperature, max_tokens=16)])[0]
    for k in (1, 2, 5, 15):
        rest = texts([ask(0, 1, *whole[:k], seed=5, temperature=temperature, max_tokens=16 - k)])[0]
        assert rest == whole[k:]


def test_the_prompt_alone_does_not_key_the_draws() -> None:
    """Two prompts of one length share their noise, not their law; the texts still follow each one's law."""
    a, b = texts([ask(0, 1, seed=3, temperature=1.0, max_tokens=16), ask(2, 5, seed=3, temperature=1.0, max_tokens=16)])
    assert a != b


def test_a_drafter_that_draws_does_not_disturb_the_text() -> None:
    class Draws(Scripted):
        def children(self, asks):  # type: ignore[no-untyped-def]
            for _, _, view in asks:
                for i in range(3):                      # takes all the randomness it likes
                    view.rng.categorical(np.ones(8), view.position + 1, index=i)
            return super().children(asks)

    requests = [sampled(s) for s in range(6)]
    loop = engine(TableTarget(LAW), drafters=[Draws(guess(LAW, (2, 1)))], policy=Levels())
    assert ids(run(loop, requests)) == texts(requests, drafted=False)


@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_sampled_text_follows_the_law_at_every_depth(top_p: float) -> None:
    """1,200 seeds, three tokens each, drafted: frequencies within 4.5 standard deviations of the exact law."""
    law = TableLaw.of({(): [4, 3, 3], (0,): [1, 6, 3], (1,): [5, 4, 1], (2,): [2, 2, 6]})
    count = 1200
    loop = engine(TableTarget(law), lambda text: top_tree(law, text, (2, 2), skip=len(text) % 2))
    done = run(loop, [ask(0, seed=s, temperature=1.0, top_p=top_p, max_tokens=3) for s in range(count)], batch=64)
    assert sum(r.accepted for r in done) > count / 2

    def kept(row: np.ndarray) -> np.ndarray:
        order = np.argsort(-row, kind="stable")
        inside = order[: int(np.searchsorted(np.cumsum(row[order]), top_p - 1e-12)) + 1]
        out = np.where(np.isin(np.arange(3), inside), row, 0.0)
        return out / out.sum()

    seen = np.zeros((3, 3, 3))
    for r in done:
        seen[tuple(r.finish.ids)] += 1
    for path in np.ndindex(3, 3, 3):
        p = float(np.prod([kept(law([(0, *path)[i]]))[path[i]] for i in range(3)]))
        assert abs(seen[path] - count * p) <= 4.5 * np.sqrt(count * p * (1 - p)) + 1e-9
