"""Greedy chains another engine drafted, against ours along the same text: which drafts differ, and by how little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hedgerow.core.parts import Ask, Drafter, Feats, Frontier, Sampling, Step, Verdict, View
from hedgerow.core.rng import Rng
from hedgerow.core.tree import ROOT, TokenTree
from hedgerow.draft.formats.selftest import Sample, features

RANKS = 64                                # our best tokens among which theirs is looked for


@dataclass(frozen=True)
class Chain:
    """A chain the other engine drafted after the token `root` at `position`.

    `second[d]` is its second choice at depth d, `lead[d]` how far that token's logit was behind; empty if not told.
    """

    position: int
    root: int
    drafts: list[int]
    second: list[int]
    lead: list[float]


@dataclass(frozen=True)
class Compared:
    """One chain of theirs, and ours from the same committed tokens.

    `below[d]` is our best token after *their* first d drafts, `lead[d]` its logit's lead over their token (0 where it
    is theirs; where theirs is not among our best `RANKS`, that over the last of them).
    """

    theirs: Chain
    ours: list[int]
    below: list[int]
    lead: list[float]


def follow(drafter: Drafter, sample: Sample, chains: Sequence[Chain], tenant: str) -> list[Compared]:
    """Take a drafter along a text the other engine wrote and ask it for a chain wherever that one drafted one.

    Chains whose root is the last token or behind it are left out: nothing verified them. The drafter's slot 0 is used
    and given back. Raises ValueError where a root is not the text's token.
    """
    tokens, out = sample.tokens, list[Compared]()
    judged = [c for c in chains if c.position < len(tokens) - 1]
    if not judged:
        return []
    for c in judged:
        if tokens[c.position] != c.root:
            raise ValueError(f"a chain starts at token {c.root} at {c.position}, where the text has "
                             f"{tokens[c.position]}: positions are counted in another way")
    feats = features(sample, drafter.needs.taps)
    at = judged[0].position
    drafter.begin(0, list(tokens[: at + 1]), _rows(feats, 0, at), tenant)
    try:
        for c in judged:
            for p in range(at, c.position):
                done = Verdict((), tokens[p + 1], "bonus")
                drafter.commit(0, Step(TokenTree.empty(), done, _rows(feats, p, p + 1), tokens[p], p, 0.0))
            at = c.position
            view = View(0, 0, c.root, at, len(c.drafts), Sampling(temperature=0.0), Rng(0))
            ours, _ = _descend(drafter, view, len(c.drafts), None)
            below, lead = _descend(drafter, view, len(c.drafts), c.drafts)
            out.append(Compared(c, ours, below, lead))
    finally:
        drafter.release(0)
    return out


def _descend(
    drafter: Drafter, view: View, depth: int, forced: Sequence[int] | None
) -> tuple[list[int], list[float]]:
    """Our best token at every depth and its lead over the forced one, below forced tokens or our own. Grows `view`."""
    best: list[int] = []
    lead: list[float] = []
    node = ROOT
    for d in range(depth):
        found = drafter.children([Ask(view.slot, Frontier([node], [RANKS]), view)])
        token, log_q = list(found.token), list(found.log_q)
        chosen = token[0] if forced is None else forced[d]
        best.append(token[0])
        lead.append(log_q[0] - log_q[token.index(chosen) if chosen in token else -1])
        [node] = view.growth.add([node], [1], [chosen], [log_q[0] - lead[-1]])
    return best, lead


def _rows(feats: Feats, begin: int, end: int) -> Feats:
    return Feats(taps=feats.taps[:, begin:end])


def accepted(drafts: Sequence[int], after: Sequence[int]) -> int:
    """Drafts that a greedy target accepts which writes `after`.

    >>> accepted([1, 2, 3], [1, 2, 9, 4])
    2
    """
    return next((i for i, (a, b) in enumerate(zip(drafts, after, strict=False)) if a != b),
                min(len(drafts), len(after)))


def along(found: Sequence[Compared], tokens: Sequence[int]) -> tuple[int, int, int]:
    """(drafted, accepted of theirs, accepted of ours) along one text, of chains that it is long enough to judge."""
    whole = [c for c in found if c.theirs.position + len(c.theirs.drafts) < len(tokens)]
    after = [tokens[c.theirs.position + 1 :] for c in whole]
    return (
        sum(len(c.ours) for c in whole),
        sum(accepted(c.theirs.drafts, text) for c, text in zip(whole, after, strict=True)),
        sum(accepted(c.ours, text) for c, text in zip(whole, after, strict=True)),
    )


def repeated(first: Sequence[Chain], again: Sequence[Chain]) -> dict[str, int]:
    """Drafts the other engine was asked for twice after the same tokens, and how many of them were the same."""
    before = {(c.position, c.root): c for c in first}
    pairs = [(c, before[c.position, c.root]) for c in again if (c.position, c.root) in before]
    return {
        "drafts": sum(len(a.drafts) for a, _ in pairs),
        "same": sum(x == y for a, b in pairs for x, y in zip(a.drafts, b.drafts, strict=True)),
    }


def agreement(found: Sequence[Compared]) -> dict[str, Any]:
    """How many drafts are the same token at the same place, and of the others what each engine made of them.

    `identical`: both draft their own chains. `identical_below`: ours is asked below their tokens, so that one
    difference is not counted again at every depth behind it. `decided`: drafts where the other engine's own logits did
    not leave its first two tokens equal; `identical_decided`: of these, as `identical_below`. `their_second` and
    `ties`: differences where our token is its second, and where that was equal. `our_lead` and `their_lead`: what
    separated the tokens of a difference, by our logits and by theirs (theirs: where ours is their second).
    """
    if not found:
        return {"chains": 0, "drafts": 0}
    pairs = [(a, b) for c in found for a, b in zip(c.ours, c.theirs.drafts, strict=True)]
    depth = max(len(c.ours) for c in found)
    apart = [(c, d) for c in found for d, t in enumerate(c.theirs.drafts) if c.below[d] != t]
    known = [(c, d) for c, d in apart if d < len(c.theirs.second) and c.theirs.second[d] == c.below[d]]
    ours, theirs = [c.lead[d] for c, d in apart], [c.theirs.lead[d] for c, d in known]
    every = [x for c in found for x in c.theirs.lead]
    clear = sum(c.theirs.lead[d] > 0.0 for c, d in apart if d < len(c.theirs.lead))
    decided = sum(x > 0.0 for x in every)
    return {
        "chains": len(found), "drafts": len(pairs),
        "identical": sum(a == b for a, b in pairs) / len(pairs),
        "identical_chains": sum(c.ours == c.theirs.drafts for c in found) / len(found),
        "identical_below": 1 - len(apart) / len(pairs),
        "identical_by_depth": [
            sum(c.ours[d] == c.theirs.drafts[d] for c in found if d < len(c.ours))
            / sum(d < len(c.ours) for c in found) for d in range(depth)
        ],
        "decided": decided, "identical_decided": 1 - clear / decided if decided else None,
        "differences": len(apart), "their_second": len(known), "ties": sum(x == 0.0 for x in theirs),
        "our_lead": _spread(ours), "their_lead": _spread(theirs), "their_lead_everywhere": _spread(every),
        "apart": [
            {"position": c.theirs.position, "depth": d + 1, "theirs": c.theirs.drafts[d], "ours": c.below[d],
             "our_lead": round(c.lead[d], 4),
             "their_lead": c.theirs.lead[d] if d < len(c.theirs.lead) else None}
            for c, d in apart
        ],
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": round(median(values), 4), "low": round(min(values), 4), "high": round(max(values), 4)}
