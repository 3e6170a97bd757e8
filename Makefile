# Needs Python 3.11 or newer and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# One thread per process: two OpenMP threads beside other work can be ten times slower than one.
ONE_THREAD := OMP_NUM_THREADS=1

RUN_EXTRAS := train,track
DEV_EXTRAS := train,track,metrics,onnx,serve,dev

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench torture pictures clean

help: ## what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

demo: $(VENV)/.installed-run ## learn from built-in images and write a report
	@$(BIN)/semisight demo

test: $(VENV)/.installed-dev ## run every test
	@$(ONE_THREAD) $(BIN)/python -m pytest -q

lint: $(VENV)/.installed-dev ## style, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(VENV)/.installed-dev ## speed and memory, one JSON line per figure
	@$(BIN)/python -m benchmarks

torture: $(VENV)/.installed-dev ## kills, full disks, mutated files, slow clients: what SECURITY.md promises, a quarter of an hour
	@$(ONE_THREAD) $(BIN)/python -m benchmarks.torture --out results/torture.csv

pictures: $(VENV)/.installed-dev ## make the README's pictures anew, from the demo
	@$(BIN)/semisight demo --out semisight-demo
	@$(BIN)/python docs/pictures/make.py semisight-demo

clean: ## remove the virtual environment, caches and builds
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("semisight needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.11 ...")'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# A stamp per set of extras, so that the demo does not wait for the developers' tools.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV) (a few minutes the first time)"
	@$(PIP) install -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.installed-run: EXTRAS := $(RUN_EXTRAS)
$(VENV)/.installed-dev: EXTRAS := $(DEV_EXTRAS)
.PRECIOUS: $(VENV)/.installed-run $(VENV)/.installed-dev
