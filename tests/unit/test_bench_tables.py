"""The measured tables of rules and policies: exact expectations, shared rows, folding, journals, Markdown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hedgerow.bench import docs, policies, rules, tables
from hedgerow.bench.contexts import Context, Journal, contexts, interval
from hedgerow.bench.expected import Folded, in_order, match_accepted, relabelled, walked
from hedgerow.bench.judging import paths_of
from hedgerow.bench.paths import Job, PathDrafter, PathRows, TargetLaws, together
from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Feats, Needs, Plan, RowGroup, Sampling, View
from hedgerow.core.probs import law
from hedgerow.core.rng import Rng, enumerate_branches
from hedgerow.core.tree import Selection, TokenTree
from hedgerow.draft.independent import perturbed
from hedgerow.engine.lockstep import lockstep
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.recipes import get
from hedgerow.target.tiny import TinyTarget
from hedgerow.testing.steps import Grown, Request, drafted
from hedgerow.testing.toy import random_law
from hedgerow.verify.joint import Block, Traversal
from hedgerow.verify.match import Match
from hedgerow.verify.rejection import Rejection
from hedgerow.verify.transport import GreedyPlusOne, KSeq, SpecHub

S = Selection
P, Q = random_law(1, 4, 4, 0.6), random_law(2, 4, 4, 0.6)
TEXT = (5, 6, 7, 8, 9)
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def target() -> TinyTarget:
    return TinyTarget(seed=0, vocab=48, slots=8, max_rows=2048)


@pytest.mark.parametrize(("rule", "selection", "counts"), [
    (Rejection(), S.IID, (2, 1)), (Rejection(), S.WITHOUT_REPLACEMENT, (3, 1)), (KSeq(), S.IID, (3,)),
    (SpecHub(), S.HUB, (2, 2)), (GreedyPlusOne(), S.GREEDY_PLUS_ONE, (3, 1)), (Match(), S.WITHOUT_REPLACEMENT, (2, 1)),
    (Traversal(), S.WITHOUT_REPLACEMENT, (2, 2)), (Traversal(), S.IID, (1, 1, 1)), (Block(), S.IID, (1, 1, 1)),
])
def test_expectations_are_those_of_the_enumerated_rule(
    rule: Rejection, selection: Selection, counts: tuple[int, ...]
) -> None:
    seen = 0
    for grew in drafted(Request(Grown.levels(*counts, selection=selection), P, Q))[0]:
        tree = grew.tree
        if max(tree.mult) > 1 or seen == 12:              # how repeats are dealt is drawn, not enumerated
            continue
        seen += 1
        paths = paths_of(tree)
        exact = sum(
            weight * accepted for weight, accepted in enumerate_branches(
                lambda tape, tree=tree, paths=paths: len(rule.verify(
                    tree, lambda v: P(paths[v]), lambda v, source: Q(paths[v]), tape.request(0), 0
                ).path)
            )
        )

        def rows(v: int, paths: dict[int, tuple[int, ...]] = paths) -> tuple[np.ndarray, np.ndarray]:
            return P(paths[v]), Q(paths[v])

        whole = rule.name in ("traversal", "block")
        assert (in_order(rule, tree, rows) if whole else sum(walked(rule, tree, rows))) == pytest.approx(exact, 1e-12)
    assert seen == 12 or len(counts) == 1


def test_match_follows_the_first_of_equal_siblings() -> None:
    tree = TokenTree.of([1, 1, 2], [-1, -1, 1])
    assert match_accepted(tree, lambda node, token: 0.5) == [0.5, 0.0, 0.0]
    assert in_order(Traversal(), TokenTree.empty(), lambda node: (P(()), Q(()))) == 0.0


def test_repeated_draws_are_dealt_by_the_seed() -> None:
    tree = TokenTree.of([0, 1], [-1, -1], selection=S.IID, mult=[2, 1])
    values = {sum(walked(Rejection(), tree, lambda node: (P(()), Q(())), Rng(seed))) for seed in range(12)}
    assert 1 <= len(values) <= 2 and all(0.0 < v <= 1.0 for v in values)
    assert in_order(Traversal(), tree, lambda node: (P(()), Q(())), Rng(0)) in [pytest.approx(v) for v in values]


def test_folding_keeps_totals_and_children_and_hardly_moves_acceptance() -> None:
    draw = np.random.default_rng(0)
    p, q = draw.dirichlet(np.full(4000, 0.2)), draw.dirichlet(np.full(4000, 0.2))
    q[7] = 0.0
    q /= q.sum()
    folded = Folded.of(p, q, [3, 9])
    fp, fq, kept = folded.rows([11, 3], lambda t: float(p[t]), lambda t: float(q[t]))
    assert kept.tolist() == [3, 9, 11] and len(fp) == len(fq) < 350
    assert fp.sum() == pytest.approx(1.0) and fq.sum() == pytest.approx(1.0)
    assert fp[:3] == pytest.approx(p[[3, 9, 11]]) and fq[:3] == pytest.approx(q[[3, 9, 11]])
    for ratio in (0.5, 1.0, 2.0):
        assert np.minimum(fp, ratio * fq).sum() == pytest.approx(np.minimum(p, ratio * q).sum(), abs=0.01)
    assert folded.rows()[2].tolist() == [3, 9]
    tree = relabelled(TokenTree.of([9, 11], [-1, 0]), [np.array([3, 9]), np.array([9, 11]), np.array([])])
    assert tree.tokens.tolist() == [1, 1]


def test_rows_are_those_of_a_plain_pass(target: TinyTarget) -> None:
    rows = PathRows(target.runner, TEXT, Needs(top_k=4))
    rows.want([(1, 2, 3), (1, 4)])
    rows.want([(1, 2, 5), (1, 2)])
    assert rows.rows == 6, "five paths and the root, each once"
    slot = target.acquire()
    for path in ((), (1, 2, 5), (2,)):
        tokens = np.array([*TEXT, *path])
        group = RowGroup("prefill", slot, tokens, np.arange(len(tokens)), np.empty((len(tokens), 0), np.bool_))
        plain = target.runner.run([group], Needs()).logits(0, len(tokens) - 1)
        assert rows.logits(path) == pytest.approx(plain, abs=1e-4)
        laws = TargetLaws(rows)
        for temperature in (0.0, 0.6, 1.0):
            whole = laws.row(path, temperature)
            assert [laws.p(path, t, temperature) for t in (0, int(plain.argmax()))] == pytest.approx(
                [whole[0], whole[plain.argmax()]]
            )
    target.release(slot)
    assert rows.feats.top_ids is not None and rows.feats.top_ids.shape == (len(TEXT) - 1, 4)
    assert rows.before is not None and len(rows.before) == 48
    rows.close()


def test_trees_grown_together_are_those_grown_alone(target: TinyTarget) -> None:
    rows = PathRows(target.runner, TEXT)
    shape = rules.shape_of("tree", 15)
    made = [PathDrafter(rows, Sampling(1.0)), PathDrafter(rows, Sampling(0.6), perturbed(1.0))]
    jobs = [rules.job(d, TEXT, s, shape, Rng(3)) for d in made for s in (S.TOP_K, S.IID, S.WITHOUT_REPLACEMENT)]
    jobs.append(Job(BestFirst(4), made, View(0, 0, 9, 4, 99, Sampling(1.0), Rng(1)), Plan(9)))
    grown = together(jobs)
    for job, tree in zip(jobs, grown, strict=True):
        view = View(0, 0, job.view.root, job.view.position, 99, job.view.sampling, job.view.rng)
        (alone,) = lockstep(job.policy, job.drafters, [view], [job.plan])
        assert tree.same(alone)
    small = rules.job(made[0], TEXT, S.WITHOUT_REPLACEMENT, rules.shape_of("tree", 7), Rng(3))
    assert set(paths_of(together([small])[0]).values()) <= set(paths_of(grown[2]).values())
    for path in ((), (3,)):
        assert made[0].law(path).sum() == pytest.approx(1.0, abs=1e-5)
    rows.close()


def test_marginals_are_the_rows_of_the_greedy_chain(target: TinyTarget) -> None:
    rows = PathRows(target.runner, TEXT)
    heads, plain = PathDrafter(rows, Sampling(1.0), marginal=True), PathDrafter(rows, Sampling(1.0))
    best = int(plain.law(()).argmax())
    assert np.array_equal(heads.law((40,)), plain.law((best,)))
    assert np.array_equal(heads.law((1, 2)), plain.law((best, int(plain.law((best,)).argmax()))))
    for call in (lambda: heads.row(0, 0), lambda: heads.commit(0, None)):  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            call()
    heads.begin(0, TEXT, Feats())
    heads.fork(0, 1, 1)
    heads.release(0)
    rows.close()


def test_every_rule_is_measured_and_a_good_drafter_is_seen_to_be_one(target: TinyTarget, tmp_path: Path) -> None:
    every = [Context("a 1", 1.0, TEXT, 3), Context("b 2", 0.0, (1, 2, 3), 2)]
    drafters = rules.draftings([], [0.001, 2.0])
    journal = Journal(tmp_path / "r.jsonl", {"x": 1})
    rules.run(target, every, drafters, (3, 7), (0.0, 1.0), journal, QUIET, drafters[1].name)
    found = rules.summary(journal.rows)
    tau = {(c["drafter"], c["case"], c["budget"], c["temperature"]): c["mean"] for c in found["tau"]}
    cases = {c.name for c in rules.CASES}
    assert {k[1] for k in tau} == cases
    assert ("match · coupled · tree", 0.0) not in {(k[1], k[3]) for k in tau}, "nothing to share without noise"
    same, other = (d.name for d in drafters)
    for case in ("rejection · iid · chain", "block · iid · chain"):
        assert tau[same, case, 7, 1.0] == pytest.approx(8.0, abs=0.05), "q = p: every draft token is accepted"
        assert tau[other, case, 7, 1.0] < 7.5
    assert tau[same, "match · top_k · chain", 7, 0.0] == pytest.approx(8.0)
    gaps = {(g["kind"], g["what"]): g["mean"] for g in found["gaps"]}
    for k in (2, 4):
        assert gaps["root", f"iid {k} rejection"] <= gaps["root", f"iid {k} α*"] + 1e-9
        assert gaps["root", f"iid {k} kseq"] <= gaps["root", f"iid {k} α*"] + 1e-9
        assert gaps["root", f"without {k} rejection"] <= gaps["root", f"without {k} α*"] + 0.05
    for word in ("iid", "without"):
        best = gaps["joint", f"{word} joint optimum"]
        assert all(gaps["joint", f"{word} {r}"] <= best + 1e-8 for r in ("match", "rejection", "traversal"))

    again = Journal(tmp_path / "r.jsonl", {"x": 1})
    assert again.rows == journal.rows and again.done(context=0, drafter=same)
    rules.run(target, every, drafters, (3, 7), (0.0, 1.0), again, QUIET)
    assert again.rows == journal.rows, "what is there is not measured again"
    assert Journal(tmp_path / "r.jsonl", {"x": 2}).rows == []


def test_every_recipe_is_measured(target: TinyTarget, tmp_path: Path) -> None:
    some = ("opt_tree", "ddtree", "suffix", "recycle", "sequoia", "coupled", "treegraft", "traversal")
    chosen = [get(name) for name in some]
    assert {r.name for r in chosen} <= {r.name for r in policies.measurable()}
    assert not {"plain", "mars", "hass", "khisti"} & {r.name for r in policies.measurable()}
    journal = Journal(tmp_path / "p.jsonl", {})
    every = [Context("a 1", 0.0, TEXT * 3, 3)]
    for _ in range(2):
        policies.run(target, every, chosen, (0, 0), journal, QUIET, (3, 7), (0.0, 1.0))
    found = policies.summary(journal.rows)
    assert len(found) == len(chosen) * 4 and all(c["contexts"] == 1 for c in found)
    at = {(c["recipe"], c["budget"], c["temperature"]): c for c in found}
    for c in found:
        assert 1.0 <= c["mean"] <= 1.0 + c["nodes"] + 1e-9
    best = at["opt_tree", 7, 1.0]
    assert best["mean"] - 1.0 == pytest.approx(best["expected"], abs=1e-4), "the drafter is the target: promise kept"
    assert best["error"] == pytest.approx(0.0, abs=1e-4)


def test_contexts_are_places_in_texts_of_the_target(target: TinyTarget) -> None:
    class Bytes:
        eos = frozenset[int]()

        def chat(self, messages: list[dict[str, str]]) -> list[int]:
            return [ord(c) % 48 for c in messages[0]["content"]][:20]

    every = contexts(target, Bytes(), 8)  # type: ignore[arg-type]
    assert [c.temperature for c in every] == [0.0] * 3 + [1.0] * 3 + [0.0] * 2
    assert [len(c.text) - c.prompt_tokens for c in every] == [12] * 6 + [24] * 2
    assert every[0].prompt.startswith("mt_bench") and every[2].prompt.startswith("humaneval")
    first = target.runner
    rows = PathRows(first, every[0].text[:-1])
    assert int(law(rows.logits(()), Sampling()).argmax()) == every[0].text[-1], "greedy: its own next token"
    rows.close()


def test_intervals_hold_the_mean() -> None:
    low, high = interval([1.0, 2.0, 3.0, 4.0])
    assert 1.0 <= low < 2.5 < high <= 4.0


def cell(**other: object) -> dict[str, object]:
    return {"budget": 7, "temperature": 0.0, "mean": 2.0, "low": 1.5, "high": 2.5, "contexts": 4, "nodes": 7.0, **other}


def test_tables_say_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {
        "setup": {"model": "demo", "budgets": [7], "temperatures": [0.0]},
        "contexts": [{"prompt": "gsm8k test/0", "temperature": 0.0}, {"prompt": "gsm8k test/1", "temperature": 1.0}],
        "provenance": {
            "command": "python -m x", "date": "2026-11-29", "machine": {"cpu": "c", "cores": 2}, "versions": {},
        },
    }
    measured = about | {
        "table": "rules", "tau": [cell(drafter="d", case="block · iid · chain")],
        "gaps": [cell(kind="root", what="iid 2 α*"), cell(kind="joint", what="iid match")],
    }
    text = tables.rules_tables(measured)
    assert "| block · iid · chain | 2.00 (1.50–2.50) |" in text and "| iid 2 α* | 2.000 (1.500–2.500) |" in text
    assert "4 contexts of 2 gsm8k, 1 of 2 from greedy answers" in text
    other = measured | {"gaps": [], "tau": [cell(drafter="d", case="x", budget=1)]}
    assert tables.rules_tables(other).endswith("| x | – |")
    grown = about | {
        "table": "policies", "recipes": [{"recipe": "sequoia", "rule": "rejection", "sources": "autoregressive"}],
        "tau": [cell(recipe="sequoia", expected=1.25, error=0.25, depth=3.0)],
    }
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "docs" / "figures" / "policies.json").write_text(json.dumps(grown), encoding="utf-8")
    page = docs.render("<!-- generated: figures policies -->\nold\n<!-- end -->\n")
    assert "| `sequoia` | rejection | autoregressive | 2.00 (1.50–2.50) | 1.25 | +0.25 | 7.0 | 3.0 |" in page
    assert "`python -m x`, 2026-11-29, c, 2 cores" in page
