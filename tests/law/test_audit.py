"""docs/audit.md says what is so: its code runs, and the figures of its tables are measured here."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from hedgerow.core.shape import TreeShape
from hedgerow.policy.fixed import Fixed
from hedgerow.testing.law import Report, Request, step_law
from hedgerow.verify.joint import Traversal
from hedgerow.verify.rejection import Rejection
from tests.law.cases import IID, WITHOUT, P, Q, cut_to, levels, scanning
from tests.law.wrong import PortOfBlock, PortOfTraversal

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
PAIRS = TreeShape.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)])


def test_the_code_on_the_page_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 4
    scope: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"audit.md, block {number}", "exec", dont_inherit=True), scope)


def row(words: str) -> list[float]:
    """The figures of the page's table row that contains these words."""
    found = [line for line in PAGE.splitlines() if line.startswith("|") and words in line]
    assert len(found) == 1, words
    return [float(x) for x in re.findall(r"(?<=\| )\d\.\d{3}(?= \|)", found[0])]


@pytest.mark.parametrize("words, report", [
    ("*deepest* leaf", step_law(PortOfTraversal(deepest=True), levels(2, 2))),
    ("min(1, S /", step_law(PortOfTraversal(ratio=True), levels(2, 2))),
    ("last sibling first", step_law(PortOfTraversal(last_first=True), levels(2, 2))),
    ("token-wise acceptance test", step_law(PortOfBlock(), levels(1, 1))),
    ("stopping at the first failure", step_law(PortOfBlock(stops_early=True), levels(1, 1))),
], ids=lambda x: x if isinstance(x, str) else "")
def test_figures_of_ports(words: str, report: Report) -> None:
    assert np.allclose(row(words), [report.tv, report.accepted[0]], atol=5e-4)


def test_figures_of_admission() -> None:
    request = Request(Fixed(PAIRS, WITHOUT, order="path"), P, Q)
    scan = step_law(Rejection(), request, controller=scanning(Q, 0.25))
    assert np.isclose(row("stops before the first drawn node")[0], scan.tv, atol=6e-4)
    merged = step_law(Rejection(), Request(Fixed(PAIRS, IID, order="path"), P, Q), controller=cut_to(1))
    assert np.isclose(row("cut to a number of nodes")[0], merged.tv, atol=5e-4)
    assert f"right: {step_law(Traversal(), levels(2, 2)).accepted[0]:.3f}" in PAGE
