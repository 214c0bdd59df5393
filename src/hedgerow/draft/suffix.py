"""Suffix drafting: what followed the longest earlier occurrence of the text's ending, here and in finished texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from hedgerow.core.errors import UsageError
from hedgerow.draft.mixing import Prior, Vote, log_shares
from hedgerow.draft.retrieval import LISTED, Kind, Retrieval, Taught

LENGTHS = (1, 2, 3, 4, 6, 9, 15)          # upper ends of the match-length buckets; longer ones share a last bucket
BUCKETS = len(LENGTHS) + 1
BUCKET = [next((i for i, end in enumerate(LENGTHS) if n <= end), len(LENGTHS)) for n in range(LENGTHS[-1] + 2)]
END = -1                                  # stands after a finished text; never proposed
WALK = 32                                 # most suffixes counted per token: texts like "aaaa" have as many as tokens
SCANNED = 64                              # successors looked at to find them

Match = tuple[int, int]                   # state, length of the match


class SuffixAutomaton:
    """The smallest automaton of all substrings of a growing text; a state is a set of substrings that end alike.

    `extend` appends a token in O(1) amortised time. `count[v]` is how often the substrings of state v occurred, exact
    except in texts whose ending has more than 32 distinct earlier lengths, where the shortest are undercounted. State
    0 is the empty match.

    Source: Blumer et al. 1985, as used by SAM-Decoding (2411.10666).

    >>> a = SuffixAutomaton([1, 2, 3, 1, 2])
    >>> match = a.ending(); match[1], a.successors(match), a.successors(a.follow(match, 3))
    (2, ([3], [1]), ([1], [1]))
    """

    __slots__ = ("count", "last", "length", "link", "next")

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]                  # state of the longest suffix that has other endings too
        self.length = [0]                 # of its longest substring
        self.count = [0]
        self.last = 0
        for token in tokens:
            self.extend(token)

    def __len__(self) -> int:
        return self.length[self.last]

    def extend(self, token: int) -> None:
        """Append a token. Mutates the automaton; states handed out stay valid."""
        nexts, link, length, count = self.next, self.link, self.length, self.count
        new = self._state({}, -1, length[self.last] + 1, 1)
        v = self.last
        while v >= 0 and token not in nexts[v]:
            nexts[v][token] = new
            v = link[v]
        if v < 0:
            link[new] = 0
        else:
            q = nexts[v][token]
            if length[v] + 1 == length[q]:
                link[new] = q
            else:
                clone = self._state(dict(nexts[q]), link[q], length[v] + 1, count[q])
                while v >= 0 and nexts[v].get(token) == q:
                    nexts[v][token] = clone
                    v = link[v]
                link[q] = link[new] = clone
        self.last = new
        v = link[new]
        for _ in range(WALK):
            if v <= 0:
                break
            count[v] += 1
            v = link[v]

    def _state(self, successors: dict[int, int], link: int, length: int, count: int) -> int:
        self.next.append(successors)
        self.link.append(link)
        self.length.append(length)
        self.count.append(count)
        return len(self.link) - 1

    def ending(self) -> Match:
        """The longest ending of the text that occurred before."""
        v = max(self.link[self.last], 0)
        return v, self.length[v]

    def follow(self, match: Match, token: int) -> Match:
        """The longest match that ends with `token`."""
        v, n = match
        while token not in self.next[v]:
            if v == 0:
                return 0, 0
            v = self.link[v]
            n = self.length[v]
        return self.next[v][token], n + 1

    def settle(self, match: Match) -> Match:
        """The same match after the automaton grew, or its longest ending that has a successor."""
        v, n = match
        while v > 0 and (n <= self.length[self.link[v]] or not self.next[v]):
            v = self.link[v]
            n = min(n, self.length[v])
        return v, n

    def successors(self, match: Match) -> tuple[list[int], list[int]]:
        """Up to 8 tokens that followed a match and how often, most frequent first, ties to the later first seen."""
        after, count = self.next[match[0]], self.count
        if len(after) == 1:
            [(token, w)] = after.items()
            return ([], []) if token == END else ([token], [count[w]])
        found = [(-count[w], -i, t) for i, (t, w) in enumerate(islice(after.items(), SCANNED)) if t != END]
        found.sort()
        return [t for _, _, t in found[:LISTED]], [-c for c, _, _ in found[:LISTED]]


class SuffixMemory:
    """Finished texts of a tenant, and a corpus: read-only automata that every request of the tenant looks into.

    Texts fill a generation of `limit` tokens; a full one becomes the old one, and the one before is forgotten. A text
    longer than that leaves its end. `window` bounds what is indexed of a prompt.
    """

    def __init__(self, first: int, limit: int, window: int, corpus: SuffixAutomaton | None = None) -> None:
        self.first = first
        self.limit = limit
        self.window = window
        self.corpus = corpus
        self.old: SuffixAutomaton | None = None
        self.young = SuffixAutomaton()

    @property
    def shared(self) -> list[SuffixAutomaton]:
        """All but the request's own."""
        return [a for a in (self.corpus, self.old, self.young) if a is not None]

    def reader(self, tokens: Sequence[int]) -> SuffixReader:
        """A reader whose own automaton holds the tokens."""
        return SuffixReader(self, tokens)

    def add(self, text: Sequence[int]) -> None:
        """Take in a finished text. Mutates the young generation, may drop the old one."""
        if not self.limit:
            return
        text = text[-self.limit :]
        if len(self.young) + len(text) > self.limit and len(self.young):
            self.old, self.young = self.young, SuffixAutomaton()
        for token in text:
            self.young.extend(token)
        self.young.extend(END)


