# Each target sets up what it needs: Linux and Python 3.11+ are enough. Run `make help` for the list.
#
#   make test PYTHON=python3.12 VENV=/tmp/venv
#   make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"   # a CPU build of torch: much smaller

VENV ?= .venv
PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.weightcast-installed

.DEFAULT_GOAL := help
.PHONY: help install demo test check docs clean
.DELETE_ON_ERROR:

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --constraint constraints.txt $(PIP_ARGS) --editable '.[server,worker,dev]'
	@touch $@

install: $(STAMP) ## Create the virtual environment with everything pinned

demo: $(STAMP) ## Train a model and follow its weights from trainers to rollouts (ARGS="--json --rollouts 2")
	$(BIN)/weightcast demo $(ARGS)

test: $(STAMP) ## Run all tests and show the coverage, child processes included (ARGS="-k session")
	$(BIN)/python -m pytest --cov --cov-report=term $(ARGS)

check: $(STAMP) ## Lint, formatting, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy app workers/weightcast tests benchmarks examples docs
	$(BIN)/lint-imports

docs: $(STAMP) ## Write the pages that are made from code
	$(BIN)/python docs/generate.py
	$(BIN)/python -m weightcast_server.api.openapi docs/openapi.json

clean: ## Remove caches, build results and the virtual environment
	rm -rf build dist *.egg-info .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find app workers tests -type d -name __pycache__ -prune -exec rm -rf {} +
	@# Only a virtual environment that this file has made is removed.
	if [ -f $(STAMP) ]; then rm -rf $(VENV); fi
