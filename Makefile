# Everything a person types. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.setup-done

.DEFAULT_GOAL := help
.PHONY: help setup run test e2e cluster-build cluster-up cluster-down lint format benchmark lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(SETUP) ## make .venv with everything pinned (needs Python 3.10 to 3.13, nothing else)

# --require-hashes refuses any package that is not the one the lock file names.
$(SETUP): constraints/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v < (3, 14) else \
	  "Python 3.10 to 3.13 is needed and $(PYTHON) is %d.%d: say which with make PYTHON=python3.12 ..." % v)'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

run: $(SETUP) ## train on real digits here: one parameter server and two workers, as separate processes
	@$(BIN)/trainer launch --ps 1 --workers 2 --train_steps 2000

test: $(SETUP) lint ## everything that needs no cluster: lint, types, unit tests, real multi-process training
	$(BIN)/python -m pytest tests/unit tests/processes

e2e: $(SETUP) $(if $(KUBECONFIG),,cluster-build) ## what needs a cluster: the one in KUBECONFIG, or a throw-away one here (Linux, root, Go; see cluster-up)
	$(BIN)/python -m pytest tests/e2e

cluster-build: ## the throw-away cluster's programs: minutes the first time, afterwards nothing
	$(PYTHON) -m tests.cluster build

cluster-up: ## start a throw-away Kubernetes on this machine and say how to reach it (KEEP_CLUSTER=1 keeps it after e2e)
	$(PYTHON) -m tests.cluster up

cluster-down: ## end it, and leave the machine as it was
	$(PYTHON) -m tests.cluster down

lint: $(SETUP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(SETUP) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(SETUP) ## the trainer beside the classic mnist_replica code, alternating; prints ratios
	$(BIN)/python -m benchmarks.classic_ratio

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url \
	--custom-compile-command 'make lock' pyproject.toml
lock: $(SETUP) ## resolve constraints/ anew from pyproject.toml (UPGRADE=--upgrade for newer versions)
	$(COMPILE) $(UPGRADE) --extra cpu --extra dev -o constraints/dev.txt
	$(COMPILE) $(UPGRADE) --extra cpu -o constraints/cpu.txt -c constraints/dev.txt
	$(COMPILE) $(UPGRADE) --extra gpu -o constraints/gpu.txt -c constraints/dev.txt

clean: ## remove the virtual environment and caches (never runs/)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
