"""Mutants: one small change each to the source of a production rule, loaded as if it were the package.

A mutant is a piece of text that must stand exactly once in a module, and what replaces it. If the module changes so
that the text is gone, loading fails: a mutant that is not applied would be killed by nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from hedgerow.core.parts import Rule
from hedgerow.core.tree import Selection
from hedgerow.testing.law import Request
from hedgerow.verify import walk
from tests.law.cases import BENT_P, BENT_Q, GREEDY, HUB, IID, levels, penalised

ORDER = ("residual", "walk", "rejection", "joint", "selection", "transport", "match")   # each imports earlier ones only
FOLDER = Path(walk.__file__).parent


@dataclass(frozen=True)
class Mutant:
    """A change to one module, and the rule and cases that must notice it."""

    name: str
    module: str
    old: str
    new: str
    rule: str                             # module:class
    cases: Sequence[Request]

    def load(self) -> Rule:
        """The rule, made of the mutated source. Raises LookupError unless the text stands there exactly once."""
        source = (FOLDER / f"{self.module}.py").read_text(encoding="utf-8")
        if source.count(self.old) != 1:
            times = source.count(self.old)
            raise LookupError(f"mutant {self.name!r}: {self.old!r} stands {times} times in {self.module}")
        place, name = self.rule.split(":")
        real = {short: sys.modules[f"hedgerow.verify.{short}"] for short in ORDER}
        made: dict[str, ModuleType] = {}
        try:
            for short in ORDER:
                text = (FOLDER / f"{short}.py").read_text(encoding="utf-8")
                module = ModuleType(f"hedgerow.verify.{short}")
                module.__file__ = str(FOLDER / f"{short}.py")
                sys.modules[module.__name__] = made[short] = module
                text = text.replace(self.old, self.new) if short == self.module else text
                exec(compile(text, f"{short}.py", "exec"), module.__dict__)
        finally:
            sys.modules.update({f"hedgerow.verify.{short}": module for short, module in real.items()})
        return getattr(made[place], name)()  # type: ignore[no-any-return]


for _short in ORDER:
    importlib.import_module(f"hedgerow.verify.{_short}")

BOTH = (levels(2, 2), levels(2, 1, selection=IID), levels(3, selection=IID), levels(1, 2, p=penalised))
CHAINS = (levels(1, 1), levels(1, 1, 1, p=penalised), levels(1, 1, p=BENT_P, q=BENT_Q))
PAIRS = (levels(2, 1, selection=IID), levels(2, selection=IID, p=BENT_P, q=BENT_Q))
HUBS = (levels(2, 2, selection=HUB), levels(2, selection=HUB, p=BENT_P, q=BENT_Q))
GREEDIES = (levels(2, 1, selection=GREEDY), levels(2, selection=GREEDY, p=BENT_P, q=BENT_Q))
FIXED = (levels(2, 2, selection=Selection.TOP_K), levels(2, 1))
R, T, B, M = "rejection:Rejection", "joint:Traversal", "joint:Block", "match:Match"
K, H, G = "transport:KSeq", "transport:SpecHub", "transport:GreedyPlusOne"
C, GR = "selection:Canonical", "selection:GlobalResolution"

MUTANTS = [
    # the walk and the match rule
    Mutant(
        "bonus from the parent's row", "walk",
        "row = checked(p(node), f",
        "row = checked(p(int(tree.parent[node]) if node >= 0 and not tree.children[node + 1] else node), f",
        M, FIXED,
    ),
    Mutant(
        "descends into the first child", "walk",
        "child = tree.child(node, token)",
        "child = tree.children[node + 1][0]",
        M, FIXED,
    ),
    Mutant("one position for every depth", "walk", "rng, position + len(path) + 1)", "rng, position + 1)", M, FIXED),
    Mutant(
        "siblings in the opposite order", "walk",
        "yield from sorted(children, key=source.__getitem__)",
        "yield from reversed(children)",
        R, BOTH,
    ),
    Mutant("multiplicity dropped", "walk", "if all(tree.mult[c] == 1 for c in children):", "if True:", R, BOTH),
    Mutant(
        "repeats right after their first draw", "walk",
        "*(left[c] for c in shown), new]",
        "*(left[c] for c in shown), new * (not any(left[c] for c in shown))]",
        R, BOTH,
    ),
    Mutant(
        "repeats last", "walk",
        "*(left[c] for c in shown), new]",
        "*(left[c] * (not new) for c in shown), new]",
        R, BOTH,
    ),
    # the residual
    Mutant("residual not updated", "residual", "self.row, self.mass = left, mass", "pass", R, BOTH),
    Mutant("residual not renormalised", "residual", "self.row, self.mass = left, mass", "self.row = left", R, BOTH),
    Mutant(
        "residual of the absolute difference", "residual",
        "np.maximum(left, 0.0, out=left)",
        "np.abs(left, out=left)",
        R, BOTH,
    ),
    Mutant(
        "refused token zeroed instead of its law taken out", "residual",
        "left -= q.row",
        "left[token] = 0.0",
        R, BOTH,
    ),
    Mutant(
        "removed token, mass kept", "residual",
        "        self.row[token] = 0.0\n        self.mass = float(self.row.sum())",
        "        self.row[token] = 0.0",
        R, BOTH,
    ),
    Mutant("removed token, row kept", "residual", "        self.row[token] = 0.0\n", "", R, BOTH),
    # rejection
    Mutant("replacement forgotten", "rejection", "== Selection.WITHOUT_REPLACEMENT:", "== Selection.HUB:", R, BOTH),
    Mutant(
        "every draw taken as without replacement", "rejection",
        "== Selection.WITHOUT_REPLACEMENT:",
        ">= 0:",
        R, BOTH,
    ),
    Mutant(
        "token from p after refusals", "rejection",
        "return site.rng.categorical(left.row, site.position, Purpose.RESIDUAL)",
        "return site.bonus()",
        R, BOTH,
    ),
    # traversal
    Mutant(
        "last sibling first", "joint",
        "draws(tree, children, rng, at, key=node + 1)",
        "reversed(list(draws(tree, children, rng, at, key=node + 1)))",
        T, BOTH,
    ),
    Mutant(
        "P of the parent not updated", "joint",
        "value = 1.0 if node == ROOT else rest / (rest + 1.0 - value) if rest > 0.0 else 0.0",
        "pass",
        T, BOTH,
    ),
    Mutant(
        "P = S over what the draft has left", "joint",
        "value = 1.0 if node == ROOT else rest / (rest + 1.0 - value) if rest > 0.0 else 0.0",
        "value = 1.0 if node == ROOT else min(1.0, rest / max(1e-9, 1.0 - float(proposal.row[token])))",
        T, BOTH,
    ),
    Mutant(
        "P of the path forgotten", "joint",
        "min(1.0, value * left.ratio(token, proposal))",
        "min(1.0, left.ratio(token, proposal))",
        T, BOTH,
    ),
    Mutant(
        "P not capped", "joint",
        "min(1.0, value * left.ratio(token, proposal))",
        "value * left.ratio(token, proposal)",
        T, BOTH,
    ),
    Mutant(
        "residual without P", "joint",
        "left.refuse(token, proposal, value)",
        "left.refuse(token, proposal)",
        T, BOTH,
    ),
    Mutant("the next token from the untouched row", "joint", "categorical(left.row,", "categorical(left.p,", T, BOTH),
    Mutant("replacement forgotten", "joint", "== Selection.WITHOUT_REPLACEMENT:", "== Selection.HUB:", T, BOTH),
    # block
    Mutant(
        "token-wise residual", "joint",
        "value[kept] * target[kept] - draft[kept]",
        "target[kept] - draft[kept]",
        B, CHAINS,
    ),
    Mutant(
        "token-wise test", "joint",
        "keep = mass / (mass + 1.0 - value[kept]) if mass > 0.0 else 0.0",
        "keep = value[kept]",
        B, CHAINS,
    ),
    Mutant(
        "q taken as one", "joint",
        "float(row[site.token(node)] / law[site.token(node)])",
        "float(row[site.token(node)])",
        B, CHAINS,
    ),
    Mutant("P not capped", "joint", "value.append(min(1.0, value[-1] * ", "value.append((value[-1] * ", B, CHAINS),
    Mutant(
        "P of the last token only", "joint",
        "value.append(min(1.0, value[-1] * ",
        "value.append(min(1.0, ",
        B, CHAINS,
    ),
    # transports
    Mutant("rho of one", "transport", "    return high\n", "    return low - (high - low) * 0 - low + 1.0\n", K, PAIRS),
    Mutant(
        "rho halfway", "transport",
        "rho = kseq_rho(p, q, k) if rho is None else rho",
        "rho = (1.0 + kseq_rho(p, q, k)) / 2 if rho is None else rho",
        K, PAIRS,
    ),
    Mutant(
        "K-SEQ's residual is rejection's", "transport",
        "residual = p - covered * (acceptance / beta if beta > 0.0 else 0.0)",
        "residual = np.maximum(p - q, 0.0)",
        K, PAIRS,
    ),
    Mutant(
        "draws that fell together count once", "transport",
        "site.only_q(), site.drawn)",
        "site.only_q(), len(site.children))",
        K, PAIRS,
    ),
    Mutant(
        "hub served from the wrong pair first", "transport",
        "min(1.0, left / spare_first) if spare_first > 0.0 else 0.0",
        "min(1.0, float(p[hub]) / spare_first) if spare_first > 0.0 else 0.0",
        H, HUBS,
    ),
    Mutant(
        "hub's second pair tested like the first", "transport",
        "plan.second[token] if behind",
        "plan.first[token] if behind",
        H, HUBS,
    ),
    Mutant(
        "second pair's service kept in the residual", "transport",
        "residual = np.maximum(want - behind, 0.0)",
        "residual = want.copy()",
        H, HUBS,
    ),
    Mutant(
        "the rest judged by all of q", "transport",
        "    rest[fixed] = 0.0\n    if not rest[drawn]",
        "    if not rest[drawn]",
        G, GREEDIES,
    ),
    Mutant(
        "the fixed tokens barred from the residual", "walk",
        "return site.rest(np.maximum(p - s, 0.0), [token])",
        "return site.rest(np.where(s > 0.0, np.maximum(p - s, 0.0), 0.0), [token])",
        G, GREEDIES,
    ),
    # choose, then test
    Mutant(
        "chosen by the other's weight", "selection",
        "site.accepts(float(w[first, second]), 0)",
        "site.accepts(float(w[second, first]), 0)",
        C, PAIRS,
    ),
    Mutant(
        "marginal of a single draw", "selection",
        "return single(site, chosen, canonical_marginal(q, w), 1)",
        "return single(site, chosen, q, 1)",
        C, PAIRS,
    ),
    Mutant(
        "marginal at other weights", "selection",
        "return Resolution(theta, barred, luce_marginal(law, theta, barred))",
        "return Resolution(theta, barred, luce_marginal(law, np.zeros_like(theta), barred))",
        GR, PAIRS,
    ),
    Mutant(
        "barred draws chosen too", "selection",
        "eligible = np.where(outside, mult, 0.0) if np.any(outside) else mult",
        "eligible = mult",
        GR, PAIRS,
    ),
    Mutant(
        "repeats chosen as if drawn once", "selection",
        "mult = site.tree.mult[list(site.children)].astype(np.float64)",
        "mult = np.ones(len(site.children))",
        GR, (levels(3, selection=IID), *PAIRS),
    ),
]
