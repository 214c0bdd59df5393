"""Every stop condition, once: end-of-sequence ids, stop strings, max tokens, min tokens — token by token.

Speculation commits several tokens a step. They pass here one at a time, in order, so that a stop inside an accepted
block ends the text exactly where plain decoding would have ended it, and ids, text, counts and reason always agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hedgerow.core.parts import Tokenizer

BROKEN = "\ufffd"


@dataclass(frozen=True)
class StopRule:
    """When a request ends.

    `stop_ids` end it and are counted (their text is empty for special tokens). A stop string ends it at the token that
    completes its first occurrence; the text is cut before the string. Neither counts before `min_tokens` tokens: ids
    are barred there by the processors, strings are not searched.
    """

    max_tokens: int
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()


@dataclass
class Finisher:
    """One request's completion so far: ids, text, and why it ended (None while it runs).

    `text` is stable: what may still become part of a stop string, or is an incomplete character, is not in it yet, so
    a stream may print every character of it as it comes.

    >>> class Letters:
    ...     eos = frozenset()
    ...     decode = staticmethod(lambda ids: "".join("abc"[i] for i in ids))
    >>> f = Finisher(StopRule(max_tokens=9, stop=("bc",)), Letters())
    >>> f.take([0, 1, 2, 0]), f.text, f.reason
    (3, 'a', 'stop')
    """

    rule: StopRule
    tokenizer: Tokenizer | None = None
    ids: list[int] = field(default_factory=list)
    reason: str | None = None
    _decoded: str = ""        # every complete character so far
    _end: int | None = None   # where the text ends, once a stop string was found
    _from: int = 0            # ids[_from:_read] give the decoder its context
    _read: int = 0            # ids before this are in _decoded, and it ended between two characters there
    _seen: int = 0            # characters of decode(ids[_from:]) that are in _decoded

    @property
    def remaining(self) -> int:
        """Tokens that may still come."""
        return 0 if self.reason else self.rule.max_tokens - len(self.ids)

    @property
    def text(self) -> str:
        """The completion's stable text."""
        if self._end is not None:
            return self._decoded[: self._end]
        return self._decoded if self.reason else self._decoded[: len(self._decoded) - self._open_tail()]

    def take(self, tokens: Sequence[int]) -> int:
        """Accept tokens in order until one ends the request; returns how many were kept. Mutates the state."""
        for kept, token in enumerate(tokens):
            if self.reason:
                return kept
            self.ids.append(int(token))
            if token in self.rule.stop_ids and len(self.ids) > self.rule.min_tokens:
                self.end("stop")
            elif self._decode(final=False):
                self.reason = "stop"
            elif len(self.ids) >= self.rule.max_tokens:
                self.end("length")
        return len(tokens)

    def end(self, reason: str) -> None:
        """End the request here; an incomplete character at the end becomes U+FFFD."""
        self.reason = "stop" if self._decode(final=True) else reason

    def _decode(self, final: bool) -> bool:
        """Decode what is complete; True if that completed a stop string, which then ends the text."""
        if self.tokenizer is None:
            return False
        whole = self.tokenizer.decode(self.ids[self._from :])
        ready = whole if final else whole.rstrip(BROKEN)
        if len(ready) <= self._seen:
            return False
        before = len(self._decoded)
        self._decoded += ready[self._seen :]
        self._seen = len(ready)
        if len(ready) == len(whole):
            self._from, self._read = self._read, len(self.ids)
            self._seen = len(self.tokenizer.decode(self.ids[self._from :]))
        if len(self.ids) <= self.rule.min_tokens:
            return False
        found = [self._decoded.find(s, max(0, before - len(s) + 1)) for s in self.rule.stop]
        self._end = min((at for at in found if at >= 0), default=None)
        return self._end is not None

    def _open_tail(self) -> int:
        """Length of the longest tail that some stop string begins with."""
        longest = 0
        for s in self.rule.stop:
            for n in range(min(len(s) - 1, len(self._decoded)), longest, -1):
                if self._decoded.endswith(s[:n]):
                    longest = n
                    break
        return longest
