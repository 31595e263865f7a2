# Everything a person types. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRAINER_IMAGE := distributed-tensorflow/trainer
SUPERVISOR_IMAGE := distributed-tensorflow/supervisor
SETUP := $(VENV)/.setup-done

.DEFAULT_GOAL := help
.PHONY: help setup run test test-long chart-tools chart-lint chart-docs e2e cluster-build cluster-up cluster-down engine \
	build-images push-images test-images lint format benchmark benchmark-kubernetes lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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
	@$(BIN)/trainer launch --ps 1 --workers 2

test: $(SETUP) lint chart-lint ## everything that needs no cluster: lint, types, unit tests, the chart, real multi-process training
	$(BIN)/python -m pytest --numprocesses 2 tests/unit tests/chart
	$(BIN)/python -m pytest --numprocesses 2 -m 'not long' tests/processes

test-long: $(SETUP) ## the multi-process tests for which CI has no time: more combinations, runs of 100,000 steps (below an hour)
	$(BIN)/python -m pytest -m long tests/processes

# Helm and its helpers: built by Go once, or without Go those on PATH. ct starts some of them, and asks for absolute paths.
CHART_TOOLS := $(PYTHON) -m tests.cluster build helm ct helm-docs
WITH_CHART_TOOLS = PATH="$$($(CHART_TOOLS)):$(CURDIR)/$(BIN):$$PATH"
HELM_DOCS := helm-docs --chart-search-root charts --sort-values-order file --log-level warning

chart-tools:
	@$(CHART_TOOLS)

chart-lint: $(SETUP) chart-tools ## the chart by ct and helm lint with each ci/ file, all YAML, and its README
	$(WITH_CHART_TOOLS) ct lint --config ct.yaml
	$(BIN)/yamllint --strict --config-file .ct/lintconf.yaml .
	$(WITH_CHART_TOOLS) $(HELM_DOCS) --dry-run | diff charts/distributed-tensorflow/README.md - \
	  || { echo "the chart's README is not up to date: make chart-docs"; exit 1; }

chart-docs: $(SETUP) chart-tools ## write the chart's README from values.yaml, and the schema of `train` from the trainer's settings
	$(BIN)/python -m tests.chart.train_schema
	$(WITH_CHART_TOOLS) $(HELM_DOCS)

# With a KUBECONFIG that cluster is used, and must be able to get the image; else images and cluster are made here.
e2e: $(SETUP) $(if $(KUBECONFIG),chart-tools,cluster-build build-images) ## the image, and the chart on the Kubernetes in KUBECONFIG or on a throw-away one (Linux, root, Go)
	$(if $(KUBECONFIG),$(WITH_CHART_TOOLS)) $(BIN)/python -m pytest $(if $(KUBECONFIG),,tests/images) tests/e2e

cluster-build: ## the throw-away cluster's programs: minutes the first time, afterwards nothing
	$(PYTHON) -m tests.cluster build

cluster-up: ## start a throw-away Kubernetes on this machine and say how to reach it (KEEP_CLUSTER=1 keeps it after e2e)
	$(PYTHON) -m tests.cluster up
	@for image in $(TRAINER_IMAGE):$(VERSION) $(SUPERVISOR_IMAGE):$(VERSION); do \
	  if docker image inspect $$image > /dev/null 2>&1; then $(PYTHON) -m tests.cluster load $$image; \
	  else echo "$$image is not on the node: make build-images, then make cluster-up again"; fi; done

cluster-down: ## end it, and leave the machine as it was
	$(PYTHON) -m tests.cluster down

