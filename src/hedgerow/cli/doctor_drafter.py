"""`hedgerow doctor --drafter DIR`: what a drafter's directory holds, whether it fits the target, whether it drafts."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hedgerow.cli.render import table
from hedgerow.core.errors import ModelError

if TYPE_CHECKING:
    from hedgerow.api import Session
    from hedgerow.draft.formats import Head
    from hedgerow.draft.formats.selftest import Sample, SelfTest

PROMPTS = (
    "Why do hedgerows matter to farmers and to birds?", "Explain step by step how to boil an egg.",
    "Write a short Python function that counts the words of a text.",
    "Tell a story about a lighthouse in three sentences.",
)
TOKENS = 56                               # written for each prompt: about 200 in all


def report(directory: str, model: str, device: str, json: bool) -> None:
    """Print what is found. Raises ModelError for a drafter that cannot be read or was made for another target."""
    found = examine(directory, model, device)
    if json:
        print(jsonlib.dumps(found))
        return
    test, card = found.pop("selftest"), found.pop("card")
    notes = found.pop("notes")
    rows = [[name, _shown(value)] for name, value in found.items() if value is not None]
    print("\n".join(table(["", ""], rows)[1:]))
    if card:
        print(f"card: {jsonlib.dumps(card)}")
    for note in notes:
        print(f"note: {note}")
    print()
    print("\n".join(_test_lines(test)))


def examine(directory: str, model: str, device: str) -> dict[str, Any]:
    """The report as plain data; `selftest.reason` says why there was none."""
    from hedgerow import api
    from hedgerow.draft.formats import facts_of, load, recognise
    from hedgerow.draft.formats.selftest import facts

    recognise(directory)                  # before a model is loaded for nothing
    session = api.load(model, recipe="plain", device=device, report=lambda text: print(text, file=sys.stderr))
    target: Any = session.target
    tokenizer: Any = session.tokenizer
    head = load(directory, target=facts_of(target.runner.net, target.info.name, tokenizer))
    return {"path": directory, "target": target.info.name, **facts(head), "selftest": _test(head, session)}


def _test(head: Head, session: Session) -> dict[str, Any]:
    """The self-test as data: acceptance by offset, warnings, suspicions."""
    from hedgerow.draft.formats.selftest import self_test, through
    from hedgerow.draft.opening import drafter_of

    none: dict[str, Any] = {"tokens": 0, "acceptance": {}, "outside": None, "warnings": [], "suspicions": []}
    try:
        drafter = drafter_of(head, session.target)
    except ModelError as e:
        return {**none, "reason": str(e)}
    found: SelfTest = self_test(head.config, _samples(head, session), through(drafter), head.ids)
    out = asdict(found)
    return {**out, "acceptance": {f"{o:+d}": round(a, 4) for o, a in found.acceptance.items()}, "reason": ""}


def _samples(head: Head, session: Session) -> list[Sample]:
    """Greedy answers of the target to a few prompts, under its chat template where it has one."""
    from hedgerow.draft.formats.selftest import sample_of, wanted_states

    tokenizer: Any = session.tokenizer
    target: Any = session.target
    raw = not tokenizer.has_chat
    needs = wanted_states(head.config, target.runner.net.layers)
    samples = []
    for prompt in PROMPTS:
        written = session.generate(prompt, raw=raw, max_tokens=TOKENS, ignore_eos=True).token_ids
        samples.append(sample_of(session.target, needs, session.request(prompt, raw=raw).prompt, written))
    return samples


def _test_lines(test: dict[str, Any]) -> list[str]:
    if test["reason"]:
        return [f"self-test: none, {test['reason']}"]
    out = [f"self-test: first guesses on {test['tokens']} tokens the target wrote"]
    for offset, share in test["acceptance"].items():
        which = "as declared" if int(offset) == 0 else f"taps {offset}"
        out.append(f"  {which:12} {share:6.1%}")
    if test["outside"]:
        out.append(f"  {test['outside']:.1%} of the tokens are not in the drafter's vocabulary")
    out += [f"warning: {w}" for w in test["warnings"]]
    if test["suspicions"]:
        out += ["hardly ever right; look at:", *(f"  {s}" for s in test["suspicions"])]
    return out


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "the last hidden state"
    return f"{value:,}" if isinstance(value, int) else str(value)
