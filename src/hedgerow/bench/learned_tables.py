"""What `bench.terms` and `bench.temperature` measured, as Markdown tables."""

from __future__ import annotations

from typing import Any


def terms_table(result: dict[str, Any]) -> str:
    """τ and what it costs, by tree size and family of prompts."""
    setup = result["setup"]
    out = [
        f"Recipe `{setup['recipe']}` on `{setup['model']}` ({setup['quant'] if setup['quant'] != 'none' else 'bf16'}), "
        f"drafter {setup['drafter']}, greedy, {setup['max_tokens']} new tokens, plain decoding and all sizes taking "
        f"turns; trees are {'verified whole' if setup['whole'] else 'cut to what pays'}. Costs are in plain steps; "
        "*calls* are passes of the learned drafter a step; speed-ups are medians over prompts, lowest and highest in "
        "brackets.", "",
        "| prompts | nodes allowed | verified | τ | T(rows) / T(plain) | calls | drafting | other host | speed-up "
        "| same text |",
        "|---" * 10 + "|",
    ]
    for t in result["summary"]:
        speed = f"{t['speedup_median']:.2f} ({t['speedup_min']:.2f}–{t['speedup_max']:.2f})"
        out.append(
            f"| {t['family']} | {t['nodes']} | {t['drafted']:.1f} | {t['tokens_per_step']:.2f} | {t['verify']:.2f} | "
            f"{t['calls']:.2f} | {t['draft']:.2f} | {t['host']:.2f} | {speed} | {t['identical']}/{t['prompts']} |"
        )
    return "\n".join(out)


def temperature_table(result: dict[str, Any]) -> str:
    """τ and speed of every way to choose and judge nodes, by temperature."""
    setup = result["setup"]
    out = [
        f"{setup['nodes']} nodes in one fixed shape of depth {setup['depth']}, one drafter, {setup['max_tokens']} new "
        f"tokens, target in {setup['quant'] if setup['quant'] != 'none' else 'bf16'}; plain decoding takes turns with "
        "each. Match rules say what plain decoding says at the same seed; the others follow the same law.", "",
        "| T | selection, rule | prompts | τ | accepted | speed-up | drafting, share of time | same text |",
        "|---" * 8 + "|",
    ]
    for t in result["summary"]:
        same = "by law only" if t["identical_to_plain"] is None else f"{t['identical_to_plain']}/{t['prompts']}"
        out.append(
            f"| {t['temperature']:g} | {t['variant']} | {t['prompts']} | {t['tokens_per_step']:.2f} | "
            f"{100 * t['acceptance_rate']:.0f} % | {t['speedup_median']:.2f} ({t['speedup_min']:.2f}–"
            f"{t['speedup_max']:.2f}) | {100 * t['draft_share']:.0f} % | {same} |"
        )
    return "\n".join(out)
