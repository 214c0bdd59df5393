"""What no rule can beat: exact optima of one node and of whole small trees.

A rule at a node is a transport of the mass of drafted sets S to tokens y; it accepts where y ∈ S. The best one is a
linear program, and by max-flow = min-cut

    α* = 1 + min over H of [p(H) − Pr(S ⊂ H)]            (H = ∅ gives 1)

For trees the optimum is a linear program over (tree, accepted path, next token).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

import numpy as np
from jaxtyping import Int

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Row
from hedgerow.core.tree import ROOT, Selection, TokenTree
from hedgerow.verify.onenode import Drafted, draft_group, merged
from hedgerow.verify.program import Program
from hedgerow.verify.residual import unit

Law = Callable[[tuple[int, ...]], Row]     # tokens below the root -> law of the next token
Sets = Mapping[frozenset[int], float]      # drafted set -> probability

_SUBSETS = 20                              # most tokens whose subsets are listed


def drafted_sets(q: Row, k: int, selection: Selection) -> dict[frozenset[int], float]:
    """The law of the set of tokens drafted below one node."""
    out: dict[frozenset[int], float] = {}
    for weight, tree in draft_group(np.asarray(q, np.float64), k, selection):
        key = frozenset(tree.tokens.tolist())
        out[key] = out.get(key, 0.0) + weight
    return out


def optimum_subsets(p: Row, sets: Sets) -> float:
    """α* by the subset formula over all 2^vocab sets H.

    Raises: UsageError beyond 20 tokens.

    >>> p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    >>> round(optimum_subsets(p, drafted_sets(q, 2, Selection.IID)), 9)
    0.79
    """
    p = unit(p)
    vocab = len(p)
    if vocab > _SUBSETS:
        raise UsageError(f"the subset formula lists 2^{vocab} sets; at most {_SUBSETS} tokens are allowed: use the LP")
    inside = np.zeros(1 << vocab)
    for tokens, weight in sets.items():
        inside[sum(1 << t for t in tokens)] += weight
    mass = np.zeros(1 << vocab)
    for t in range(vocab):                 # sums over subsets, one token at a time
        has = (np.arange(1 << vocab) >> t) & 1 == 1
        inside[has] += inside[np.flatnonzero(has) ^ (1 << t)]
        mass[has] += p[t]
    return float(1.0 + min(0.0, (mass - inside).min()))


def optimum_lp(p: Row, sets: Sets) -> float:
    """α* by linear programming: max Σ π(S, y ∈ S) with Σ_y π = Pr(S), Σ_S π = p(y).

    Raises: InvariantError where the optimum cannot be certified to 1e-10.

    >>> p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    >>> round(optimum_lp(p, drafted_sets(q, 2, Selection.IID)), 9)
    0.79
    """
    return _transport(p, [(w, dict.fromkeys(tokens, 1.0)) for tokens, w in sets.items()])


def _transport(p: Row, drafted: list[tuple[float, dict[int, float]]]) -> float:
    """The most that moving the mass of drafted sets to tokens gains: each set names its tokens and their worth."""
    p = unit(p)
    total = sum(w for w, _ in drafted)
    program = Program([w / total for w, _ in drafted], p.tolist())
    for i, (_, worth) in enumerate(drafted):
        for y in range(len(p)):
            program.column(i, worth.get(y, 0.0), [y], [1.0])
    return program.solve().value


def optimum_iid(p: Row, q: Row, k: int) -> float:
    """α* of `k` i.i.d. draws by sorted scan, O(vocab log vocab): 1 + min over prefixes H of p(H) − q(H)^K.

    Prefixes of the order of q/p, falling, suffice: p(H) − q(H)^K is concave in (p(H), q(H)).

    Source: arXiv 2502.18779, section 4; arXiv 2410.18234 for the condition α* = 1.

    >>> round(optimum_iid(np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4]), 3), 9)
    0.871
    """
    p, q = unit(p), unit(q)
    order = _by_lift(p, q)
    slack = np.cumsum(p[order]) - np.minimum(np.cumsum(q[order]), 1.0) ** k
    return float(1.0 + min(0.0, slack.min()))


def optimum_without(p: Row, q: Row, k: int) -> float:
    """α* of `k` draws without replacement by the same scan; Pr(S ⊂ H) = Pr[the first K of a race are all in H].

    With c = 1 − q(H) and t the finish of the first runner outside H (rate c), a runner i of H is done by t with
    probability 1 − e^{−q_i t}: Pr(S ⊂ H) = 1 − ∫ Pr[fewer than K done] c e^{−ct} dt, by double exponential
    quadrature. That prefixes suffice was checked on a thousand instances, not proven.

    Source: arXiv 2502.18779, section 4.

    >>> round(optimum_without(np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4]), 2), 9)
    0.83452381
    """
    p, q = unit(p), unit(q)
    k = min(k, int(np.count_nonzero(q)))
    order = _by_lift(p, q)
    after = np.concatenate([np.cumsum(q[order][::-1])[::-1][1:], [0.0]])     # draft mass outside each prefix
    x = np.linspace(-3.8, 3.8, 761)
    t = np.exp(np.pi / 2 * np.sinh(x))
    weight = t * (np.pi / 2) * np.cosh(x) * (x[1] - x[0])
    done = np.zeros((len(x), k))           # Pr[exactly j of the prefix done by t], j < K
    done[:, 0] = 1.0
    slack, mass = 0.0, 0.0
    for token, outside in zip(order.tolist(), after.tolist(), strict=True):
        finished = -np.expm1(-q[token] * t)[:, None]
        done[:, 1:] = done[:, 1:] * (1.0 - finished) + done[:, :-1] * finished
        done[:, :1] *= 1.0 - finished
        mass += float(p[token])
        few = float((done.sum(axis=1) * outside * np.exp(-outside * t) * weight).sum()) if outside > 0.0 else 0.0
        slack = min(slack, mass - (1.0 - few))
    return 1.0 + slack


def optimum_fixed(p: Row, tokens: Iterable[int]) -> float:
    """α* of a set that is a function of the context: p(T), which `match` attains."""
    return float(unit(p)[sorted(set(tokens))].sum())


def _by_lift(p: Row, q: Row) -> Int[np.ndarray, " vocab"]:
    """Tokens by q/p, falling (p = 0 first, q = 0 last; ties by id)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        lift = np.where(q > 0.0, p / q, np.inf)
    return np.lexsort((np.arange(len(p)), lift))


