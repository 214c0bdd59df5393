"""What loading parts of the package costs: the light ones stay light. Who may import whom is import-linter's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture.source import files, name

HEAVY = ("torch", "transformers", "scipy")
TORCH_FREE = ("core", "topology", "policy", "cost", "control")


def loaded(code: str) -> set[str]:
    """Heavy packages a fresh interpreter has loaded after running `code`."""
    script = f"{code}\nimport sys\nprint('loaded', *(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stderr.strip().splitlines()[-1].split()[1:])


def test_importing_hedgerow_is_light() -> None:
    assert loaded("import hedgerow; hedgerow.__version__") == set()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["generate", "--help"], ["recipes", "--help"]])
def test_help_is_light(words: list[str]) -> None:
    code = (
        f"import sys\nsys.argv = ['hedgerow', *{words}]\nfrom hedgerow.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code"
    )
    assert loaded(code) == set()


def test_listing_the_recipes_imports_none_of_them() -> None:
    code = (
        "from hedgerow import recipes; assert recipes.names()\n"
        "import sys; assert not [m for m in sys.modules if m.startswith('hedgerow.recipes.')]"
    )
    assert loaded(code) == set()


@pytest.mark.parametrize("folder", TORCH_FREE)
def test_the_pure_packages_load_no_torch(folder: str) -> None:
    modules = [name(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__") for path in files(folder)]
    assert modules, f"{folder} has no module"
    assert loaded("\n".join(f"import hedgerow.{module}" for module in modules)) <= {"scipy"}
