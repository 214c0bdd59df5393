"""Published tree builders as plain functions of a toy drafter: what golden cases and experiments call.

A *law* maps a token path to the draft law of the next token (see `toy`). Every function plays the real policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hedgerow.policy.bestfirst import BestFirst, EqualGrowth
from hedgerow.policy.block import Ranks, best_ranks
from hedgerow.policy.gate import Beam, Lanes, RelativeGate
from hedgerow.policy.halt import BeamMass, Depth, Gain
from hedgerow.policy.layerwise import Layerwise
from hedgerow.policy.score import Decayed
from hedgerow.policy.stop import Throughput, best_size, first_refusal
from hedgerow.testing.toy import BIG, Law, Played, play


def opt_tree(law: Law, nodes: int, max_depth: int = 64, delta: float = -math.inf) -> Played:
    """OPT-Tree: the `nodes` most probable nodes, layers drafted while they gain over delta; E(A) is `.expected`."""
    return play(Layerwise(nodes, Beam(nodes), Gain(delta)), law, nodes, depth=max_depth)


def opt_tree_gains(law: Law, nodes: int, max_depth: int) -> list[float]:
    """E_d for d = 1 … max_depth: expected accepted tokens of the best `nodes` nodes no deeper than d."""
    return [opt_tree(law, nodes, d).expected for d in range(1, max_depth + 1)]


def opt_tree_depth(law: Law, nodes: int, delta: float, max_depth: int) -> int:
    """Layers OPT-Tree keeps for a delta."""
    return opt_tree(law, nodes, max_depth, delta).tree.max_depth


def best_first(law: Law, nodes: int, fanout: int = BIG, batch: int = 1, max_depth: int = BIG) -> Played:
    """Exact best-first growth, `batch` nodes expanded a round."""
    return play(BestFirst(fanout, batch), law, nodes, depth=max_depth)


def eagle2(law: Law, top_k: int, layers: int, nodes: int) -> Played:
    """EAGLE-2: beam of `top_k`, `layers` draft calls, the best `nodes` of the pool (root excluded)."""
    return play(Layerwise(top_k, Beam(top_k), Depth(layers)), law, nodes)


def ddd(law: Law, top_k: int, nodes: int, threshold: float, checks: Sequence[int], layers: int = 11) -> Played:
    """Dynamic depth decoding: EAGLE-2 that stops when the beam's log mass is below `threshold` at a check."""
    return play(Layerwise(top_k, Beam(top_k), BeamMass(threshold, tuple(checks), layers)), law, nodes)


def talon(law: Law, top_k: int, mu: float, nodes: int, max_depth: int = 64) -> Played:
    """TALON: first layer whole, then the nodes of at least mu times the layer's best, until `nodes`."""
    return play(Layerwise(top_k, RelativeGate(mu), Depth(max_depth)), law, nodes)


def dartree(law: Law, width: int, layers: int, nodes: int) -> Played:
    """DARTree: a supertree of `width` nodes a depth, then the best `nodes`."""
    return play(Layerwise(width, Lanes(width), Depth(layers)), law, nodes)


def specexec(law: Law, nodes: int, n_beams: int, branch: int, rounds: int, decay: float = 1.0) -> Played:
    """SpecExec: `n_beams` best candidates a call, at most `rounds` calls."""
    return play(BestFirst(branch, n_beams, score=Decayed(decay), rounds=rounds), law, nodes)


def equal_growth(law: Law, width: int, steps: int, nodes: int) -> Played:
    """Yggdrasil: `steps` steps of exactly `width` nodes, the best `nodes` kept."""
    return play(EqualGrowth(width, steps), law, nodes)


def ddtree(marginals: Sequence[Sequence[float]], nodes: int) -> Ranks:
    """DDTree over position probabilities, best rank first: rank paths and log survivals in order."""
    return best_ranks([[math.log(p) for p in row] for row in marginals], nodes)


def caddtree(
    marginals: Sequence[Sequence[float]], verify: Sequence[float], draft: float
) -> dict[str, float]:
    """CaDDTree's two stops: nodes and θ of the greedy one and of the full scan.

    `verify[n]` is the time of a step with n draft nodes, n from 0; any unit of time.
    """
    survival = [math.exp(s) for s in ddtree(marginals, len(verify) - 1).score]
    rule = Throughput(lambda rows: verify[rows - 1], draft, greedy=True)
    greedy = first_refusal(rule, survival)
    theta = (1.0 + math.fsum(survival[:greedy])) / (draft + verify[greedy])
    scan, best = best_size(survival, rule.step_s, draft)
    return {"greedy": greedy, "theta_greedy": theta, "scan": scan, "theta_scan": best}
