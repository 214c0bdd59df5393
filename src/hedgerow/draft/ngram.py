"""Prompt lookup: what followed the ends of the text where they stood before; several matches make a tree."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hedgerow.core.errors import UsageError
from hedgerow.draft.mixing import Prior, Vote, log_shares
from hedgerow.draft.retrieval import LISTED, Kind, Retrieval, Taught

State = tuple[int, tuple[int, ...], tuple[int, ...]]    # length of the match, its ends (newest first), last tokens


class NgramMemory:
    """Nothing outlives a request: a memory only knows the sizes of its readers."""

    def __init__(self, first: int, longest: int, matches: int, window: int) -> None:
        self.first = first
        self.longest = longest
        self.matches = matches
        self.window = window

    def reader(self, tokens: Sequence[int]) -> NgramReader:
        """A reader whose index holds the tokens."""
        return NgramReader(self, tokens)


class NgramReader:
    """One request's text and, for each n-gram of up to `longest` tokens, the newest places where it ended."""

    def __init__(self, memory: NgramMemory, tokens: Sequence[int]) -> None:
        self.memory = memory
        self.text: list[int] = []
        self.ends: dict[tuple[int, ...], deque[int]] = {}
        self.extend(tokens[-memory.window :])

    def start(self) -> State:
        """The longest indexed ending of the text that occurred before, and where."""
        return self._lookup(tuple(self.text[-self.memory.longest :]))

    def follow(self, state: State, token: int) -> State:
        """The matches that go on with `token`; where none does, a new look-up of the path's ending."""
        n, ends, tail = state
        tail = (*tail, token)[-self.memory.longest :]
        text, last = self.text, len(self.text) - 1
        going = tuple([e + 1 for e in ends if e < last and text[e + 1] == token])
        return (n + 1, going, tail) if going else self._lookup(tail)

    def votes(self, state: State) -> list[Vote]:
        """One vote of all matches: each counts once, the newest twice."""
        n, ends, _ = state
        last = len(self.text) - 1
        count: dict[int, float] = {}
        for i, e in enumerate(ends):
            if e < last:
                token = self.text[e + 1]
                count[token] = count.get(token, 0.0) + (1.0 if i else 2.0)
        if not count:
            return []
        ranked = [(-c, t) for t, c in count.items()]
        ranked.sort()
        del ranked[LISTED:]
        bucket = self.memory.first + min(n, 2 * self.memory.longest) - 1
        return [(bucket, [t for _, t in ranked], log_shares([-c for c, _ in ranked]))]

    def prefill(self, tokens: Sequence[int], rows: Sequence[Taught]) -> None:
        """Rows teach nothing here."""

    def learn(self, rows: Sequence[Taught], committed: Sequence[int]) -> None:
        """Rows teach nothing here."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens; every n-gram that now has a successor is indexed."""
        text, ends, matches = self.text, self.ends, self.memory.matches
        for token in tokens:
            at = len(text) - 1
            for n in range(1, min(self.memory.longest, len(text)) + 1):
                key = tuple(text[-n:])
                places = ends.get(key)
                if places is None:
                    places = ends[key] = deque(maxlen=matches)
                places.appendleft(at)
            text.append(token)

    def finish(self) -> None:
        """Nothing stays."""

    def _lookup(self, tail: tuple[int, ...]) -> State:
        for n in range(len(tail), 0, -1):
            places = self.ends.get(tail[-n:])
            if places is not None:
                return n, tuple(places), tail
        return 0, (), tail


def ngram_kind(longest: int = 3, matches: int = 16, window: int = 32_768) -> Kind:
    """Prompt lookup as a kind: a bucket for each match length up to twice `longest`.

    Raises: UsageError for a size below 1.
    """
    if min(longest, matches, window) < 1:
        raise UsageError(f"longest is {longest}, matches {matches}, window {window}; each may be 1 or more")
    priors = [Prior(0.5, 0.8 + 0.5 * i, -0.4) for i in range(2 * longest)]
    return Kind(lambda first: NgramMemory(first, longest, matches, window), priors)


class NgramDrafter(Retrieval):
    """Look the text's last tokens up in the text itself and propose what came next, longest n-gram first.

    The index holds the `matches` newest ends of every n-gram of up to `longest` tokens, one dictionary entry a length
    and token. A node keeps the matches its path agrees with, so a match grows beyond `longest`; where all are lost, the
    path's own ending is looked up.

    Source: prompt lookup decoding (as in Spec-Bench, 2401.07851). Differs from it in: all matches of the longest n-gram
    are counted and make a tree, not the first one a chain of 10 tokens; shares become probabilities by learned weights
    a match length (`Mixer`).

    >>> from hedgerow.core.parts import Ask, Feats, Frontier, Sampling, View
    >>> from hedgerow.core.rng import Rng
    >>> from hedgerow.core.tree import Selection
    >>> drafter = NgramDrafter()
    >>> drafter.begin(0, [1, 2, 3, 1, 2], Feats())
    >>> view = View(0, slot=0, root=2, position=4, room=9, sampling=Sampling(), rng=Rng(0))
    >>> drafter.children([Ask(0, Frontier([-1], [4], selection=Selection.RETRIEVED), view)]).token
    [3]
    """

    def __init__(self, longest: int = 3, matches: int = 16, window: int = 32_768, tenants: int = 8) -> None:
        super().__init__([ngram_kind(longest, matches, window)], base=1.8, tenants=tenants)
