"""What `bench.terms`, `temperature`, `drafters`, `exported` and `train compare` measured, as Markdown tables."""

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
        out.append(f"| {t['family']} | {t['nodes']} | {t['drafted']:.1f} | {_costs(t)} |")
    return "\n".join(out)


def _costs(t: dict[str, Any]) -> str:
    """The cells that every summary of `bench.terms` ends with, τ first."""
    calls = f"{t['calls']:.2f}" if t["calls"] else "–"
    speed = f"{t['speedup_median']:.2f} ({t['speedup_min']:.2f}–{t['speedup_max']:.2f})"
    return (
        f"{t['tokens_per_step']:.2f} | {t['verify']:.2f} | {calls} | {t['draft']:.2f} | {t['host']:.2f} | {speed} | "
        f"{t['identical']}/{t['prompts']}"
    )


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


def trainings_table(result: dict[str, Any]) -> str:
    """What the same CPU time on the same text taught each method, as validation sees it."""
    setup = result["setup"]
    begin = "a trained drafter, at 0.3 of the usual rates" if setup["goes_on"] else "the target's own tensors"
    out = [
        f"{setup['cpu_minutes']:g} minutes of one CPU thread each, on one text of `{setup['model']}`, beginning from "
        f"{begin}. τ on texts held out: of a chain, and of the best static tree of 15 nodes; accepted shares of the "
        "likeliest token by depth, given that those before were accepted.", "",
        "| variant | learned parameters | positions trained | a second | τ chain | τ tree | by depth |",
        "|---" * 7 + "|",
    ]
    first = result["rows"][0]["history"][0]
    if setup["goes_on"]:
        out.append(f"| *before* | | | | {first['chain']:.3f} | {first['tree']:.3f} | {_depths(first['by_depth'])} |")
    for row in result["rows"]:
        best = row["history"][-1] if setup["goes_on"] else max(row["history"], key=lambda h: h["tree"])
        out.append(
            f"| {row['variant']} | {row['trained_parameters'] / 1e6:.1f} M | {row['positions']:,} | "
            f"{row['positions_s']:.0f} | {best['chain']:.3f} | {best['tree']:.3f} | {_depths(best['by_depth'])} |"
        )
    return "\n".join(out)


def _depths(shares: list[float]) -> str:
    return " ".join(f"{x:.2f}" for x in shares)


def drafters_table(result: dict[str, Any]) -> str:
    """Drafters side by side: τ, what it costs, and what it brings."""
    setup = result["setup"]
    out = [
        f"Each drafter alone on `{setup['model']}` ({setup['quant'] if setup['quant'] != 'none' else 'bf16'}), "
        f"{setup['nodes']} nodes a step, all verified, greedy, {setup['max_tokens']} new tokens, in turns with plain "
        "decoding. Costs are in plain steps; *calls* are passes of a step (–: heads on the target's own pass, not "
        "counted); speed-ups are medians over prompts, lowest and highest in brackets.", "",
        "| prompts | drafter | τ | T(rows) / T(plain) | calls | drafting | other host | speed-up | same text |",
        "|---" * 9 + "|",
    ]
    for t in result["summary"]:
        out.append(f"| {t['family']} | {t['nodes']} | {_costs(t)} |")
    return "\n".join(out)


def coverage_table(result: dict[str, Any]) -> str:
    """Share of the target's tokens that a drafter cannot draft."""
    setup = result["setup"]
    out = [
        f"What `{setup['model']}` says in {setup['max_tokens']} tokens a prompt, outside the drafter's "
        f"{setup['vocabulary']:,} tokens:", "", "| prompts | | T | tokens | outside |", "|---" * 5 + "|",
    ]
    for t in result["summary"]:
        out.append(
            f"| {t['family']} | {t['prompts']} | {t['temperature']:g} | {t['tokens']:,} | {100 * t['share']:.1f} % |"
        )
    return "\n".join(out)


def exported_table(result: dict[str, Any]) -> str:
    """The same checkpoint served by vLLM and here: drafts along vLLM's texts, acceptance, and what sets them apart."""
    first = next(iter(result["dtypes"].values()))
    out = [
        f"The shipped drafter of `{first['model']}`, exported, served by vLLM {first['version']} (method eagle3) and "
        f"read back here: chains of {first['nodes']}, greedy, {first['new']} new tokens a prompt, both engines in the "
        "same dtype. *Same drafts*: our chain against the one vLLM drafted after the same committed tokens, place by "
        "place; *below*: ours asked after vLLM's own drafts, so that one difference counts once; *decided*: the same, "
        "where vLLM's logits, in its dtype, do not leave its first two tokens equal. *Accepted*: of all "
        "drafted, vLLM's by its own counters, ours by the engine on its own texts; their ratio with a 95 % interval "
        "over prompts. *On vLLM's texts*: both engines' chains judged by what vLLM wrote.", "",
        "| dtype | prompts | | chains | same drafts | below | decided | accepted, vLLM | accepted, ours | ratio "
        "| on vLLM's texts, vLLM | ours | same texts |", "|---" * 13 + "|",
    ]
    for dtype, entry in result["dtypes"].items():
        for family, t in entry["summary"].items():
            cells = [
                dtype, family, str(t["prompts"]), str(t["chains"]), _share(t["identical"]),
                _share(t["identical_below"]), _share(t["identical_decided"]), _share(t["their_acceptance"]),
                _share(t["our_acceptance"]),
                f"{t['ratio']:.3f} ({t['ratio_low']:.3f}–{t['ratio_high']:.3f})", _share(t["along_theirs"]),
                _share(t["along_ours"]), f"{t['same_texts']}/{t['prompts']}",
            ]
            out.append(f"| {' | '.join(cells)} |")
    out.append("")
    for dtype, entry in result["dtypes"].items():
        out.append(f"{dtype}: {_apart(entry['summary']['all'])}")
    return "\n".join(out)


def _apart(t: dict[str, Any]) -> str:
    """What the drafts that differ have in common, and acceptance by depth."""
    depths = "; accepted at depth 1, 2, …: " + "vLLM {}, ours {}".format(
        *(" ".join(_share(x) for x in t[who]) for who in ("their_by_depth", "our_by_depth"))
    )
    if t["again_identical"] is not None:
        depths = (
            f"; vLLM itself, asked twice for {t['again_drafts']} drafts after the same tokens (run step by step, and "
            f"at once), drafts {_share(t['again_identical'])} the same{depths}"
        )
    if not t["differences"]:
        return f"no draft differs{depths}."
    ours, theirs = t["our_lead"], t["their_lead"]
    close = "" if theirs is None else (
        f", {t['their_second']} of them our token is vLLM's second, {t['ties']} of these with exactly the logit of its "
        f"first (lead of the first there: median {theirs['median']:g}, at most {theirs['high']:g}; everywhere: median "
        f"{t['their_lead_everywhere']['median']:g})"
    )
    return (
        f"{t['differences']} of {t['drafts']} drafts differ{close}; by our logits our token leads by "
        f"{ours['median']:g} (at most {ours['high']:g}){depths}."
    )


def _share(x: float) -> str:
    return f"{100 * x:.1f} %"
