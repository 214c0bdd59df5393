"""The machinery of every drafter that only remembers: slots, tenants, node states, and what a step teaches.

What is remembered is a part: a `Memory` belongs to one tenant and outlives requests, its `Reader` belongs to one
request. Retrieval never touches the device.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from hedgerow.core.errors import InvariantError, UsageError
from hedgerow.core.parts import Ask, Children, Feats, Needs, Row, Step
from hedgerow.core.tree import Selection
from hedgerow.draft.luck import Luck
from hedgerow.draft.mixing import Mixer, Prior, Vote

Path = tuple[int, ...]

LISTED = 8                                # tokens of a row that are used
LEAST = 1e-3                              # share under which they are not
LUCK = Prior(1.0, 0.0)                    # where trust in the target's noise starts: as in a race on the true law


class Taught(NamedTuple):
    """One row of the target: the tokens of its path below the root (empty: the root's row), its best ids and their
    probabilities among those listed, in falling order; ids under 0.001 are left out."""

    path: Path
    ids: list[int]
    share: list[float]


class Reader(Protocol):
    """One request's place in a memory. A state is whatever a node needs to vote; it lives until the next `extend`."""

    def start(self) -> Any:
        """State of the root."""

    def follow(self, state: Any, token: int) -> Any:
        """State of a child; nothing is mutated."""

    def votes(self, state: Any) -> list[Vote]:
        """The evidence on what comes after a node with this state."""

    def prefill(self, tokens: Sequence[int], rows: Sequence[Taught]) -> None:
        """Take in a prompt's rows; `rows[i]` is that of token i, `path` is unused."""

    def learn(self, rows: Sequence[Taught], committed: Sequence[int]) -> None:
        """Take in the rows of a step, root first; called before `extend` with the tokens committed by it."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens to the text."""

    def finish(self) -> None:
        """The request is over: leave to the memory what later requests may use."""


class Memory(Protocol):
    """What one tenant's texts taught."""

    def reader(self, tokens: Sequence[int]) -> Reader:
        """A reader of a request that starts with these tokens."""


@dataclass(frozen=True)
class Kind:
    """A kind of memory: how one is made, where its buckets' weights start, and what it needs of the target's rows.

    `make` gets the number of its first bucket in the mixture.
    """

    make: Callable[[int], Memory]
    priors: Sequence[Prior]
    needs: Needs = field(default_factory=Needs)


@dataclass
class _Tenant:
    """One mixture for steps whose noise is not looked at, one for those where it is: the same votes, other weights."""

    memories: list[Memory]
    mixer: Mixer
    lucky: Mixer


@dataclass
class _Slot:
    tenant: _Tenant
    tokens: list[int]
    readers: list[Reader]
    states: dict[Path, tuple[Any, ...]] = field(default_factory=dict)
    votes: dict[Path, list[Vote]] = field(default_factory=dict)
    luck: Luck | None = None              # of the step under way, where it is looked at


class Retrieval:
    """A drafter that mixes the votes of several kinds of memory; there are no q rows.

    A child is `retrieved` — then it depends on the text alone — or, for match rules, `coupled`: the target's own noise
    at its position (`Luck`) has a vote on every token that a memory speaks for, and the mixture learns what it is
    worth. A greedy request has no noise: there both are one.

    log q of a child is the log of the estimated probability that the target goes there if the parent is right (see
    `Mixer`). All memory and all learned weights belong to a tenant; the `tenants` most recent are kept. `commit` learns
    from the nodes that were asked for in the step and lie on the accepted path, then takes in the rows and the tokens.

    Raises: UsageError when asked for another selection or for a row; InvariantError for a slot that was not begun or a
    step that does not follow the last one.
    """

    selections = frozenset({Selection.RETRIEVED, Selection.COUPLED})

    def __init__(self, kinds: Sequence[Kind], base: float, tenants: int = 8) -> None:
        if tenants < 1:
            raise UsageError(f"tenants is {tenants}; allowed: 1 or more")
        self.kinds = tuple(kinds)
        self.base = base
        self.tenants = tenants
        self.needs = Needs()
        for kind in self.kinds:
            self.needs |= kind.needs
        self._known: OrderedDict[str, _Tenant] = OrderedDict()
        self._slots: dict[int, _Slot] = {}

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Start a request: its text is taken in, then the prompt's rows, the last of which chose the last token."""
        rows = _taught(feats, [()] * (0 if feats.top_ids is None else len(feats.top_ids)))
        if len(rows) >= max(len(tokens), 1):
            raise InvariantError(
                f"{len(rows)} prompt rows came with {len(tokens)} tokens; at most one row a prompt token is allowed"
            )
        known = self._known.get(tenant)
        if known is None:
            known = self._known[tenant] = self._learner()
        self._known.move_to_end(tenant)
        while len(self._known) > self.tenants:
            self._known.popitem(last=False)
        state = self._open(slot, known, tokens)
        for reader in state.readers:
            reader.prefill(state.tokens[-1 - len(rows) : -1], rows)

    def children(self, asks: Sequence[Ask]) -> Children:
        """Answer every frontier node with its likeliest children; none where no memory knows the context."""
        count: list[int] = []
        token: list[int] = []
        log_q: list[float] = []
        for ask in asks:
            _, frontier, view = ask
            slot, luck = self._slot(ask.slot), self.luck(ask)
            if frontier.selection not in self.selections:
                raise UsageError(
                    f"a retrieval drafter was asked for selection {frontier.selection.label!r}; it answers 'retrieved' "
                    "and 'coupled'"
                )
            rank, tokens_to = (slot.tenant.lucky if luck else slot.tenant.mixer).rank, view.growth.tokens_to
            for node, k in zip(frontier.nodes, frontier.counts, strict=True):
                best = rank(self._heard(slot, tokens_to(node) if node >= 0 else ()), k)
                count.append(len(best))
                for t, value in best:
                    token.append(t)
                    log_q.append(value)
        return Children(count, token, log_q)

    def luck(self, ask: Ask) -> Luck | None:
        """The noise the target will draw with in this step, where the ask may look at it and its source has numbers."""
        slot, view = self._slot(ask.slot), ask.view
        if ask.frontier.selection is not Selection.COUPLED or view.sampling.temperature == 0.0:
            return None
        if slot.luck is None and (noise := getattr(view.rng, "noise", None)):
            slot.luck = Luck(noise, view.position)
        return slot.luck

    def surest(self, ask: Ask, path: Path) -> float:
        """The probability of the likeliest child of a path below the root, as the memories see it; 0 if they do not."""
        state = self._slot(ask.slot)
        mixer = state.tenant.lucky if self.luck(ask) else state.tenant.mixer
        best = mixer.rank(self._heard(state, path), 1)
        return math.exp(best[0][1]) if best else 0.0

    def advise(self, slot: int, path: Path, vote: Vote) -> None:
        """Add a vote from outside on the children of a path, for this step."""
        self._votes(self._slot(slot), path).append(vote)

    def row(self, slot: int, origin: int) -> Row:
        """Always raises UsageError: memories have no rows."""
        raise UsageError("a retrieval drafter has no draft rows; use a rule that needs none, such as 'match'")

    def commit(self, slot: int, step: Step) -> None:
        """Record a step: weights, then rows, then tokens."""
        state = self._slot(slot)
        if step.root != state.tokens[-1]:
            raise InvariantError(
                f"slot {slot}: a step starts at token {step.root}, but the last one committed was {state.tokens[-1]}"
            )
        tree, committed = step.tree, step.verdict.committed(step.tree)
        for depth, token in enumerate(committed):
            path = tuple(committed[:depth])
            if path in state.votes:
                (state.tenant.lucky if state.luck else state.tenant.mixer).learn(self._heard(state, path), token)
        paths: list[Path] = [()]
        for t, p in zip(tree.tokens.tolist(), tree.parent.tolist(), strict=True):
            paths.append((*paths[p + 1], t))
        rows = _taught(step.feats, paths)
        for reader in state.readers:
            reader.learn(rows, committed)
            reader.extend(committed)
        state.tokens += committed
        state.states.clear()
        state.votes.clear()
        state.luck = None

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a request of the same tenant that holds the first `length` tokens of `src`."""
        source = self._slot(src)
        if not 1 <= length <= len(source.tokens):
            raise InvariantError(
                f"fork of {length} tokens of slot {src}, which has {len(source.tokens)}; 1 to all are allowed"
            )
        self._open(dst, source.tenant, source.tokens[:length])

    def release(self, slot: int) -> None:
        """Forget a slot; its text goes to its tenant's memories. A slot that was never begun is ignored."""
        state = self._slots.pop(slot, None)
        for reader in state.readers if state else ():
            reader.finish()

    def _open(self, slot: int, tenant: _Tenant, tokens: Sequence[int]) -> _Slot:
        if not tokens:
            raise InvariantError(f"slot {slot} begins without a token; a prompt and its first token are due")
        text = [int(t) for t in tokens]
        self._slots[slot] = state = _Slot(tenant, text, [memory.reader(text) for memory in tenant.memories])
        return state

    def _learner(self) -> _Tenant:
        memories: list[Memory] = []
        priors: list[Prior] = []
        for kind in self.kinds:
            memories.append(kind.make(len(priors)))
            priors += kind.priors
        return _Tenant(memories, Mixer(priors, self.base), Mixer([*priors, LUCK], self.base))

    def _slot(self, slot: int) -> _Slot:
        state = self._slots.get(slot)
        if state is None:
            raise InvariantError(f"slot {slot} was not begun; open slots: {sorted(self._slots)}")
        return state

    def _heard(self, slot: _Slot, path: Path) -> list[Vote]:
        """All votes on the children of a path, that of luck on whatever the others speak for."""
        votes = self._votes(slot, path)
        if slot.luck is None or not votes:
            return votes
        tokens = list(dict.fromkeys([t for _, listed, _ in votes for t in listed]))
        bucket = len(slot.tenant.mixer.slope)            # behind all others
        return [*votes, (bucket, tokens, slot.luck.of(len(path) + 1, tokens))]

    def _votes(self, slot: _Slot, path: Path) -> list[Vote]:
        votes = slot.votes.get(path)
        if votes is None:
            votes = []
            for reader, state in zip(slot.readers, self._states(slot, path), strict=True):
                votes += reader.votes(state)
            slot.votes[path] = votes
        return votes

    def _states(self, slot: _Slot, path: Path) -> tuple[Any, ...]:
        states = slot.states.get(path)
        if states is None:
            if path:
                above = self._states(slot, path[:-1])
                states = tuple([r.follow(s, path[-1]) for r, s in zip(slot.readers, above, strict=True)])
            else:
                states = tuple([r.start() for r in slot.readers])
            slot.states[path] = states
        return states


def _taught(feats: Feats, paths: Sequence[Path]) -> list[Taught]:
    """The target's best tokens after each path, with a softmax over the listed logits."""
    if feats.top_ids is None or feats.top_logits is None:
        return []
    if len(feats.top_ids) != len(paths):
        raise InvariantError(f"{len(feats.top_ids)} feature rows came for {len(paths)} rows of the target")
    out = []
    all_ids, all_logits = feats.top_ids[:, :LISTED].tolist(), feats.top_logits[:, :LISTED].tolist()
    for path, ids, logits in zip(paths, all_ids, all_logits, strict=True):
        peak = logits[0]
        weight = [math.exp(v - peak) for v in logits]
        total = sum(weight)
        share = [w / total for w in weight]
        while share[-1] < LEAST:
            share.pop()
        out.append(Taught(path, ids[: len(share)], share))
    return out
