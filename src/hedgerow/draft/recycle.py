"""Token Recycling: the target's own rows, refused ones included, remembered as successors of what stood before them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import log

from hedgerow.core.errors import UsageError
from hedgerow.core.parts import Needs
from hedgerow.draft.mixing import Prior, Vote
from hedgerow.draft.retrieval import LEAST, LISTED, Kind, Retrieval, Taught

VISITS = 3                                # a row that was seen so often or more is in the last bucket

_LEVELS = (
    "0 1 2 3 4 5 6 7",
    "00 01 02 03 04 05 06 07 10 11 12 13 14 20 21 30 31 40 50 60 70",
    "000 001 002 003 004 005 006 007 010 011 020 030 040 050 060 070 100 101 110 200 300 400 500 600 700",
    "0000 0001 0002 0003 0010 0011 0020 0030 0100 0101 0200 0300 1000 2000 3000",
    "00000 00001 00002 00010 00020 00100 01000 10000",
    "000000 000001 000010",
)
TEMPLATE_PATHS: tuple[tuple[int, ...], ...] = tuple(
    tuple(int(r) for r in path) for level in _LEVELS for path in level.split()
)
"""The static tree of 80 nodes as rank paths, breadth first, for a fixed policy (`core.shape.TreeShape.from_paths`).

Source: Token Recycling (2408.08696) section 3.3. Differs from the paper in: only its level sizes are kept; which ranks
stand in a level follows from hit rates of .458 .098 .034 .027 .020 .012 .010 .008 by rank, measured with SmolLM2-135M.
"""


Known = tuple[Sequence[int], Sequence[float], int]     # of one context: ids, their shares, how often it was asked


class Adjacency:
    """Context → its 8 likeliest successors, in two generations of at most `limit` contexts: a full one grows old.

    A context met again keeps a running mean in which the past weighs `keep`; 0 makes the last write win. Votes fall in
    the buckets `first`, `first + 1`, `first + 2` after one, two, more visits. About 450 bytes a context.

    >>> a = Adjacency(first=0, limit=2)
    >>> for ids in ([5, 6], [6, 7]): a.put(1, Taught((), ids, [0.75, 0.25]))
    >>> a.vote(1)[1].tolist(), a.get(1)[1].tolist(), a.vote(4)
    ([6, 5, 7], [0.5, 0.375, 0.125], None)
    >>> for context in (2, 3, 4): a.put(context, Taught((), [5], [1.0]))
    >>> a.vote(1), len(a)
    (None, 2)
    """

    def __init__(self, first: int, limit: int, keep: float = 0.5) -> None:
        self.first = first
        self.limit = limit
        self.keep = keep
        self.young: dict[int, Known] = {}
        self.old: dict[int, Known] = {}

    def __len__(self) -> int:
        return len(self.young.keys() | self.old.keys())

    def get(self, context: int) -> Known | None:
        """What is known of a context."""
        return self.young.get(context) or self.old.get(context)

    def put(self, context: int, row: Taught) -> None:
        """Take in a row of the target. Mutates the young generation, may drop the old one."""
        known = self.young.get(context) or self.old.get(context)
        ids, share, visits = row.ids, row.share, 1
        if known is not None:
            visits = known[2] + 1
            if self.keep:
                keep, new = self.keep, 1.0 - self.keep
                mean = {t: new * s for t, s in zip(ids, share)}  # noqa: B905 — a hot loop
                for t, s in zip(known[0], known[1]):  # noqa: B905
                    mean[t] = mean.get(t, 0.0) + keep * s
                ids, share = heaviest(mean)
        self.young[context] = array("i", ids), array("f", share), visits
        if len(self.young) >= self.limit:
            self.old, self.young = self.young, {}

    def vote(self, context: int) -> Vote | None:
        """What is known of a context as evidence, or None: an unknown context has no children."""
        known = self.young.get(context) or self.old.get(context)
        if known is None:
            return None
        ids, share, visits = known
        return self.first + min(visits, VISITS) - 1, ids, [log(s) for s in share]


def heaviest(mass: dict[int, float]) -> tuple[list[int], list[float]]:
    """The 8 heaviest tokens with their mass, in falling order, ties in the given one; tokens under 0.001 are left out.

    >>> heaviest({5: 0.25, 6: 0.75, 7: 0.0})
    ([6, 5], [0.75, 0.25])
    """
    ids = sorted(mass, key=mass.__getitem__, reverse=True)[:LISTED]
    share = [mass[t] for t in ids]
    while share[-1] < LEAST:
        ids.pop()
        share.pop()
    return ids, share


class RecycleMemory:
    """A tenant's adjacencies: one by the last token, one by the last two where `context` is 2."""

    def __init__(self, first: int, context: int, keep: float, limit: int, leftovers: bool) -> None:
        self.orders = [Adjacency(first + VISITS * i, limit, keep) for i in range(context)]
        self.bucket = first + VISITS * context           # of leftovers
        self.leftovers = leftovers

    def reader(self, tokens: Sequence[int]) -> RecycleReader:
        """A reader at the end of the tokens."""
        return RecycleReader(self, tokens)


