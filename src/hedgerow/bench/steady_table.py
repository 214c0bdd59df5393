"""What `bench.steady` measured, as Markdown."""

from __future__ import annotations

from typing import Any


def steady_table(result: dict[str, Any]) -> str:
    """What was run, what was compiled, how memory moved, then the parts of the wall time."""
    held, wall, steps = result["memory"], result["wall_s"], result["steps"]
    loaded = ", ".join(result["libraries"])
    lines = [
        f"{steps} steps on `{result['model']}` ({result['backend']}) after {result['warm_up']} of warm-up "
        f"and {result['fill']:,} tokens of prompts, {result['requests']} requests coming and going; medians, lowest "
        "and highest in brackets.",
        "",
        "| | |",
        "|---|---|",
        f"| requests in a step | {_range(result['batch'])} |",
        f"| rows of a step | {_range(result['rows'])} |",
        f"| tokens committed by a step | {_range(result['tokens'])} |",
        f"| tokens before a row's root | {_range(result['contexts'])} |",
        f"| graphs compiled after warm-up | {result['graphs']} (before: {result['graphs_before']}) |",
        f"| libraries loaded after warm-up | {loaded or 'none'} |",
        f"| memory held, first and last tenth of the steps, MB | {_mb(held['start_bytes'])}, {_mb(held['end_bytes'])} "
        f"({_mb(held['least_bytes'])}–{_mb(held['most_bytes'])}) |",
        f"| slope of memory, KB a step | {held['slope_bytes_per_step'] / 1e3:+.1f} |",
        "",
        "| part of the wall time | ms a step | share |",
        "|---|---|---|",
    ]
    for name, spent in result["parts_s"].items():
        lines.append(f"| {name} | {1e3 * spent / steps:.2f} | {spent / wall:.1%} |")
    total = sum(result["parts_s"].values())
    return "\n".join([*lines, f"| all parts | {1e3 * total / steps:.2f} | {total / wall:.1%} |"])


def _range(found: dict[str, float]) -> str:
    return f"{found['median']:.0f} ({found['least']:.0f}–{found['most']:.0f})"


def _mb(size: float) -> str:
    return f"{size / 1e6:.0f}"
