# `make demo` and `make test` need Python 3.11 or newer and make, and set up .venv themselves.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test bench fuzz mutants contract transformers e2e lint docs wheel constraints clean

help:  ## Show this list
	@sed -n 's/^\([a-z0-9]*\):.*##/\1\t/p' Makefile

demo: .venv/installed  ## Compare every framework here with the exact result
	$(BIN)/normkit check

test: .venv/installed-dev  ## Run all tests
	$(BIN)/pytest -n auto

# BENCH='--threads 2 --dtype float32' measures less
bench: .venv/installed-dev  ## Time everything beside normkit, and write docs/performance.md
	$(BIN)/normkit bench $(BENCH) --json benchmarks
	$(BIN)/python benchmarks/performance_page.py

FUZZ_SECONDS ?= 120

fuzz: .venv/installed-dev  ## Compare random inputs with the exact result, for FUZZ_SECONDS
	$(BIN)/python tests/fuzz.py $(FUZZ_SECONDS)

mutants: .venv/installed-dev  ## Plant faults and show that the tests find them
	$(BIN)/python tests/mutants.py

contract: .venv/installed-dev  ## Measure the accuracy contract and write it down
	$(BIN)/python tests/contract.py

transformers: .venv/installed-dev  ## Identify every norm class of transformers
	$(BIN)/python tests/identify_transformers.py

e2e: .venv/installed-e2e  ## Swap and fold the norms of trained models, with bars
	$(BIN)/python tests/e2e/run.py $(CASES)

lint: .venv/installed-dev  ## Check style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy normkit adapters

docs: .venv/installed-dev  ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

wheel: .venv/installed-dev  ## Build the sdist and, from it, the wheel into dist/
	rm -rf dist build
	$(BIN)/python -m build

constraints: .venv/installed-e2e  ## Write the installed versions to constraints.txt
	(sed '/^[^#]/d' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable --all | sed 's/+cpu$$//') > constraints.new
	mv constraints.new constraints.txt

clean:  ## Remove what the other targets made
	rm -rf .venv .e2e build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) --upgrade pip
	$(INSTALL) --editable '.[all]'
	touch $@

.venv/installed-dev: .venv/installed
	$(INSTALL) --group dev
	touch $@

.venv/installed-e2e: .venv/installed-dev
	$(INSTALL) --group e2e
	touch $@
