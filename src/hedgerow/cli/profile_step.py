"""`hedgerow profile-step`: where a step's seconds go, next to the ceilings of this machine."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import typer

from hedgerow.cli import options as o
from hedgerow.cli.render import table


def profile_step(
    model: o.Model = "demo",
    recipe: o.RecipeName = "auto",
    nodes: o.Nodes = "auto",
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="New tokens of each text that is timed.")] = 128,
    quant: o.Quant = "none",
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    no_compile: o.NoCompile = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    debug: o.Debug = False,
) -> None:
    """Time the parts of a decode step: products, attention, head, drafting, rule, host; and say how far each is from
    what this machine could do."""
    from hedgerow.bench.steps import profile

    o.check_numbers(nodes, max_tokens, 0, threads, None)
    session = o.open_session(
        model, recipe, None, nodes, quant, dtype, device, threads, no_compile, o.say(False)
    )
    found = profile(session, max_tokens)
    print(jsonlib.dumps(found) if json else "\n".join(lines(found)))


def lines(found: dict[str, Any]) -> list[str]:
    """What the profile says to people."""
    step, work, top = found["step_s"], found["work"] or {}, found["ceilings"]
    rows = []
    for name, spent in found["parts_s"].items():
        own = work.get(name)
        floor = None
        if own:                           # what int8 products could do is not measured
            floor = max(own["bytes"] / top["read_bytes_s"], found["bf16"] * own["flop"] / top["bf16_flop_s"])
        rows.append([
            name, f"{spent * 1e3:.2f}", f"{spent / step:.1%}",
            f"{own['bytes'] / 1e6:.1f}" if own else "-", f"{own['flop'] / 1e9:.2f}" if own else "-",
            f"{own['bytes'] / spent / 1e9:.1f}" if own else "-", f"{own['flop'] / spent / 1e9:.0f}" if own else "-",
            f"{spent / floor:.1f}" if floor else "-",
        ])
    out = [
        f"{found['model']}, {found['backend']}, recipe {found['recipe']}, {found['threads']} threads: a step of "
        f"{found['rows']:.1f} rows at context {found['context']:.0f} takes {step * 1e3:.2f} ms", "",
        *table(["part", "ms", "share", "MB", "GFLOP", "GB/s", "GFLOP/s", "x ceiling"], rows), "",
        f"parts sum to {found['sum_to_wall']:.1%} of the step; ceilings measured now: reading "
        f"{top['read_bytes_s'] / 1e9:.1f} GB/s, bf16 products {top['bf16_flop_s'] / 1e9:.0f} GFLOP/s",
    ]
    return out + ([found["why_no_parts"]] if found["why_no_parts"] else [])
