"""The measured GPU checks as Markdown."""

from __future__ import annotations

from typing import Any


def gpu_tables(result: dict[str, Any]) -> str:
    """What held, the steps of each shape, the host's part and the compared texts."""
    out = [f"{result['device']}, {result['spent_s']:.0f} s{'' if result['complete'] else '; not to its end'}.", ""]
    out += [f"* {'yes' if holds else '**no**'}: {what}" for what, holds in result.get("verdicts", {}).items()]
    for name, part in result.items():
        if name.startswith("steps "):
            out += ["", *_steps(name.removeprefix("steps "), part)]
    if speed := result.get("read_bytes_s"):
        out += ["", f"A buffer is read at {speed / 1e9:.0f} GB/s."]
    if hosts := result.get("host"):
        out += ["", "Host time of a recorded step with nothing to wait for, ms:", "", "| batch | rows | median |"]
        out += ["|---|---|---|", *(f"| {h['batch']} | {h['rows']} | {_ms(h, 'host_s')} |" for h in hosts)]
    if same := result.get("identity"):
        out += ["", _identity(same)]
    return "\n".join(out)


def _steps(name: str, part: dict[str, Any]) -> list[str]:
    shown = f"`{name}`, {part['layers']} of {part['of_layers']} layers"
    if "left_out" in part:
        return [f"{shown}: {part['left_out']}."]
    out = [
        f"{shown}, {part['weights_bytes'] / 1e9:.1f} GB of random bf16 weights. Whole steps in ms, medians, lowest and "
        "highest in brackets. *Apart*: recorded logits from eager ones, in units of their spread.", "",
        "| rows | batch | context | keys | eager | recorded | host | apart |", "|---" * 8 + "|",
    ]
    for c in part["cells"]:
        if "left_out" in c:
            out.append(f"| | {c['batch']} | {c['context']} | {c['kv']} | does not fit: {c['left_out']} | | | |")
            continue
        out.append(
            f"| {c['rows']} | {c['batch']} | {c['context']} | {c['kv']} | {_ms(c['eager'], 'step_s')} "
            f"| {_ms(c['recorded'], 'step_s')} | {1e3 * c['recorded']['host_s']:.2f} | {c['apart']:.3f} |"
        )
    return out


def _identity(same: dict[str, Any]) -> str:
    if "left_out" in same:
        return f"Texts were not compared: {same['left_out']}."
    ties = sum(d is None or d["near_tie"] for d in same["apart"])
    return (
        f"Plain and tree text of `{same['model']}` ({same['backend']}): {same['prompts']} prompts of up to "
        f"{same['max_tokens']} tokens, {len(same['apart'])} apart, {ties} of them at a near-tie."
    )


def _ms(cell: dict[str, Any], name: str) -> str:
    return f"{1e3 * cell[name]:.2f} ({1e3 * cell[f'{name}_low']:.2f}–{1e3 * cell[f'{name}_high']:.2f})"
