"""What `bench.stream` measured, as Markdown."""

from __future__ import annotations

from typing import Any


def stream_tables(result: dict[str, Any]) -> str:
    """The summary as Markdown."""
    setup, found = result["setup"], dict(result["summary"])
    rss = found.pop("memory")
    lines = [
        f"Model `{setup['model']}`, bf16 products, every weight read from disk through {setup['window_mb']} MB, past "
        f"the page cache; medians of {setup['repetitions']} turns, lowest and highest in brackets.",
        "",
        f"| weights on disk | disk alone, MB/s | T(1 row), s | T({setup['rows']} rows), s | ratio | of it waiting for "
        "the disk, 1 row / wide |",
        "|---|---|---|---|---|---|",
    ]
    for variant, parts in found.items():
        s = parts["steps"]
        shares = [f"{s[f'{k}_waited_s']['median'] / s[f'{k}_s']['median']:.0%}" for k in ("plain", "wide")]
        lines.append(
            f"| {_name(variant)} | {_cell(s['disk_mb_s'], 0)} | {_cell(s['plain_s'], 3)} | {_cell(s['wide_s'], 3)} | "
            f"{_cell(s['ratio'], 2)} | {' / '.join(shares)} |"
        )
    lines += [
        "",
        f"A tree of {setup['nodes']} nodes (SpecExec's search, oracle of quality {setup['quality']:g}) against plain "
        f"decoding, both streamed, {setup['max_tokens']} greedy tokens (half of them where reads are held back):",
        "",
        "| weights on disk | τ | T(tree step), s | T(plain step), s | drafting a step, s | plain, tok/s "
        "| tree, tok/s | speed-up | same text |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for variant, parts in found.items():
        t = parts["text"]
        lines.append(
            f"| {_name(variant)} | {_cell(t['tokens_per_step'], 1)} | {_cell(t['verify_s'], 3)} | "
            f"{_cell(t['plain_step_s'], 3)} | {_cell(t['draft_s'], 3)} | {_cell(t['plain_tok_s'], 2)} | "
            f"{_cell(t['tree_tok_s'], 1)} | {_cell(t['speedup'], 1)} | {'always' if t['identical'] else 'no'} |"
        )
    lines += ["", (
        f"Peak memory of `hedgerow generate -r plain`: {rss['streamed_bytes'] / 1e6:.0f} MB streamed, "
        f"{rss['loaded_bytes'] / 1e6:.0f} MB loaded, {rss['libraries_bytes'] / 1e6:.0f} MB for the libraries alone."
    )]
    return "\n".join(lines)


def _name(variant: str) -> str:
    files, _, limit = variant.partition("@")
    return f"{files}, reads held to {limit} MB/s" if limit else f"{files}, as fast as the disk is"


def _cell(x: dict[str, float], digits: int) -> str:
    return f"{x['median']:.{digits}f} ({x['low']:.{digits}f}–{x['high']:.{digits}f})"
