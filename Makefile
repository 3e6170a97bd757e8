# Needs Python 3.11 or newer and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := python -m pip --disable-pip-version-check --quiet
# One thread per process: two OpenMP threads beside other work can be ten times slower than one.
ONE_THREAD := OMP_NUM_THREADS=1

# Processes that share the test files among them, 2 on two idle cores; 0: all in one. A file stays together, for its fixtures.
TEST_PROCESSES ?= 2

RUN_EXTRAS := track
DEV_EXTRAS := track,metrics,onnx,photos,serve,parquet,remote,ray,dev
DOCS_EXTRAS := $(DEV_EXTRAS),docs

# The tests that use other libraries most, run with the lowest versions that pyproject.toml allows.
LOWEST := .venv-lowest
LOWEST_TESTS := tests/backbones tests/baselines tests/data tests/metrics tests/test_estimator.py tests/test_estimator_checks.py \
  $(addprefix tests/server/test_,answering.py batching.py guard.py guide.py hostile.py running.py web.py) \
  $(addprefix tests/cli/test_,export.py help.py cli_frame.py) \
  $(addprefix tests/training/test_,checkpoints.py config.py devices.py logs.py processes.py trainer.py)

.DEFAULT_GOAL := help
.PHONY: help demo test test-lowest test-wheel test-wheel-clean lint docs bench torture mutants pictures clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 26

demo: $(VENV)/.installed-run ## learn from built-in images and write a report
	@$(BIN)/semisight demo

test: $(VENV)/.installed-dev ## run every test
	@$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile

test-lowest: $(LOWEST)/.installed ## the tests that use other libraries, with the lowest versions allowed (10 minutes)
	@$(ONE_THREAD) $(LOWEST)/bin/python -m pytest -q -p no:cacheprovider $(LOWEST_TESTS)

test-wheel: $(VENV)/.installed-dev ## build wheel and sdist, use the wheel with nothing but what it asks for
	@$(ONE_THREAD) $(BIN)/python -m pytest -q tests/test_packaging.py

test-wheel-clean: $(VENV)/.installed-dev ## the same with everything installed anew (minutes)
	@SEMISIGHT_CLEAN_INSTALL=1 $(ONE_THREAD) $(BIN)/python -m pytest -q tests/test_packaging.py

lint: $(VENV)/.installed-dev ## style, formatting, types and licences
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m semisight.licences > /dev/null

docs: $(VENV)/.installed-docs ## the documentation as a site, in site/
	@$(BIN)/python docs/arrows.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

mutants: $(VENV)/.installed-dev ## small wrong changes of the mathematics, each of which a test must notice
	@$(ONE_THREAD) $(BIN)/python -m tests.mutants --write docs/mutants.md

bench: $(VENV)/.installed-dev ## speed and memory, one JSON line per figure
	@$(BIN)/python -m benchmarks

torture: $(VENV)/.installed-dev ## kills, full disks, mutated files, slow clients: what SECURITY.md promises, a quarter of an hour
	@$(ONE_THREAD) $(BIN)/python -m benchmarks.torture --out results/torture.csv

pictures: $(VENV)/.installed-dev ## make the README's pictures anew, from the demo
	@$(BIN)/semisight demo --out semisight-demo
	@$(BIN)/python docs/pictures/make.py semisight-demo

clean: ## remove the virtual environments, caches and builds
	@rm -rf $(VENV) $(LOWEST) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	@find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/bin/python $(LOWEST)/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("semisight needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.11 ...")'
	@echo "making $(@:/bin/python=)"
	@$(PYTHON) -m venv $(@:/bin/python=)

# A stamp per set of extras, so that the demo does not wait for the developers' tools.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV) (a few minutes the first time)"
	@$(BIN)/$(PIP) install -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.installed-run: EXTRAS := $(RUN_EXTRAS)
$(VENV)/.installed-dev: EXTRAS := $(DEV_EXTRAS)
$(VENV)/.installed-docs: EXTRAS := $(DOCS_EXTRAS)
.PRECIOUS: $(VENV)/.installed-run $(VENV)/.installed-dev $(VENV)/.installed-docs

# The test client of the lowest fastapi wants httpx as it was before 0.28.
$(LOWEST)/.installed: pyproject.toml constraints.txt .ci/lowest.py | $(LOWEST)/bin/python
	@echo "installing the lowest versions into $(LOWEST) (a few minutes)"
	@$(LOWEST)/bin/python .ci/lowest.py > $(LOWEST)/constraints-lowest.txt
	@$(LOWEST)/bin/$(PIP) install -c $(LOWEST)/constraints-lowest.txt -e '.[track,metrics,onnx,serve,photos,parquet]' \
	  pytest pytest-timeout hypothesis 'httpx<0.28'
	@touch $@
