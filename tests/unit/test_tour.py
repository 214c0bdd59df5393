"""docs/tour.md runs, and prints what stands there. `python tests/unit/test_tour.py` writes the real output into it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tour.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def outputs(text: str) -> list[tuple[str, str]]:
    """For each python block what it should print (the text block that follows it, if one does) and what it prints."""
    found = BLOCK.findall(text)
    scope: dict[str, object] = {}
    out = []
    for i, (kind, code) in enumerate(found):
        if kind != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"tour.md, block {i + 1}", "exec"), scope)
        expected = found[i + 1][1] if found[i + 1 : i + 2] and found[i + 1][0] == "text" else ""
        out.append((expected, printed.getvalue()))
    return out


def rewritten(text: str) -> str:
    """The page with its real output."""
    printed = iter([got for _, got in outputs(text) if got])
    return BLOCK.sub(lambda m: f"```text\n{next(printed)}```" if m[1] == "text" else m[0], text)


def test_the_tour_prints_what_it_says() -> None:
    found = outputs(PAGE.read_text(encoding="utf-8"))
    assert len(found) >= 10
    for expected, printed in found:
        assert printed == expected


def test_the_tour_is_readable() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert max(len(line) for line in text.splitlines()) <= 150
    assert all(line == line.rstrip() for line in text.splitlines())


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
