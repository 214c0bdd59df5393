"""Drive the policies of all requests together, so that a drafter sees one call per round for the whole batch."""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.core.errors import InvariantError
from hedgerow.core.parts import Ask, Children, Drafter, Frontier, Grow, Plan, Policy, Received, View
from hedgerow.core.tree import TokenTree


def lockstep(
    policy: Policy, drafters: Sequence[Drafter], views: Sequence[View], plans: Sequence[Plan]
) -> list[TokenTree]:
    """Grow every request's tree; a plan of 0 nodes gives the empty tree without asking anybody.

    Each round collects the frontiers that name a source, asks that drafter once, appends the answers to the requests'
    `growth`, and resumes their policies.

    Raises: InvariantError if a frontier breaks what its policy declares, an answer its frontier, or a tree its plan.
    """
    trees = [TokenTree.empty()] * len(views)
    open_: dict[int, tuple[Grow, Frontier]] = {}

    def resume(i: int, grow: Grow, answer: Received | None) -> None:
        try:
            frontier = grow.send(answer)  # type: ignore[arg-type]
        except StopIteration as done:
            open_.pop(i, None)
            trees[i] = done.value
            _check_tree(trees[i], plans[i])
            return
        _check_frontier(frontier, policy, len(drafters), len(views[i].growth))
        open_[i] = (grow, frontier)

    for i, (view, plan) in enumerate(zip(views, plans, strict=True)):
        if plan.nodes > 0:
            resume(i, policy.grow(view, plan), None)
    while open_:
        for source, drafter in enumerate(drafters):
            asked = [(i, grow, f) for i, (grow, f) in open_.items() if f.source == source]
            if not asked:
                continue
            answers = drafter.children([Ask(views[i].slot, f, views[i]) for i, _, f in asked])
            _check_answers(answers, [f for _, _, f in asked])
            parts = answers.split(len(f.nodes) for _, _, f in asked)
            for (i, grow, f), part in zip(asked, parts, strict=True):
                ids = views[i].growth.add(
                    f.nodes, part.count, part.token, part.log_q, part.origin, part.mult, f.source, f.selection
                )
                resume(i, grow, Received(part, ids))
    return trees


def _check_frontier(frontier: Frontier, policy: Policy, sources: int, known: int) -> None:
    if not 0 <= frontier.source < sources:
        raise InvariantError(f"the policy asks source {frontier.source}, but the recipe has {sources} drafters")
    if frontier.selection not in policy.selections:
        raise InvariantError(
            f"the policy asks for selection {frontier.selection.label}, which it does not declare; declared: "
            f"{', '.join(sorted(s.label for s in policy.selections))}"
        )
    if len(frontier.nodes) != len(frontier.counts) or not all(-1 <= v < known for v in frontier.nodes):
        raise InvariantError(
            f"a frontier has nodes {list(frontier.nodes)} and counts {list(frontier.counts)}; a count each is allowed, "
            f"and nodes from -1 to {known - 1}"
        )


def _check_answers(answers: Children, frontiers: Sequence[Frontier]) -> None:
    asked = [c for f in frontiers for c in f.counts]
    if len(answers.count) != len(asked) or any(not 0 <= n <= c for n, c in zip(answers.count, asked, strict=False)):
        raise InvariantError(
            f"a drafter answered {len(asked)} frontier nodes, which asked for {asked} children, "
            f"with counts {list(answers.count)}"
        )
    total = sum(answers.count)
    per_child = (answers.token, answers.log_q, answers.origin, answers.mult)
    if any(a is not None and len(a) != total for a in per_child):
        raise InvariantError(
            f"a drafter's answer counts {total} children, but its arrays have lengths "
            f"{[len(a) for a in per_child if a is not None]}"
        )


def _check_tree(tree: TokenTree, plan: Plan) -> None:
    if not isinstance(tree, TokenTree):
        raise InvariantError(f"the policy returned {tree!r}; a TokenTree is due, and TokenTree.empty() is one")
    n = tree.nodes                        # no tree is deeper or wider than its nodes: mostly nothing need be counted
    if n > plan.nodes or (n > plan.depth < tree.max_depth) or (n > plan.width < tree.width):
        raise InvariantError(
            f"the policy returned {tree.nodes} nodes of depth {tree.max_depth} and width {tree.width}; "
            f"its plan allows {plan.nodes} of depth {plan.depth} and width {plan.width}"
        )
