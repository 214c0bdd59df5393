"""Which pages hold which tokens: the memory of a paged store across requests.

A tree of pages. A node's page holds the keys and values of its tokens behind all tokens of its ancestors, so a text is
found by walking down from a root, page by page; the tokens themselves are compared, never only a hash of them. Every
tenant has a root of its own: nobody learns from a fast answer what others have asked.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hedgerow.core.errors import InvariantError

Accept = Callable[[Any], bool]


@dataclass(eq=False)
class Node:
    """A page with what stands in it: `tokens`, a note for each of them, and how many slots stand on it.

    Only a node whose page is full has children. A root has no tokens and no page.
    """

    parent: Node | None
    tokens: tuple[int, ...]
    page: int
    notes: tuple[Any, ...] = ()
    users: int = 0
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)


class Found(NamedTuple):
    """A known beginning: whole pages, then the first `common` tokens of the page of `partly`."""

    whole: list[Node]
    partly: Node | None
    common: int


@dataclass
class Trail:
    """A slot's way down the tree: root and nodes of its full pages, its tokens (pending ones last), notes of committed.

    A trail holds its nodes until `leave`.
    """

    index: PrefixIndex
    chain: list[Node]
    text: list[int] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        for node in self.chain:
            self.index.hold(node)

    def keep(self, rows: Sequence[int], notes: Sequence[Any] | None) -> None:
        """Of the pending tokens, commit these, with a note each, and drop the others. Mutates the trail."""
        length = len(self.notes)
        self.text[length:] = [self.text[length + r] for r in rows]
        self.notes += [None] * len(rows) if notes is None else notes

    def drop(self) -> None:
        """Drop the pending tokens."""
        del self.text[len(self.notes) :]

    def publish(self, pages: Sequence[int]) -> list[int]:
        """Let others find the pages that are full by now; returns those that are kept for it. Mutates the tree."""
        size, kept = self.index.page, []
        for i in range(len(self.chain) - 1, len(self.notes) // size):
            part = slice(i * size, (i + 1) * size)
            node, new = self.index.extend(
                self.chain[-1], tuple(self.text[part]), pages[i], tuple(self.notes[part])
            )
            kept += [pages[i]] * new
            self.index.hold(node)
            self.chain.append(node)
        return kept

    def end(self, pages: Sequence[int]) -> list[int]:
        """Let others find the partly filled last page; returns it if it is kept for it. Mutates the tree."""
        begin = (len(self.chain) - 1) * self.index.page
        tail = tuple(self.text[begin : len(self.notes)])
        if not tail or not self.index.end(self.chain[-1], tail, pages[-1], tuple(self.notes[begin:])):
            return []
        return [pages[-1]]

    def branch(self, length: int) -> Trail:
        """The trail of another slot that begins with the first `length` committed tokens."""
        chain = self.chain[: 1 + length // self.index.page]
        return Trail(self.index, chain, self.text[:length], self.notes[:length])

    def leave(self) -> None:
        """Let go of the nodes, the last page's first, so that it is forgotten first."""
        for node in reversed(self.chain):
            self.index.let_go(node)