TENSORFLOW ?= cpu
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' trainer/__init__.py)
# The commit, as git describes it with any tag left aside; it ends in -dirty where files differ from it.
DESCRIBE := git describe --always --dirty --exclude='*'
TAGS = $(VERSION) $(shell $(DESCRIBE))
TRAINER_NAMES = $(addprefix $(TRAINER_IMAGE):,$(addsuffix $(if $(filter-out cpu,$(TENSORFLOW)),-$(TENSORFLOW)),$(TAGS)))
SUPERVISOR_NAMES = $(addprefix $(SUPERVISOR_IMAGE):,$(TAGS))
# Debian's docker command builds with secrets by itself, later ones with a plug-in: the first on PATH that can, does.
CAN_BUILD = DOCKER_BUILDKIT=1 $$client build --help 2>&1 | grep -q -e --secret
CLIENT = $(or $(firstword $(shell for client in $$(which -a docker); do $(CAN_BUILD) && echo $$client; done)), \
	$(error no docker command here builds with BuildKit: install Docker's buildx plug-in))
CA ?= $(wildcard $(SSL_CERT_FILE))
SECRET = --secret id=ca,src=$(CA)

engine:
	@$(PYTHON) -m tests.cluster engine

BUILD = DOCKER_BUILDKIT=1 $(CLIENT) build $(if $(CA),$(SECRET)) \
	--build-arg VERSION=$(VERSION) --build-arg REVISION=$$($(DESCRIBE) --abbrev=40)
PRINT_SIZE = @docker image inspect --format

build-images: engine ## the images of trainer and supervisor (TENSORFLOW=gpu: with CUDA; CA=FILE: certificates that pip trusts)
	$(BUILD) --file images/supervisor/Dockerfile $(addprefix --tag ,$(SUPERVISOR_NAMES)) .
	$(BUILD) --file images/trainer/Dockerfile $(addprefix --tag ,$(TRAINER_NAMES)) --build-arg TENSORFLOW=$(TENSORFLOW) .
	$(PRINT_SIZE) 'built $(SUPERVISOR_NAMES): {{.Size}} bytes' $(firstword $(SUPERVISOR_NAMES))
	$(PRINT_SIZE) 'built $(TRAINER_NAMES): {{.Size}} bytes' $(firstword $(TRAINER_NAMES))

push-images: ## push them: make push-images REGISTRY=registry.example.com/team
	@test -n '$(REGISTRY)' || { echo 'push-images: REGISTRY is not set: say where to push, as in' \
	  'make push-images REGISTRY=registry.example.com/team' >&2; exit 2; }
	@set -e; for name in $(SUPERVISOR_NAMES) $(TRAINER_NAMES); do docker tag $$name $(REGISTRY)/$$name; docker push $(REGISTRY)/$$name; done
	@printf 'pushed %s\n' $(addprefix $(REGISTRY)/,$(SUPERVISOR_NAMES) $(TRAINER_NAMES))

test-images: $(SETUP) ## examine the images that build-images made, in locked-down containers
	$(BIN)/python -m pytest tests/images

lint: $(SETUP) ## ruff, mypy, and the rules of imports between packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: $(SETUP) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(SETUP) ## the trainer beside the classic code, strategies and no communication, into docs/performance.md (an hour)
	$(BIN)/python -m benchmarks

benchmark-kubernetes: $(SETUP) chart-tools ## the rate inside the Kubernetes in KUBECONFIG, on this machine, beside the rate outside it
	$(WITH_CHART_TOOLS) $(BIN)/python -m benchmarks.in_kubernetes

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url \
	--custom-compile-command 'make lock'
lock: $(SETUP) ## resolve constraints/ anew from pyproject.toml (UPGRADE=--upgrade for newer versions)
	$(COMPILE) $(UPGRADE) pyproject.toml --extra cpu --extra dev -o constraints/dev.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra cpu -o constraints/cpu.txt -c constraints/dev.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra gpu -o constraints/gpu.txt -c constraints/dev.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra supervisor -o constraints/supervisor.txt -c constraints/dev.txt
	$(COMPILE) $(UPGRADE) --group image -o constraints/image.txt -c constraints/dev.txt

clean: ## remove the virtual environment and caches (never runs/)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
