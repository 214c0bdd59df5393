"""Rules about the source that a reader may rely on, checked on its text and syntax trees."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, ROOT, code_lines, files, name, parse, public

CEILING = 300
LONGER = {  # file: (ceiling, why)
    "core/parts.py": (470, "every seam in one file is its purpose"),
    "core/tree.py": (360, "the tree and its growth belong together"),
}
ENVIRONMENT = {  # who may look at the environment, and for what
    "models/weights.py": "where the cache lies",
    "cli/main.py": "log level",
}
PRINTS = ("cli", "bench")
TENSOR_SEAMS = {  # what models hand to kernels; core/parts.py knows no tensors
    "KVStore": "systems/kv.py", "Attention": "systems/attends.py", "Recorder": "systems/recorders.py",
}


@pytest.mark.parametrize("path", files(), ids=name)
def test_no_file_is_over_its_ceiling(path: Path) -> None:
    recipe = name(path).startswith("recipes/") and path.name != "__init__.py"
    ceiling, _ = LONGER.get(name(path), (60 if recipe else CEILING, ""))
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= ceiling, f"{name(path)} has {lines} lines, its ceiling is {ceiling}: a design question"


def test_no_exception_outlives_its_file() -> None:
    missing = [n for n in (*LONGER, *ENVIRONMENT) if not (PACKAGE / n).exists()]
    assert not missing


def test_the_loop_fits_in_a_head() -> None:
    loop = PACKAGE / "engine" / "loop.py"
    assert code_lines(loop) <= 200
    steps = [node for dotted, node in public(parse(loop)) if dotted.split(".")[-1] == "step"]
    assert len(steps) == 1, "engine/loop.py has one function `step`"
    assert code_lines(loop, steps[0]) <= 40


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Every call in a file, with the called name as written."""
    return [(ast.unparse(node.func), node) for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]


def test_only_two_places_read_the_environment() -> None:
    users = {
        name(path)
        for path in files()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv", "os.putenv")
    }
    assert users <= set(ENVIRONMENT)


def test_only_the_command_line_and_the_benchmarks_print() -> None:
    for path in files():
        if name(path).split("/")[0] not in PRINTS:
            assert "print" not in [called for called, _ in calls(path)], name(path)


def test_no_pickles_and_no_foreign_code() -> None:
    for path in files():
        imported = {
            alias.name.split(".")[0]
            for node in ast.walk(parse(path)) if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in (node.names if isinstance(node, ast.Import) else [ast.alias(node.module or "")])
        }
        assert not imported & {"pickle", "dill", "cloudpickle", "joblib", "shelve"}, name(path)
        for called, call in calls(path):
            given = {k.arg: ast.unparse(k.value) for k in call.keywords}
            assert given.get("trust_remote_code", "False") == "False", f"{name(path)}:{call.lineno}"
            if called == "torch.load":
                assert given.get("weights_only") == "True", f"{name(path)}:{call.lineno}"
            assert called not in ("eval", "exec", "torch.save"), f"{name(path)}:{call.lineno} calls {called}"


def test_every_seam_stands_in_one_file() -> None:
    """A protocol that does not stand in core/parts.py (or is core.rng's Source) is one folder's own affair."""
    nodes = [(path, node) for path in files() for node in ast.walk(parse(path))]
    home = {
        (f"hedgerow.{name(path).removesuffix('.py').replace('/', '.')}", node.name): name(path)
        for path, node in nodes
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
    }
    core = [cls for (_, cls), file in home.items() if file.startswith("core/")]
    seams = [cls for (_, cls), file in home.items() if file in ("core/parts.py", "core/rng.py")]
    assert sorted(core) == sorted(seams) and {"Policy", "Drafter", "Target", "Rule", "Controller"} <= set(seams)
    for path, node in nodes:
        for alias in node.names if isinstance(node, ast.ImportFrom) else []:
            file = home.get((node.module or "", alias.name), "core/parts.py")
            if TENSOR_SEAMS.get(alias.name) == file:
                continue
            assert file.split("/")[0] in ("core", name(path).split("/")[0]), (
                f"{name(path)} uses {alias.name} of {file}: a seam between folders stands in core/parts.py"
            )


@pytest.mark.parametrize("path", files(), ids=name)
def test_what_is_public_says_what_it_is(path: Path) -> None:
    tree = parse(path)
    silent = [dotted for dotted, node in public(tree) if not ast.get_docstring(node)]
    if name(path) != "core/__init__.py" and tree.body:
        assert ast.get_docstring(tree), f"{name(path)} has no docstring"
    assert not silent, f"{name(path)}: no docstring on {', '.join(silent)}"


def test_no_method_is_asked_for_by_name() -> None:
    """Law 4: a method is a recipe; nothing below the recipes compares a recipe's or drafter's name."""
    method = re.compile(r"\b(recipe|method|drafter|policy|rule)(\.name|_name)?$")
    for folder in ("core", "topology", "policy", "draft", "verify", "target", "systems", "control", "engine"):
        for path in files(folder):
            for node in (n for n in ast.walk(parse(path)) if isinstance(n, ast.Compare)):
                if isinstance(getattr(node.comparators[0], "value", None), str):
                    assert not method.search(ast.unparse(node.left)), f"{name(path)}:{node.lineno}"


def tracked() -> list[Path]:
    """Text files of the repository: what git knows or would add; every file outside hidden folders without git."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    hidden = re.compile(r"(^|/)\.")
    return [p for p in ROOT.rglob("*") if p.is_file() and not hidden.search(p.relative_to(ROOT).as_posix())]


def test_the_repository_names_no_machine() -> None:
    """No home folder, no path of the machine it was written on, no package index."""
    homes = "|".join(f"/{folder}/" for folder in ("wo" + "rk", "ro" + "ot", "fa" + "rm", "ho" + "me/[a-z]"))
    hosts = "|".join(
        first + r"\." + last for first, last in (
            ("pypi", "org"), ("pythonhosted", "org"), ("registry", "npmjs"), ("deb", "debian"), ("download", "pytorch")
        )
    )
    found = []
    for path in tracked():
        if path.suffix in (".gz", ".png", ".pdf"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if re.search(rf"(?<![\w.])({homes})|{hosts}", line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found
