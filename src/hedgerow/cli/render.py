"""What people read after a generation: lines of statistics, aligned tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hedgerow.api import Result


def stats(result: Result, traced: bool = False) -> list[str]:
    """The lines after a generation: speed, tokens per step, and whether speculation was active and why not."""
    decode_s = result.seconds["total"] - result.seconds["prefill"]
    speed = f"{result.tok_s:.1f} tok/s" if result.tok_s is not None else "- tok/s"
    tau = f"{result.tokens_per_step:.2f}" if result.tokens_per_step is not None else "-"
    lines = [
        f"{result.completion_tokens} tokens ({result.finish_reason})   {speed}   {tau} tokens per step   "
        f"{result.steps} steps in {decode_s:.2f} s   prompt {result.prompt_tokens} tokens in "
        f"{result.seconds['prefill']:.2f} s" + ("   (traced, which is slow)" if traced else "")
    ]
    share = ", ".join(f"{v:.0%} {k}" for k, v in reversed(result.speculation["share"].items()) if v)
    exact = "exact" if result.exact else "lossy"
    if result.speculation["active"]:
        histogram = " ".join(f"{k}:{n}" for k, n in enumerate(result.histogram))
        lines.append(
            f"speculation active: recipe {result.recipe} ({exact}), up to {result.nodes} nodes; {share}; "
            f"accepted {result.accepted} of {result.drafted} drafted; steps by tokens accepted {histogram}"
        )
    else:
        lines.append(f"speculation not active: {result.speculation['reason']} (recipe {result.recipe})")
    return lines


def comparison(result: Result) -> list[str]:
    """The lines about plain decoding on the same target."""
    if result.plain is None:
        return []
    from hedgerow.bench.drawing import sameness

    plain, ratio = result.plain["tok_s"], result.speedup
    lines = [
        f"plain decoding {plain:.1f} tok/s, this {result.tok_s:.1f} tok/s: {ratio:.2f} times as fast"
        if plain and result.tok_s and ratio else "too few tokens to compare speeds"
    ]
    return [*lines, f"same tokens as plain decoding: {sameness(result)}"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, two blanks apart; the last one runs free.

    >>> table(["a", "b"], [["xx", "y"]])
    ['a   b', 'xx  y']
    """
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in [header, *rows]]
