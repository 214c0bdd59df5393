"""Learned gates, kept as readable JSON: a small network says which nodes to keep, a small tree says how deep to go."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from hedgerow.core.errors import ModelError, UsageError
from hedgerow.core.parts import Frontier, Grow, GrowSpec, Plan, View
from hedgerow.core.tree import ROOT, Selection
from hedgerow.policy.halt import Bins
from hedgerow.policy.layerwise import refuse_drawn
from hedgerow.policy.parts import Layers


@dataclass(frozen=True)
class Ffn:
    """σ(w2 · relu(W1 x + b1) + b2) over x = (path probability, entropy of the node's own draft row in nats, depth).

    >>> copy = Ffn(((1.0, 0.0, 0.0),), (0.0,), (10.0,), -5.0)
    >>> copy(0.5, 1.0, 3.0)
    0.5
    """

    w1: tuple[tuple[float, ...], ...]
    b1: tuple[float, ...]
    w2: tuple[float, ...]
    b2: float

    def __call__(self, path: float, entropy: float, depth: float) -> float:
        """Confidence in (0, 1) that the node is accepted."""
        x = (path, entropy, depth)
        z = self.b2
        for row, b, w in zip(self.w1, self.b1, self.w2, strict=True):
            z += w * max(0.0, b + sum(a * v for a, v in zip(row, x, strict=True)))
        return 1.0 / (1.0 + math.exp(-z)) if z > -700.0 else 0.0

    def to_json(self) -> str:
        """The weights, one layer a line."""
        lines = [f'  "{name}": {json.dumps(value)}' for name, value in asdict(self).items()]
        return "{\n  \"kind\": \"ffn\",\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Ffn:
        """Read weights. Raises ModelError for text that holds none, or layers that do not fit."""
        data = _read(text, "ffn", ("w1", "b1", "w2", "b2"))
        net = cls(tuple(map(tuple, data["w1"])), tuple(data["b1"]), tuple(data["w2"]), float(data["b2"]))
        if not len(net.w1) == len(net.b1) == len(net.w2) or any(len(row) != 3 for row in net.w1):
            raise ModelError("a gate's layers do not fit together: w1 is [hidden][3], b1 and w2 are [hidden]")
        return net


def _read(text: str, kind: str, names: Sequence[str]) -> dict[str, Any]:
    try:
        data = json.loads(text)
        if data["kind"] != kind or any(name not in data for name in names):
            raise KeyError(kind)
        return data
    except (ValueError, KeyError, TypeError) as e:
        raise ModelError(f"a gate file of kind {kind!r} was expected, with {', '.join(names)}: {e}") from None


@dataclass(frozen=True)
class Classified:
    """Layer by layer: the `k` best candidates are drafted on, and those the gate trusts (> beta) are kept.

    A node's own draft row must be known before it is judged, so each layer is expanded first and judged then; children
    of a refused node are dropped. The last layer has no rows and is judged with its parents' entropy. The number of
    nodes follows from the gate; the plan's cap takes the best by path probability.

    Raises: RecipeError for a drawn selection.

    Source: C2T (2502.13652) section 3. Differs from the paper in: width of the network and beta are not printed there.
    """

    gate: Ffn
    beta: float = 0.5
    k: int = 10
    layers: int = 7
    selection: Selection = Selection.TOP_K
    source: int = 0
    reads_tokens = False

    def __post_init__(self) -> None:
        refuse_drawn("a learned gate", self.selection)

    @property
    def selections(self) -> frozenset[Selection]:
        """The one selection of its nodes."""
        return frozenset({self.selection})

    def grow(self, view: View, plan: Plan) -> Grow:
        """One frontier a layer."""
        growth = view.growth
        source = self.source if plan.source is None else plan.source
        k, deepest = min(self.k, plan.width), min(self.layers, plan.depth)
        state = Layers(view, plan.nodes)
        layer, entropy = [ROOT], {ROOT: 0.0}
        while layer:
            received = yield Frontier(layer, [k] * len(layer), source, self.selection)
            entropy.update(zip(layer, received.children.aux.get("entropy", [0.0] * len(layer)), strict=True))
            trusted = {v for v in layer if v == ROOT or self._trusts(state, v, entropy[v])}
            state.pool += [v for v in layer if v in trusted and v != ROOT]
            offers = [v for v in received.ids if growth.parent[v] in trusted]
            for v in offers:
                state.value[v] = growth.log_q[v] + state.value[growth.parent[v]]
            state.depth += 1
            layer = state.ranked(offers)[:k]
            if state.depth >= deepest:
                state.pool += [v for v in layer if self._trusts(state, v, entropy[growth.parent[v]])]
                break
        chosen = state.ranked(state.pool)[: plan.nodes]
        return growth.tree(chosen, [math.exp(state.value[v]) for v in chosen])

    def _trusts(self, state: Layers, v: int, entropy: float) -> bool:
        return self.gate(math.exp(state.value[v]), entropy, float(state.growth.depth[v])) > self.beta

    def spec(self) -> GrowSpec | None:
        """Not yet written as data."""
        return None


def fit_ffn(
    features: Float[np.ndarray, "samples 3"], accepted: Float[np.ndarray, " samples"], hidden: int = 12, seed: int = 0
) -> Ffn:
    """Fit the gate to recorded nodes by binary cross-entropy (L-BFGS, weight decay 1e-4).

    `features` are (path probability, entropy, depth), `accepted` 0 or 1, of nodes whose ancestors were accepted.

    Source: C2T (2502.13652) section 3.3.
    """
    from scipy.optimize import minimize  # half a second to import, wanted by training alone

    rng = np.random.default_rng(seed)
    start = np.concatenate([rng.normal(0.0, 0.5, hidden * 3), np.zeros(hidden), rng.normal(0.0, 0.5, hidden), [0.0]])
    cuts = (hidden * 3, hidden * 4, hidden * 5)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        w1, b1, w2, b2 = np.split(theta, cuts)
        w1 = w1.reshape(hidden, 3)
        pre = features @ w1.T + b1
        h = np.maximum(pre, 0.0)
        z = h @ w2 + b2
        value = float(np.mean(np.logaddexp(0.0, z) - accepted * z)) + 1e-4 * float(theta @ theta)
        dz = (1.0 / (1.0 + np.exp(-np.clip(z, -500.0, 500.0))) - accepted) / len(z)
        dh = np.outer(dz, w2) * (pre > 0.0)
        grad = np.concatenate([(dh.T @ features).ravel(), dh.sum(0), h.T @ dz, [dz.sum()]]) + 2e-4 * theta
        return value, grad

    theta = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    w1, b1, w2, b2 = np.split(theta, cuts)
    rows = tuple(tuple(map(float, row)) for row in w1.reshape(hidden, 3))
    return Ffn(rows, tuple(map(float, b1)), tuple(map(float, w2)), float(b2[0]))


def cart_edges(
    x: Float[np.ndarray, " samples"], y: Float[np.ndarray, " samples"], depth: int = 2, min_leaf: float = 0.05
) -> tuple[float, ...]:
    """Split points of a regression tree of one feature: squared error of y, leaves of at least `min_leaf` of all.

    A split stands midway between neighbouring values and must lower the error.

    Source: HeteroSpec (2505.13254), offline fit.

    >>> cart_edges(np.array([0.0, 1.0, 5.0, 6.0]), np.array([3.0, 3.0, 1.0, 1.0]), depth=1)
    (3.0,)
    """
    order = np.argsort(x, kind="stable")
    least = max(1, math.ceil(min_leaf * len(x)))

    def split(xs: np.ndarray, ys: np.ndarray, left: int) -> list[float]:
        n = len(xs)
        if left == 0 or n < 2 * least:
            return []
        sums, squares = np.cumsum(ys), np.cumsum(ys * ys)
        sizes = np.arange(1, n)
        error = squares[-1] - sums[:-1] ** 2 / sizes - (sums[-1] - sums[:-1]) ** 2 / (n - sizes)
        allowed = (sizes >= least) & (n - sizes >= least) & (xs[1:] > xs[:-1])
        if not np.any(allowed):
            return []
        at = int(np.argmin(np.where(allowed, error, np.inf)))
        whole = squares[-1] - sums[-1] ** 2 / n
        if error[at] >= whole - 1e-12 * max(1.0, float(whole)):
            return []
        edge = float((xs[at] + xs[at + 1]) / 2)
        return [*split(xs[: at + 1], ys[: at + 1], left - 1), edge, *split(xs[at + 1 :], ys[at + 1 :], left - 1)]

    return tuple(split(x[order], y[order], depth))


def bins_json(bins: Bins) -> str:
    """Bins as readable JSON."""
    return json.dumps({"kind": "bins", **asdict(bins)}, indent=1) + "\n"


def read_bins(text: str) -> Bins:
    """Bins from JSON. Raises ModelError for text that holds none."""
    data = _read(text, "bins", ("after", "edges", "extra", "nodes"))
    try:
        return Bins(int(data["after"]), tuple(data["edges"]), tuple(data["extra"]), tuple(data["nodes"]))
    except UsageError as e:
        raise ModelError(f"the gate's bins do not fit together: {e}") from None