State = tuple[int, int, int]              # depth below the root, key of the last token, key of the last two


class RecycleReader:
    """One request's place in its tenant's adjacencies, and the rows its refused nodes left at positions to come.

    A refused node at a depth that is still ahead was asked by the target after other tokens; what it said there is
    often said again. Those leftovers are the request's own.
    """

    def __init__(self, memory: RecycleMemory, tokens: Sequence[int]) -> None:
        self.memory = memory
        self.before = tokens[-2] if len(tokens) > 1 else -1
        self.root = tokens[-1]
        self.ahead: dict[int, dict[int, float]] = {}    # depth below the root -> mass of tokens said there
        self.said: dict[int, Vote] = {}                 # the same as evidence

    def start(self) -> State:
        """State of the root."""
        return 0, self.root, pair(self.before, self.root)

    def follow(self, state: State, token: int) -> State:
        """State of a child."""
        return state[0] + 1, token, pair(state[1], token)

    def votes(self, state: State) -> list[Vote]:
        """One vote an order, one of the leftovers."""
        out = []
        for order, key in zip(self.memory.orders, state[1:], strict=False):
            vote = order.vote(key)
            if vote is not None:
                out.append(vote)
        said = self.said.get(state[0])
        if said is not None:
            out.append(said)
        return out

    def prefill(self, tokens: Sequence[int], rows: Sequence[Taught]) -> None:
        """Take in the rows of a prompt."""
        before = -1
        for token, row in zip(tokens, rows, strict=True):
            self._put(before, token, row)
            before = token

    def learn(self, rows: Sequence[Taught], committed: Sequence[int]) -> None:
        """Take in the rows of a step, accepted or not."""
        done = len(committed)
        ahead: dict[int, dict[int, float]] = {}
        for depth, said in self.ahead.items():
            if depth >= done:
                ahead[depth - done] = said
        accepted = tuple(committed)
        for row in rows:
            path = row.path
            depth = len(path)
            token = path[-1] if depth else self.root
            self._put(path[-2] if depth > 1 else self.root if depth else self.before, token, row)
            if depth >= done and self.memory.leftovers and path != accepted[:depth]:
                said = ahead.setdefault(depth - done, {})
                for t, share in zip(row.ids, row.share, strict=True):
                    said[t] = said.get(t, 0.0) + share
        self.ahead = ahead
        self.said = {d: _leftover(self.memory.bucket + (d > 0), said) for d, said in ahead.items()}

    def extend(self, tokens: Sequence[int]) -> None:
        """Move to the end of the committed tokens."""
        self.before = tokens[-2] if len(tokens) > 1 else self.root
        self.root = tokens[-1]

    def finish(self) -> None:
        """The adjacencies already hold everything."""

    def _put(self, before: int, token: int, row: Taught) -> None:
        orders = self.memory.orders
        orders[0].put(token, row)
        if len(orders) > 1:
            orders[1].put(pair(before, token), row)


def pair(before: int, token: int) -> int:
    """One key for two tokens."""
    return (before + 1) << 32 | token


def _leftover(bucket: int, said: dict[int, float]) -> Vote:
    ids, mass = heaviest(said)
    log_total = log(sum(said.values()))
    return bucket, ids, [log(m) - log_total for m in mass]


def recycle_kind(context: int = 2, keep: float = 0.5, limit: int = 32_768, leftovers: bool = True) -> Kind:
    """Recycled rows as a kind: 3 buckets by visits for each order, 2 for leftovers (root, deeper).

    Raises: UsageError for a context other than 1 or 2, a `keep` outside [0, 1), or a limit below 1.
    """
    if context not in (1, 2) or not 0.0 <= keep < 1.0 or limit < 1:
        raise UsageError(
            f"recycling has context {context}, keep {keep}, limit {limit}; allowed: 1 or 2, 0 to below 1, 1 or more"
        )
    priors = [Prior(0.6, 1.8 + 0.4 * n) for n in (1, 2, 3)]
    if context > 1:
        priors += [Prior(0.25, 1.0 + 0.3 * n) for n in (1, 2, 3)]
    priors += [Prior(0.6, 2.3), Prior(0.4, 1.1)]
    return Kind(lambda first: RecycleMemory(first, context, keep, limit, leftovers), priors, Needs(top_k=LISTED))


class RecycleDrafter(Retrieval):
    """The target's 8 best successors of a token, learned from every row it computes, refused or not, prompts included.

    A child's share is its probability among the 8; contexts met again keep a running mean. `context=2` adds rows keyed
    by the last two tokens; `leftovers` adds what refused nodes were told at positions still ahead. At most 2 · `limit`
    rows of 8 per order and tenant.

    Source: Token Recycling (2408.08696) section 3. Differs from the paper in: probabilities instead of ranks decide
    the tree; with `context=1, keep=0, leftovers=False` the matrix is the paper's, an empty row being none at all.
    """

    def __init__(
        self, context: int = 2, keep: float = 0.5, limit: int = 32_768, leftovers: bool = True, tenants: int = 8
    ) -> None:
        super().__init__([recycle_kind(context, keep, limit, leftovers)], base=3.0, tenants=tenants)