class PrefixIndex:
    """The tree of known pages of `page` tokens. Nodes no slot stands on are idle, and forgotten oldest first.

    It decides nothing about pages: who extends it keeps the page of a new node, who forgets one gets its page back.

    >>> index = PrefixIndex(page=2)
    >>> node, new = index.extend(index.root(""), (7, 8), page=0)
    >>> index.find("", [7, 8, 9], 3) == Found([node], None, 0), index.find("", [7, 9], 2).common
    (True, 1)
    >>> index.forget(), index.find("", [7, 8, 9], 3).whole
    (0, [])
    """

    def __init__(self, page: int) -> None:
        self.page = page
        self._roots: dict[str, Node] = {}
        self._idle: OrderedDict[Node, None] = OrderedDict()  # oldest first

    @property
    def idle(self) -> int:
        """Nodes no slot stands on."""
        return len(self._idle)

    def root(self, tenant: str) -> Node:
        """The root of a tenant, made when first asked for."""
        return self._roots.setdefault(tenant, Node(None, (), -1))

    def find(self, tenant: str, tokens: Sequence[int], limit: int, accept: Accept = lambda note: True) -> Found:
        """The longest known beginning of `tokens` of at most `limit` tokens, all of whose notes are accepted."""
        root = self._roots.get(tenant)
        if root is None:
            return Found([], None, 0)
        whole, node, at = [], root, 0
        while at + self.page <= limit:
            below = node.children.get(tuple(tokens[at : at + self.page]))
            if below is None or not all(map(accept, below.notes)):
                break
            whole.append(below)
            node, at = below, at + self.page
        rest = tuple(tokens[at : min(limit, at + self.page)])
        partly, common = None, 0
        for below in node.children.values():
            n = _common(below.tokens, rest)
            n = next((i for i, note in enumerate(below.notes[:n]) if not accept(note)), n) if n > common else 0
            if n > common:
                partly, common = below, n
        return Found(whole, partly, common)

    def extend(
        self, parent: Node, tokens: tuple[int, ...], page: int, notes: tuple[Any, ...] = ()
    ) -> tuple[Node, bool]:
        """The node of a full page below `parent`, and whether it is new: if not, its own page stays.

        Notes that are complete replace those of a known node. Mutates the tree.
        """
        known = parent.children.get(tokens)
        if known is None:
            return self._add(parent, tokens, page, notes), True
        if None not in notes:
            known.notes = notes
        return known, False

    def end(self, parent: Node, tokens: tuple[int, ...], page: int, notes: tuple[Any, ...] = ()) -> bool:
        """Remember a page that is partly filled; False if a known page holds as much, which is then used. Mutates."""
        for below in parent.children.values():
            if below.tokens[: len(tokens)] == tokens and (None in notes or None not in below.notes[: len(tokens)]):
                self.touch(below)
                return False
        if tokens in parent.children:     # known, with fewer notes
            parent.children[tokens].notes = notes
            return False
        self._add(parent, tokens, page, notes)
        return True

    def _add(self, parent: Node, tokens: tuple[int, ...], page: int, notes: tuple[Any, ...]) -> Node:
        for below in parent.children.values():
            if below in self._idle and below.tokens == tokens[: len(below.tokens)]:
                self._idle.move_to_end(below, last=False)     # the new page holds all of it: the first to be forgotten
        node = parent.children[tokens] = Node(parent, tokens, page, notes)
        self._idle[node] = None
        return node

    def hold(self, node: Node) -> None:
        """A slot stands on a node (or root) from now on."""
        node.users += 1
        self._idle.pop(node, None)

    def let_go(self, node: Node) -> None:
        """A slot no longer stands on a node."""
        node.users -= 1
        if not node.users:
            if node.parent is not None:
                self._idle[node] = None
            else:
                self._prune(node)

    def touch(self, node: Node) -> None:
        """An idle node was of use: it is now the youngest."""
        if node in self._idle:
            self._idle.move_to_end(node)

    def forget(self) -> int | None:
        """Drop the oldest idle node without children and return its page; None if there is none. Mutates the tree."""
        node = next((n for n in self._idle if not n.children), None)
        if node is None or node.parent is None:
            return None
        del self._idle[node]
        del node.parent.children[node.tokens]
        self._prune(node.parent)
        return node.page

    def _prune(self, root: Node) -> None:
        if root.parent is None and not root.users and not root.children:
            for tenant in [t for t, r in self._roots.items() if r is root]:
                del self._roots[tenant]

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents first."""
        todo = [below for root in self._roots.values() for below in root.children.values()]
        while todo:
            node = todo.pop()
            yield node
            todo += node.children.values()

    def check(self, held: Sequence[Node]) -> None:
        """Raises InvariantError unless exactly `held`, a node once for each slot, are stood on and all others idle."""
        users = Counter(held)
        for node in [*self._roots.values(), *self.nodes()]:
            if node.users != users.pop(node, 0):
                raise InvariantError(f"a page of {len(node.tokens)} tokens counts {node.users} slots that stand on it")
            if node.parent is not None and (node in self._idle) != (not node.users):
                raise InvariantError(f"page {node.page} has {node.users} users and is listed wrongly as idle or not")
        if users or any(not n.users and not n.children for n in self._roots.values()):
            raise InvariantError(f"{len(users)} slots stand on pages that are forgotten, or a root was left behind")


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
