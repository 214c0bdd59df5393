# Everything a reader or contributor runs. `make` alone lists it.
# PYTHON=/path/to/python3.12  another interpreter        PIP_FLAGS="…"  passed to pip (an index, a proxy)
# PYTEST_FLAGS="-k tree -x"   passed to pytest            PYTEST_FLAGS="-n 0"   one process instead of two

VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
# two processes of one thread each: the models of the tests are tiny, and two threads only wait for each other
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist worksteal $(PYTEST_FLAGS)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all cover lint types docs docs-check gpu clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv with the `hedgerow` command (nothing to do when nothing changed)

$(STAMP): pyproject.toml requirements/ci.txt scripts/setup
	@PYTHON="$(PYTHON)" PIP_FLAGS="$(PIP_FLAGS)" sh scripts/setup $(VENV)
	@touch $@

demo: setup  ## plain decoding against a token tree, three prompts, side by side
	@$(PY) -m hedgerow.bench.demo

test: setup  ## every test but the slow ones, and the examples in docstrings
	@$(PYTEST) -m "not slow"

test-all: setup  ## every test
	@$(PYTEST)

cover: setup  ## branch coverage of core, verify, policy and topology
	@$(PYTEST) -m "not slow" --cov --cov-report=term-missing:skip-covered

lint: setup  ## ruff, and who may import whom
	@$(PY) -m ruff check .
	@$(VENV)/bin/lint-imports --no-cache

types: setup  ## mypy
	@$(PY) -m mypy

docs: setup  ## write the generated parts of README.md and docs/
	@$(PY) -m hedgerow.bench.docs

docs-check: setup  ## fail if a generated part is out of date
	@$(PY) -m hedgerow.bench.docs --check

gpu: setup  ## every check that needs a GPU, in at most 8 minutes (torch for CUDA: see README.md)
	@$(PY) -m hedgerow.bench.gpu --out docs/figures/gpu.json

clean:  ## remove .venv and caches
	rm -rf $(VENV) build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
