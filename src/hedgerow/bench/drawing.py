"""What a step and a comparison look like to people: a drawn tree with the accepted path marked; a verdict in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hedgerow.api import Result
    from hedgerow.core.parts import Step

Decode = Callable[[Sequence[int]], str]


class Line(NamedTuple):
    """One line of a drawing, and whether it lies on the accepted path."""

    text: str
    accepted: bool


class Strokes(NamedTuple):
    """The characters a tree is drawn with."""

    fork: str
    last: str
    down: str
    blank: str
    tick: str
    arrow: str


BOXES = Strokes("├─", "└─", "│ ", "  ", "✓", "→")
ASCII = Strokes("|-", "`-", "| ", "  ", "*", ">")


def token_text(token: int, decode: Decode) -> str:
    """A token as people can read it: quoted, control characters escaped; its id where it is no whole character."""
    text = decode([token])
    return repr(text) if text and "\ufffd" not in text else f"<{token}>"


def draw_tree(step: Step, decode: Decode, strokes: Strokes = BOXES) -> list[Line]:
    """One step as a tree: every verified node's token and survival, the accepted path ticked, then the target's token.

    >>> from hedgerow.core.parts import Feats, Step, Verdict
    >>> from hedgerow.core.tree import TokenTree
    >>> tree = TokenTree.of(tokens=[1, 2, 3], parent=[-1, -1, 0], survival=[0.9, 0.5, 0.4])
    >>> step = Step(tree, Verdict((0,), 2, "residual"), Feats(), root=0, position=9, seconds=0.1)
    >>> print("\\n".join(line.text for line in draw_tree(step, lambda ids: "abcd"[ids[0]], ASCII)))
    'a'
    |- * 'b'     0.90
    |  `-   'd'  0.40
    `-   'c'     0.50
    > 'c' is the target's own next token
    """
    tree, path = step.tree, set(step.verdict.path)
    drawn: list[tuple[str, int]] = []

    def below(node: int, indent: str) -> None:
        children = tree.children[node + 1]
        for child in children:
            last = child == children[-1]
            tick = strokes.tick if child in path else " " * len(strokes.tick)
            name = token_text(int(tree.tokens[child]), decode)
            drawn.append((f"{indent}{strokes.last if last else strokes.fork} {tick} {name}", child))
            below(child, indent + (strokes.blank if last else strokes.down) + " ")

    below(-1, "")
    width = max((len(text) for text, _ in drawn), default=0)
    lines = [Line(token_text(step.root, decode), True)]
    for text, node in drawn:
        lines.append(Line(f"{text:<{width}}  {tree.survival[node]:.2f}", node in path))
    lines.append(Line(f"{strokes.arrow} {token_text(step.verdict.token, decode)} is the target's own next token", True))
    return lines


def tree_title(step: Step) -> str:
    """One line above a drawing."""
    tree, accepted = step.tree, len(step.verdict.path)
    return (
        f"the step that accepted most: {accepted} of {tree.nodes} draft tokens kept, so {accepted + 1} tokens from one "
        "call of the target (numbers: estimated survival)"
    )


def print_tree(step: Step | None, decode: Decode, stream: IO[str]) -> None:
    """Draw a step on a stream: in colour on a terminal, with box characters where the encoding has them."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, soft_wrap=True)
    if step is None or not step.tree.nodes:
        console.print("no tree to draw: nothing was drafted")
        return
    strokes = BOXES if unicode_ok(stream) else ASCII
    console.print(Text(tree_title(step)))
    for line in draw_tree(step, decode, strokes):
        console.print(Text(line.text, style="bold green" if line.accepted else ""))


def unicode_ok(stream: Any) -> bool:
    """Whether a stream can show box-drawing characters."""
    try:
        "└─✓…".encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def sameness(result: Result) -> str:
    """Whether a compared result is plain decoding's, in words."""
    if result.identical:
        return "yes"
    at = result.divergence
    if at is None:
        return "no"
    kind = f"a near-tie in {result.dtype}" if at["near_tie"] else f"not a near-tie in {result.dtype}"
    gap = "only one token is possible" if at["gap"] is None else f"the target's best two are {at['gap']:.3g} apart"
    return f"no, from token {at['position']} on: {gap} there, {kind}"
