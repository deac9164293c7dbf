# Two commands do the work on a fresh machine with Python 3.11 or newer: `make run` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
SUPPLY := .venv-supply
OLDEST := .venv-oldest
PYTHONS ?= 3.11 3.12 3.13
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
# Nothing is installed whose hash is not in requirements/. Python compiles what it imports, a tenth of what is installed.
LOCKED := $(PIP) --no-build-isolation --require-hashes --no-compile
# Many containers export this. Every start would then compile torch and Lightning again: `explain` took 27 s in place of 9 s.
unexport PYTHONDONTWRITEBYTECODE
# Workers for pytest; tiny models want one thread each. Three on two cores were slower when it was tried (595 s, 569 s).
WORKERS ?= 2
# What old versions of libraries break first. Left out: style, pages, reports, pictures, exported and imported weights.
CORE ?= tests/components tests/config tests/engine tests/evaluate tests/generate tests/ops tests/runs tests/sweep

.PHONY: run test suite test-all test-gpu test-oldest test-pythons battery schedulers lint style types format bench docs \
	lock audit clean

run: $(VENV)/run.done  ## ask the first question: sixteen runs, a verdict, a page
	$(BIN)/blockyard sweep quickstart

# Without its cache mypy takes a minute or more of one core, so it runs beside the tests; make fails if either fails.
test: $(VENV)/dev.done style  ## style, types, spelling, the default suite
	$(MAKE) --no-print-directory --jobs 2 types suite

suite: $(VENV)/dev.done
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --durations 20

test-all: $(VENV)/dev.done lint  ## also every legal triple of choices and the long runs
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not battery and not schedulers"

test-gpu: $(VENV)/dev.done  ## what needs a GPU: losses and gradients against the CPU, training, FlexAttention
	$(BIN)/python -m pytest -n $(WORKERS) -v --tb=short -m "gpu and not full" tests

battery: $(VENV)/dev.done  ## every case of the batteries of kills, damage and hostile input; hours
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not schedulers" --whole-battery tests/battery

schedulers: $(VENV)/dev.done  ## real SLURM, Ray, torchrun and W&B's protocol on this machine; installs Debian's packages
	$(BIN)/python -m pytest -m schedulers tests

lint: style types  ## style, types, spelling

style: $(VENV)/dev.done
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/codespell

types: $(VENV)/dev.done
	$(BIN)/mypy

format: $(VENV)/dev.done  ## mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev.done  ## training, decoding, large vocabularies, token shards and start-up against references
	$(BIN)/python benchmarks/startup.py --rounds 3
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/vocabulary.py --rounds 3
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/data.py tokens --rounds 3

docs: $(VENV)/dev.done  ## the documentation's site: site/index.html
	$(BIN)/python tools/verdicts.py
	$(BIN)/python tools/walks.py --write
	$(BIN)/python tools/outputs.py docs/runs.md
	$(BIN)/python tools/screenshots.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lock: $(SUPPLY)/done  ## exact versions and hashes of what pyproject.toml requires; UPGRADE=--upgrade for newer ones
	$(SUPPLY)/bin/python tools/lock.py $(UPGRADE)

audit: $(VENV)/dev.done $(SUPPLY)/done  ## dist/sbom.json, and known vulnerabilities; the latter needs the internet
	$(SUPPLY)/bin/python tools/audit.py $(BIN)/python

test-oldest: $(VENV)/bin/python $(SUPPLY)/done  ## the core of the suite with the least versions that pyproject.toml admits
	$(SUPPLY)/bin/python tools/environment.py $(OLDEST) $(PYTHON) --lowest
	$(OLDEST)/bin/python -m pytest -n $(WORKERS) --dist loadgroup $(CORE)

test-pythons: $(PYTHONS:%=test-python-%)  ## the core of the suite on each of PYTHONS, with the newest versions of everything

test-python-%: $(SUPPLY)/done
	$(SUPPLY)/bin/python tools/environment.py .venv-$* $*
	.venv-$*/bin/python -m pytest -n $(WORKERS) --dist loadgroup $(CORE)

clean:
	rm -rf $(VENV) $(VENV)-* build dist site .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "blockyard needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

# The checkout itself has no hash, so it is installed alone, after everything that it requires.
$(VENV)/run.done: pyproject.toml requirements/build.lock requirements/run.lock | $(VENV)/bin/python
	$(LOCKED) --requirement requirements/build.lock
	$(LOCKED) --requirement requirements/run.lock
	$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/dev.done: requirements/dev.lock $(VENV)/run.done
	$(LOCKED) --requirement requirements/dev.lock
	@touch $@

$(SUPPLY)/done: requirements/supply.lock
	$(PYTHON) -m venv $(SUPPLY)
	$(SUPPLY)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement $<
	@touch $@
