# Two commands do the work on a fresh machine with Python 3.11: `make run` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Workers for pytest; tiny models want one thread each. Three on two cores were slower when it was tried (595 s, 569 s).
WORKERS ?= 2

.PHONY: run test test-all lint format bench docs clean

run: $(VENV)/run.done  ## ask the first question: nine runs, a verdict, a page
	$(BIN)/blockyard sweep quickstart

test: $(VENV)/dev.done lint  ## the default suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --durations 20

test-all: $(VENV)/dev.done lint  ## also every legal triple of choices and the long runs
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m ""

lint: $(VENV)/dev.done  ## style, types, spelling
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/codespell

format: $(VENV)/dev.done  ## mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev.done  ## our training step against a bare loop
	$(BIN)/python benchmarks/overhead.py

docs: $(VENV)/dev.done  ## the documentation's site: site/index.html
	$(BIN)/python tools/components.py
	$(BIN)/python tools/verdicts.py
	$(BIN)/python tools/walks.py --write
	$(BIN)/python tools/outputs.py docs/runs.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "blockyard needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.done: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

$(VENV)/dev.done: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[dev]'
# W&B's schema of sweep files; the package's code is not run, and what it requires (an old numpy) not wanted.
	$(PIP) --no-deps sweeps
	@touch $@ $(VENV)/run.done
