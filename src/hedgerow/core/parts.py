"""Every seam of hedgerow in one file: what each part takes, returns and may change.

    Policy      how a tree grows: a generator that yields frontiers, receives children and returns an ordered tree
    Drafter     who proposes: answers frontiers with children, records every step
    Target      the model being accelerated: one call for all rows of all requests
    Rule        who decides: a pure function of (tree, p, q, rng)
    Controller  how much is worth it now: caps before drafting, a prefix length after it
    CostModel   what a step costs on this machine

A step has two halves that never call the target: `propose(batch) -> Packed` and `settle(Packed, rows) -> Verdicts`
(engine/loop.py). All times are seconds, all sizes nodes (root excluded) or rows (root included).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float, Int

from hedgerow.core.errors import UsageError
from hedgerow.core.rng import Source
from hedgerow.core.shape import TreeShape
from hedgerow.core.tree import Growth, Selection, TokenTree

Row = Float[np.ndarray, " vocab"]
Rows = Callable[[int], Row]               # node (-1 = root) -> law after that node; computed when asked for


# ---------------------------------------------------------------------------------------------- requests

@dataclass(frozen=True)
class Sampling:
    """How a request's law is made from logits: temperature, then top-k, top-p, min-p. Temperature 0 is greedy.

    Raises: UsageError for a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0          # 0: all
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name, ok, allowed in (
            ("temperature", 0.0 <= self.temperature <= 100.0, "0 (greedy) to 100"),
            ("top_k", self.top_k >= 0, "0 (all tokens) or more"),
            ("top_p", 0.0 < self.top_p <= 1.0, "more than 0, at most 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "0 to 1"),
        ):
            if not ok:
                raise UsageError(f"{name} is {getattr(self, name)}; allowed: {allowed}")

    @property
    def filtered(self) -> bool:
        """Whether any token can be removed from the law."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


@dataclass
class View:
    """What policies and controllers may see of one request before and while its tree grows."""

    request: int                          # the engine's number of the request, never reused
    slot: int                             # its place in the target's and drafters' state
    root: int                             # token of the root
    position: int                         # absolute position of the root
    room: int                             # deepest draft that can still be committed (context, max tokens)
    sampling: Sampling
    rng: Source                           # keyed for this step
    draw: Callable[..., Row] = lambda row, depth, ids=None: row
    """Draft logits for children at a depth -> q, processed; `ids`: the tokens of the columns, where not all, rising."""
    entropy: float | None = None          # of the target's law that chose the root, nats
    growth: Growth = field(default_factory=Growth)


# ---------------------------------------------------------------------------------------------- drafting

Worth = Callable[[float, int, float], bool]
"""Whether `cut` may keep a node of this survival, or a later one, behind so many nodes with this Σ survival."""


@dataclass(frozen=True)
class Plan:
    """The controller's caps for one request and step, set before drafting; `nodes=0` means: do not even draft."""

    nodes: int
    depth: int = 1 << 30
    width: int = 1 << 30
    source: int | None = None             # None: every drafter of the recipe
    template: TreeShape | None = None
    probe: bool = False                   # drafted to learn, not to gain
    reason: str = ""                      # why nothing is drafted, for the user
    worth: Worth | None = None            # a policy that adds nodes in order of survival may end where it is false


@dataclass(frozen=True)
class Frontier:
    """Nodes a policy wants expanded in this round: `counts[i]` children of `nodes[i]` (arrival index, -1 = root)."""

    nodes: Sequence[int]
    counts: Sequence[int]
    source: int = 0
    selection: Selection = Selection.TOP_K


class Ask(NamedTuple):
    """One request's frontier as a drafter receives it."""

    slot: int
    frontier: Frontier
    view: View


@dataclass(frozen=True)
class Children:
    """Answers of one drafter to one round, as a struct of arrays over all children, grouped by frontier node.

    `count[i]` children answer frontier node i (at most the count asked for, 0 if there are none), in draw order.
    `origin` addresses the q row they were picked from, valid until the drafter's next commit of that slot. `aux` has
    arrays over *frontier nodes*: entropy, margin, confidence — properties of a row, known before any draw.
    """

    count: Sequence[int]
    token: Sequence[int]
    log_q: Sequence[float]
    origin: Sequence[int] | None = None
    mult: Sequence[int] | None = None
    aux: dict[str, Sequence[float]] = field(default_factory=dict)

    def split(self, sizes: Iterable[int]) -> list[Children]:
        """The same answers per request, where request r asked for `sizes[r]` frontier nodes."""
        sizes = list(sizes)
        if len(sizes) == 1:
            return [self]
        out, f, c = [], 0, 0
        for size in sizes:
            count = self.count[f : f + size]
            total = sum(count)
            part = slice(c, c + total)
            origin, mult = (None if x is None else x[part] for x in (self.origin, self.mult))
            aux = {k: v[f : f + size] for k, v in self.aux.items()}
            out.append(Children(count, self.token[part], self.log_q[part], origin, mult, aux))
            f, c = f + size, c + total
        return out


class Received(NamedTuple):
    """What a policy's `yield` returns: the answers, and the arrival indices they got in `view.growth`."""

    children: Children
    ids: range


Grow = Generator[Frontier, Received, TokenTree]


@dataclass(frozen=True)
class GrowSpec:
    """A policy written as data that a device can run inside a captured graph."""

    kind: str
    values: dict[str, float]


class Policy(Protocol):
    """How a tree grows. Its nodes come back in order of survival (law 2); it touches numbers, never tensors."""
    @property
    def selections(self) -> frozenset[Selection]:
        """Every selection it may yield."""
    @property
    def reads_tokens(self) -> bool:
        """Chooses, drops or ranks nodes by token identity (or by q of a drawn token)."""

    def grow(self, view: View, plan: Plan) -> Grow:
        """Yield frontiers, receive `Received`, return the ordered tree of at most `plan.nodes` nodes."""

    def spec(self) -> GrowSpec | None:
        """The same policy as data, or None."""


@dataclass(frozen=True)
class Needs:
    """What the target must return with every row for a drafter, on plain steps and prefill too."""

    taps: tuple[int, ...] = ()            # hidden states, as transformers' hidden_states indices
    last_hidden: bool = False             # after the final norm
    top_k: int = 0                        # ids and logits of the k best tokens of every row

    def __or__(self, other: Needs) -> Needs:
        taps = tuple(sorted({*self.taps, *other.taps}))
        return Needs(taps, self.last_hidden or other.last_hidden, max(self.top_k, other.top_k))


@dataclass(frozen=True)
class Feats:
    """What `Needs` asked for, over the rows of one group; tensors stay on the device, top-k ids are on the host."""

    taps: Any = None                      # [taps, rows, hidden]
    last_hidden: Any = None               # [rows, hidden]
    top_ids: Int[np.ndarray, "rows k"] | None = None
    top_logits: Float[np.ndarray, "rows k"] | None = None
    tapped: tuple[int, ...] = ()          # which hidden states `taps` are: other drafters may have asked for more


@dataclass(frozen=True)
class Verdict:
    """A rule's decision: the accepted root path (node indices), then one more token.

    `stop` says where that token comes from: `bonus` (the path ended at a leaf), `residual` (its children were refused).
    """

    path: tuple[int, ...]
    token: int
    stop: Literal["bonus", "residual"]

    def committed(self, tree: TokenTree) -> list[int]:
        """Tokens gained: the accepted path's, then the new root's."""
        return [int(tree.tokens[i]) for i in self.path] + [self.token]


@dataclass(frozen=True)
class Step:
    """One request's finished step, as drafters see it: tree after the cut, verdict, features of every row."""

    tree: TokenTree
    verdict: Verdict
    feats: Feats
    root: int                             # token of the root the step started from
    position: int                         # its absolute position
    seconds: float


class Drafter(Protocol):
    """Who proposes. State lives in slots; `commit` comes after every step, drafted or not, and only records."""

    needs: Needs
    selections: frozenset[Selection]      # what it can answer

    def begin(self, slot: int, tokens: Sequence[int], feats: Feats, tenant: str = "") -> None:
        """Start a request: its prompt and first token, and the features of the prompt's rows."""

    def children(self, asks: Sequence[Ask]) -> Children:
        """Answer every frontier of every request in one call."""

    def row(self, slot: int, origin: int) -> Row:
        """The q row at an origin. Raises UsageError where the drafter has no rows."""

    def commit(self, slot: int, step: Step) -> None:
        """Record a step."""

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` tokens of `src`."""

    def release(self, slot: int) -> None:
        """Forget a slot; what was learned for later requests may stay."""


# ---------------------------------------------------------------------------------------------- verification

@dataclass(frozen=True)
class RowGroup:
    """Rows of one request in a forward pass.

    `ancestors[i, j]` iff row i may attend to row j of the group (itself included); everything committed is visible.
    Of a `prefill` they are not read: each row sees all earlier ones.
    """

    kind: Literal["tree", "prefill", "aux"]
    slot: int
    tokens: Int[np.ndarray, " rows"]
    positions: Int[np.ndarray, " rows"]
    ancestors: Bool[np.ndarray, "rows width"]

    @property
    def sees(self) -> Bool[np.ndarray, "rows width"]:
        """`ancestors`, written out for a prefill too."""
        n = len(self.tokens)
        return np.tri(n, dtype=np.bool_) if self.kind == "prefill" else self.ancestors


@dataclass(frozen=True)
class TargetInfo:
    """Facts about a loaded target."""

    name: str
    vocab: int
    max_len: int
    device: str
    dtype: str
    backend: str
    eos: frozenset[int] = frozenset()
    quant: str = "none"


@dataclass(frozen=True)
class Capacity:
    """What the target can take now."""

    slots: int                            # free slots
    rows: int                             # most rows in one call
    max_len: int                          # longest sequence of a slot


class TargetRows(Protocol):
    """Logits of the rows of one call; they stay on the device until one is asked for."""

    def logits(self, group: int, row: int) -> Row:
        """Raw logits of one row, float32 on the host."""

    def argmax(self, group: int) -> Int[np.ndarray, " rows"]:
        """Most likely token of every row of a group, ties to the lowest id."""


class Ticket(Protocol):
    """A forward pass under way."""


class Target(Protocol):
    """The model being accelerated."""

    info: TargetInfo

    def capacity(self) -> Capacity:
        """What it can take now."""

    def acquire(self) -> int:
        """A free slot. Raises CapacityError when there is none."""

    def reuse(self, slot: int, tokens: Sequence[int], needs: Needs, tenant: str = "") -> int:
        """Let an empty slot begin with what a tenant's earlier requests left of `tokens`: how many, never all.

        `collect` then begins the features of the slot's prefill with theirs.
        """

    def submit(self, groups: Sequence[RowGroup], needs: Needs) -> Ticket:
        """Start the one call of a step. A slot's rows are pending until `commit`."""

    def collect(self, ticket: Any) -> tuple[TargetRows, list[Feats]]:
        """Wait for a ticket of its own: rows, and features per group."""

    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """Keep these rows of the slot's last group (root first, then the accepted path), drop the rest."""

    def fork(self, src: int, dst: int, length: int) -> None:
        """Make `dst` a copy of the first `length` committed tokens of `src`."""

    def release(self, slot: int) -> None:
        """Free a slot."""


@dataclass(frozen=True)
class Packed:
    """What `propose` hands to a target, and back to `settle`: per request a view, a plan, a tree, a group of rows.

    `proposed` counts the nodes of each tree before the cut; `trees` are after it.
    """

    views: list[View]
    plans: list[Plan]
    proposed: list[int]
    trees: list[TokenTree]
    groups: list[RowGroup]

    @property
    def rows(self) -> int:
        """Rows of the coming target call."""
        return sum(len(g.tokens) for g in self.groups)


class Rule(Protocol):
    """Who decides. Pure: arrays in, `Verdict` out, randomness passed in."""

    @property
    def name(self) -> str:
        """Its name in recipes and records."""
    @property
    def lossless(self) -> bool:
        """Whether the output law is the target's, for selections it accepts."""
    @property
    def accepts(self) -> frozenset[Selection]:
        """Selections it may judge."""
    @property
    def needs_q(self) -> bool:
        """Whether it asks for draft rows."""

    def verify(self, tree: TokenTree, p: Rows, q: Callable[[int, int], Row], rng: Source, position: int) -> Verdict:
        """Judge a tree whose root stands at `position`; `p(node)` and `q(node, source)` are computed when asked for."""


# ---------------------------------------------------------------------------------------------- text

class Tokenizer(Protocol):
    """What engine, command line and server need of a tokenizer."""

    eos: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw text, with the special tokens the model expects at its start."""

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation under the chat template, ready for the assistant's answer."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens are left out, incomplete UTF-8 becomes U+FFFD."""


# ---------------------------------------------------------------------------------------------- control

@dataclass(frozen=True)
class StepShape:
    """The size of a step, as a cost model sees it."""

    rows: Sequence[int]                   # per request
    contexts: Sequence[int]
    form: Literal["plain", "chain", "tree"] = "tree"


class CostModel(Protocol):
    """What a step costs on this machine."""

    def step_s(self, shape: StepShape) -> float:
        """Seconds of the target call."""

    def draft_s(self, calls: int, width: int, batch: int) -> float:
        """Seconds of the drafter calls."""

    def edges(self) -> Sequence[int]:
        """Total rows at which a step's cost jumps: the only sizes worth cutting to."""


@dataclass(frozen=True)
class Observation:
    """One request's part of a finished step, as a controller sees it."""

    request: int
    plan: Plan
    tree: TokenTree
    verdict: Verdict
    committed: int                        # after stops
    finished: bool
    step_s: float                         # the target call, whole batch
    rows: int                             # rows of the target call, whole batch
    batch: int
    draft_s: float = 0.0                  # drafting, whole batch


class Controller(Protocol):
    """How much is worth it now."""

    @property
    def looks_ahead(self) -> bool:
        """`plan` or `cut` reads what this step's drafting produced, beyond ranking."""
    @property
    def cuts(self) -> bool:
        """`cut` may keep less than a policy returned."""

    def plan(self, batch: Sequence[View]) -> list[Plan]:
        """Caps per request, before drafting."""

    def cut(self, trees: Sequence[TokenTree], batch: Sequence[View]) -> list[int]:
        """How long a prefix of each tree is verified."""

    def observe(self, step: Sequence[Observation]) -> None:
        """Learn from a finished step."""
