"""Reading our own source: the files, their syntax trees and what counts as a line of code."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hedgerow"
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def files(folder: str = "") -> list[Path]:
    """Python files of the package, or of one of its folders."""
    return sorted((PACKAGE / folder).rglob("*.py"))


def name(path: Path) -> str:
    """A file as the package sees it: core/tree.py."""
    return path.relative_to(PACKAGE).as_posix()


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def code_lines(path: Path, node: ast.AST | None = None) -> int:
    """Lines of code of a file, or of one function in it: no blanks, comments or docstrings."""
    first, last = (node.lineno, node.end_lineno) if node is not None else (1, 1 << 30)
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type not in silent and first <= token.start[0] <= last:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(parse(path)))


def _docstring_lines(tree: ast.Module) -> set[int]:
    out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTION)) and ast.get_docstring(node):
            out.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return out


def public(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Public classes, functions and methods of a module, with their dotted names; not what stands inside functions."""
    todo: list[tuple[str, ast.AST]] = [("", tree)]
    while todo:
        prefix, node = todo.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, *_FUNCTION)) and not child.name.startswith("_"):
                dotted = f"{prefix}{child.name}"
                yield dotted, child
                if isinstance(child, ast.ClassDef):
                    todo.append((f"{dotted}.", child))