# ------------------------------------------------------------------------------------------------ trees

def deterministic_value(p: Law, paths: Iterable[tuple[int, ...]]) -> float:
    """E[accepted] of a tree that is a function of the context: Σ over nodes of the target's probability of its path."""
    return float(sum(np.prod([unit(p(path[:i]))[t] for i, t in enumerate(path)]) for path in paths))


def value_weighted(drafted: Drafted, p: Law, path: tuple[int, ...] = ()) -> float:
    """E[accepted] of per-node transport that weighs a sibling by what it is worth: max Σ π(S, i)(1 + value(i)).

    Each node's transport is the linear program with values known from below: lossless, better than traversal on wide
    trees, worse on narrow ones. `drafted` lists every tree below `path` with its probability.
    """
    groups: dict[tuple[int, ...], list[tuple[float, TokenTree]]] = {}
    for weight, tree in drafted:
        tokens = tuple(int(tree.tokens[c]) for c in tree.children[0])
        groups.setdefault(tokens, []).append((weight, tree))
    if set(groups) == {()}:
        return 0.0
    return _transport(p(path), [
        (
            sum(w for w, _ in group),
            {y: 1.0 + value_weighted(_below(group, y), p, (*path, y)) for y in set(tokens)},
        )
        for tokens, group in groups.items()
    ])


def _below(drafted: Drafted, token: int) -> Drafted:
    out = []
    for weight, tree in drafted:
        child = tree.child(ROOT, token)
        assert child is not None
        out.append((weight, tree.descend(child)[0]))
    return merged(out)


def joint_optimum(drafted: Drafted, p: Law) -> float:
    """The most draft tokens any lossless rule accepts per step, given the law of the drafted tree.

    A linear program over (tree as a set of paths, accepted path, next token): every tree keeps its probability, and the
    first depth + 1 tokens, continued with the target, follow the target. Small trees only.

    Raises: InvariantError where the optimum cannot be certified to 1e-10.
    """
    trees: dict[frozenset[tuple[int, ...]], float] = {}
    for weight, tree in drafted:
        paths = frozenset(tuple(int(tree.tokens[i]) for i in tree.path(v)) for v in range(tree.nodes))
        trees[paths] = trees.get(paths, 0.0) + weight
    horizon = 1 + max((len(path) for paths in trees for path in paths), default=0)
    vocab = len(p(()))
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(horizon):
        law = {(*s, t): w * x for s, w in law.items() for t, x in enumerate(unit(p(s)).tolist())}
    index = {s: i for i, s in enumerate(s for s, x in law.items() if x > 0.0)}
    program = Program(list(trees.values()), [law[s] for s in index])
    for i, paths in enumerate(trees):
        for path in [(), *sorted(paths)]:
            for y in range(vocab):
                after = _continued((*path, y), horizon, p)
                if all(s in index for s, _ in after):     # what the target never says must not be emitted
                    program.column(i, float(len(path)), [index[s] for s, _ in after], [w for _, w in after])
    return program.solve().value


def _continued(start: tuple[int, ...], horizon: int, p: Law) -> list[tuple[tuple[int, ...], float]]:
    out: list[tuple[tuple[int, ...], float]] = [(start, 1.0)]
    for _ in range(horizon - len(start)):
        out = [((*s, t), w * x) for s, w in out for t, x in enumerate(unit(p(s)).tolist()) if x > 0.0]
    return out


Survival = Callable[[Sequence[Row], Sequence[Row], Sequence[int]], list[float]]


def chain_expected(p: Law, q: Law, gamma: int, survival: Survival) -> float:
    """E[accepted] of a chain of `gamma` draws: Σ over drafted chains of their probability × Σ_i survival_i.

    `survival` is `joint.block_survival` or `joint.token_survival`.
    """
    total = 0.0
    for tokens in product(range(len(p(()))), repeat=gamma):
        ps, qs = [unit(p(tokens[:i])) for i in range(gamma)], [unit(q(tokens[:i])) for i in range(gamma)]
        chance = float(np.prod([row[t] for row, t in zip(qs, tokens, strict=True)]))
        if chance > 0.0:
            total += chance * sum(survival(ps, qs, tokens))
    return total
