"""What `bench.attention` measured, as Markdown."""

from __future__ import annotations

from typing import Any


def attention_table(result: dict[str, Any]) -> str:
    """Masks and shared keys on torch's operators, then shared keys in compiled layers."""
    m = result["model"]
    lines = [
        f"Attention of a step in ms on torch's operators, {m['layers']} layers, {m['fold']} query heads on each of "
        f"{m['kv_heads']} key heads of {m['dim']}, {result['threads']} threads: medians of {result['repetitions']}, "
        "variants in turns, lowest and highest in brackets; ratios to the whole mask. *Whole mask*: all rows × all "
        "keys. *Short mask*: none for whole blocks of committed keys. *Read once*: also, blocks that several requests "
        "have in common.",
        "",
        "| requests × rows | tokens shared + own | whole mask | short mask | ratio | read once | ratio | same bits |",
        "|---" * 8 + "|",
    ]
    for c in result["torch"]:
        cells = [_size(c), _context(c), _ms(c["seconds"]["whole mask"])]
        for name in ("short mask", "read once"):
            found = c["seconds"].get(name)
            cells += ["–", "–"] if found is None else [_ms(found), f"{c['ratio'][name]['median']:.2f}"]
        lines.append(f"| {' | '.join(cells)} | {_same(c)} |")
    if result["compiled"]:
        lines += [
            "", f"Whole steps in ms and the attention in them, {result['backend']}, shared keys read by each request "
            "and once for all:", "",
            "| requests × rows | tokens shared + own | step, by each | once | ratio | attention, by each | once "
            "| ratio | same bits |",
            "|---" * 9 + "|",
        ]
    for c in result["compiled"]:
        cells = [_size(c), _context(c)]
        for part, ratio in (("seconds", "ratio"), ("attention", "attention_ratio")):
            cells += [_ms(c[part]["by each"]), _ms(c[part]["once"]), f"{c[ratio]['median']:.2f}"]
        lines.append(f"| {' | '.join(cells)} | {_same(c)} |")
    return "\n".join(lines)


def _size(c: dict[str, Any]) -> str:
    return f"{c['requests']} × {c['rows']}"


def _context(c: dict[str, Any]) -> str:
    return f"{c['context']} + {c['tail']}" if c["tail"] else str(c["context"])


def _same(c: dict[str, Any]) -> str:
    return "yes" if c["same_bits"] else "NO"


def _ms(s: dict[str, float]) -> str:
    return f"{1e3 * s['median']:.1f} ({1e3 * s['least']:.1f}–{1e3 * s['most']:.1f})"
