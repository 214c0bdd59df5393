"""A published method as data: the parts it composes, its citation, the check that they can be exact together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hedgerow.core.errors import RecipeError
from hedgerow.core.parts import Controller, Drafter, Policy, Rule, TargetInfo, Tokenizer
from hedgerow.core.tree import Selection


@dataclass(frozen=True)
class Built:
    """What a source may know when its drafter is made: the target and its tokenizer, a corpus, a drafter directory."""

    info: TargetInfo
    target: object | None = None          # the loaded target, for drafters that share its weights
    drafter: str | None = None            # --drafter
    corpus: Sequence[int] = ()
    tokenizer: Tokenizer | None = None


@dataclass(frozen=True)
class DraftSource:
    """One drafter of a recipe: its name in records, what kind it is, and how it is made (None: the user brings one)."""

    name: str
    kind: str                             # "retrieval", "autoregressive", "block", "heads", "none"
    make: Callable[[Built], Drafter] | None
    needs: str = ""                       # in words, for `hedgerow recipes`


@dataclass(frozen=True)
class Recipe:
    """A named composition with citation and version.

    Raises: RecipeError when the parts cannot be exact together (see `check`), naming the parts and what fits.
    """

    name: str
    version: int
    title: str
    paper: str                            # key in docs/papers.bib; "" for our own
    sources: tuple[DraftSource, ...]
    policy: Policy
    rule: Rule
    nodes: int = 15                       # verified nodes when the user sets none
    differs: str = ""                     # "differs from the paper in …"
    compared: str = ""                    # how it was compared with a reference implementation; "" = was not
    alias_of: str = ""
    offline: bool = False
    controller: Callable[..., Controller] | None = None
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self.name, self.policy, self.rule)

    @property
    def exact(self) -> bool:
        """Whether the output law is the target's."""
        return self.rule.lossless


def is_match(rule: Rule) -> bool:
    """Whether a rule only ever emits the target's own draw: it accepts any selection and needs no q."""
    return not rule.needs_q and frozenset(Selection) <= rule.accepts


def check(name: str, policy: Policy, rule: Rule, controller: Controller | None = None) -> None:
    """Refuse combinations that are not exact (law 3); a lossy rule says so itself and is not refused for it.

    A rule that reads q needs drawn children of a selection it knows, a policy that does not choose by token identity,
    and an admission that does not look ahead. Children drawn i.i.d. are merged where they repeat, so a cut by nodes
    keeps or breaks their group by what they are: they need a controller that cuts nothing.

    Raises: RecipeError in words.
    """
    if is_match(rule):
        return
    wrong = sorted(s.label for s in policy.selections - rule.accepts)
    if wrong:
        fits = ", ".join(sorted(s.label for s in rule.accepts))
        raise RecipeError(
            f"recipe {name!r}: rule {rule.name!r} judges children of selection {fits}, but the policy selects "
            f"{', '.join(wrong)}; rules that fit any selection: match"
        )
    if policy.reads_tokens and rule.lossless and any(s.drawn for s in policy.selections):
        raise RecipeError(
            f"recipe {name!r}: the policy drops or ranks drawn children by what they are, which biases rule "
            f"{rule.name!r}; use a policy that admits a slot before its token is seen, or rule 'match'"
        )
    if controller is not None and controller.looks_ahead and rule.lossless:
        raise RecipeError(
            f"recipe {name!r}: the controller decides how much to verify after it has seen the drawn tokens, which "
            f"biases rule {rule.name!r}; use a controller that fixes the total before drafting, or rule 'match'"
        )
    if controller is not None and controller.cuts and rule.lossless and Selection.IID in policy.selections:
        raise RecipeError(
            f"recipe {name!r}: the controller cuts trees, and how many nodes an i.i.d. group has depends on which "
            f"draws repeat, which biases rule {rule.name!r}; draw without_replacement, or use a controller that keeps "
            "what was drafted"
        )