class SuffixReader:
    """One request's text as an automaton, and where its ending stands in the shared ones."""

    def __init__(self, memory: SuffixMemory, tokens: Sequence[int]) -> None:
        self.memory = memory
        self.text = list(tokens[-memory.window :])
        self.own = SuffixAutomaton(self.text)
        self.at: list[tuple[SuffixAutomaton, Match]] = [(a, (0, 0)) for a in memory.shared]
        self._advance(self.text)

    def start(self) -> list[Match]:
        """Matches of the root, the request's own first, then one a shared automaton."""
        return [self.own.ending(), *(m for _, m in self.at)]

    def follow(self, state: list[Match], token: int) -> list[Match]:
        """Matches of a child."""
        out = [self.own.follow(state[0], token)]
        for i, (automaton, _) in enumerate(self.at, 1):
            out.append(automaton.follow(state[i], token))
        return out

    def votes(self, state: list[Match]) -> list[Vote]:
        """One vote of the request's own longest match and one of the longest shared one."""
        out = []
        own = _vote(self.own, state[0], self.memory.first)
        if own is not None:
            out.append(own)
        shared = None
        for (a, _), m in zip(self.at, state[1:], strict=True):
            if m[1] and (shared is None or m[1] > shared[1][1]):
                shared = a, m
        if shared is not None:
            vote = _vote(*shared, self.memory.first + BUCKETS)
            if vote is not None:
                out.append(vote)
        return out

    def prefill(self, tokens: Sequence[int], rows: Sequence[Taught]) -> None:
        """Rows teach nothing here."""

    def learn(self, rows: Sequence[Taught], committed: Sequence[int]) -> None:
        """Rows teach nothing here."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens to the request's own automaton and follow them in the shared ones."""
        self.text += tokens
        for token in tokens:
            self.own.extend(token)
        known = {id(a): m for a, m in self.at}
        self.at = [(a, known.get(id(a), (0, 0))) for a in self.memory.shared]
        self._advance(tokens)

    def finish(self) -> None:
        """Leave the text to the tenant."""
        self.memory.add(self.text)

    def _advance(self, tokens: Sequence[int]) -> None:
        moved = []
        for a, m in self.at:
            for token in tokens:
                m = a.follow(a.settle(m), token)
            moved.append((a, m))
        self.at = moved


def _vote(automaton: SuffixAutomaton, match: Match, first: int) -> Vote | None:
    match = automaton.settle(match)
    n = match[1]
    if not n:
        return None
    tokens, count = automaton.successors(match)
    if not tokens:
        return None
    return first + BUCKET[min(n, len(BUCKET) - 1)], tokens, log_shares(count)


def suffix_kind(
    corpus: Sequence[int] = (), limit: int = 16_384, window: int = 32_768, corpus_limit: int = 1 << 18
) -> Kind:
    """Suffix memory as a kind: 8 buckets by match length for the request's own text, 8 for the shared ones.

    Raises: UsageError for a corpus of more than `corpus_limit` tokens, or a limit that is not positive.
    """
    if len(corpus) > corpus_limit:
        raise UsageError(
            f"the corpus has {len(corpus)} tokens; at most {corpus_limit} are indexed in memory: give a smaller file"
        )
    if limit < 0 or window < 1:
        raise UsageError(f"limit is {limit}, window {window}; allowed: 0 (remember no text) or more, 1 or more")
    built = SuffixAutomaton([int(t) for t in corpus]) if len(corpus) else None
    own = [Prior(0.5, 0.8 + 0.5 * i, -0.4) for i in range(BUCKETS)]
    shared = [Prior(0.4, 0.4 + 0.3 * i) for i in range(BUCKETS)]
    return Kind(lambda first: SuffixMemory(first, limit, window, built), own + shared)


class SuffixDrafter(Retrieval):
    """Continue the longest repeated ending: of the request's own text, of the tenant's finished texts, of a corpus.

    A node's state is the longest match of the text plus the node's path, found by following edges and, where one is
    missing, suffix links; its children are the tokens that followed that match, with counts as shares. `corpus` is one
    text of token ids, at most 262 144; `limit` tokens of finished texts are kept (twice) per tenant.

    Source: SuffixDecoding (2411.04975) sections 3-4, SAM-Decoding (2411.10666). Differs from the papers in: an
    automaton with counts instead of suffix trees; shares become probabilities by learned weights a match length
    (`Mixer`) instead of a score over suffix lengths.
    """

    def __init__(
        self, corpus: Sequence[int] = (), limit: int = 16_384, window: int = 32_768, tenants: int = 8
    ) -> None:
        super().__init__([suffix_kind(corpus, limit, window)], base=2.2, tenants=tenants)
