# The project's commands; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRAINER_IMAGE := distributed-tensorflow/trainer
SUPERVISOR_IMAGE := distributed-tensorflow/supervisor
RUN := $(VENV)/.run-done
SETUP := $(VENV)/.setup-done
ROW_OPS := $(VENV)/.row-ops-done

.DEFAULT_GOAL := help
.PHONY: help setup run check test conformance conformance-docs fuzz test-long flaky coverage chart-tools chart-lint chart-docs e2e e2e-long cluster-build cluster-up cluster-down engine \
	build-images package-model push-images release test-images lint format benchmark benchmark-kubernetes goodput scale soak pictures test-readme lock clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(SETUP) ## install what development needs into .venv, 3 GB (requires Python 3.10 to 3.13)
	@$(COMPILE_ROW_OPS)

# Each writes its stamp at the end. A .venv from `make setup` has all that `make run` needs.
INSTALL = $(CHECK_PYTHON) && $(PYTHON) hack/install.py
CHECK_PYTHON = { command -v $(PYTHON) > /dev/null || { echo '$(PYTHON) is not on PATH: install Python 3.10 to 3.13, \
	  or name it, as in make PYTHON=python3.12 run' >&2; false; }; } && $(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	  sys.exit(0 if (3, 10) <= v < (3, 14) else "$(PYTHON) is Python %d.%d, but 3.10 to 3.13 is required: \
	  choose another one, as in make PYTHON=python3.12 ..." % v)'
$(RUN): constraints/cpu.txt constraints/uv.txt pyproject.toml
	@$(INSTALL) run
$(SETUP): constraints/dev.txt constraints/uv.txt pyproject.toml
	@$(INSTALL) setup

# Ops on rows of tables, which need a compiler of C++; without one, TensorFlow's own do.
COMPILE_ROW_OPS = [ "$$(ls -t $(ROW_OPS) trainer/kernels/*.h trainer/*/*.cc 2> /dev/null | head -1)" = "$(ROW_OPS)" ] \
	  || { $(BIN)/python -m trainer.kernels && touch $(ROW_OPS); } \
	  || echo 'so the ops of TensorFlow update rows of tables, and a step in 40,000 is taken again'

run: $(or $(wildcard $(SETUP)),$(RUN)) ## train on the digits data set on this machine, with one parameter server and two workers
	@$(COMPILE_ROW_OPS)
	@$(BIN)/trainer launch --ps 1 --workers 2

# Two parameter servers and two workers; two workers that sum their gradients, compared with a single process.
LAUNCHES := $(addprefix tests/processes/test_launch.py::,test_a_run_writes_the_documented_files \
	test_allreduce_replicas_learn_as_well_as_a_single_process)
RENDERINGS := tests/chart/test_ci_values.py tests/chart/test_values.py
HELM = $(shell which helm 2> /dev/null)
check: setup lint ## check a change in two minutes, without Go, root or Docker: lint, types, quick unit tests, two small clusters
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m 'not slow and not long' tests/unit $(LAUNCHES) \
	  $(if $(HELM),$(RENDERINGS))
	@echo 'make check has left out: $(if $(HELM),most of the chart,the chart, as helm is not on PATH), slow unit tests, Keras class by' \
	  'class, most processes (make test); images and Kubernetes (make e2e)'

# Go's tools last, which take minutes to build.
test: CHART_TOOLS += versitygw
test: check ## run all checks that need no cluster: make check, and slow unit tests, multi-process training, the chart
	$(BIN)/python -m pytest --numprocesses 2 -m slow tests/unit
	$(BIN)/python -m pytest --numprocesses 2 -m 'not long' tests/conformance
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal -m 'not long and not go' $(addprefix --deselect ,$(LAUNCHES)) \
	  tests/processes
	$(MAKE) chart-lint CHART_TOOLS='$(CHART_TOOLS)'
	$(BIN)/python -m pytest --numprocesses 2 -m 'go and not long' tests/chart tests/processes

conformance: $(SETUP) ## train with each public class of Keras as by `fit`, also what make test leaves out
	$(BIN)/python -m pytest --numprocesses 2 tests/conformance

conformance-docs: $(SETUP) ## generate docs/keras.md from the rows of tests/conformance
	$(BIN)/python -m tests.conformance.table

fuzz: MINUTES ?= 10
fuzz: $(SETUP) chart-tools ## search for inputs that crash a program: other examples than make test, and more (MINUTES=10)
	@end=$$(( $$(date +%s) + 60 * $(MINUTES) )); while [ $$(date +%s) -lt $$end ]; do \
	  FUZZ_FACTOR=5 $(BIN)/python -m pytest -o timeout=3600 tests/unit/test_fuzz_*.py tests/chart/test_fuzz_*.py \
	    || exit 1; done

test-long: $(SETUP) ## run the multi-process tests that CI skips: more combinations, runs of 100,000 steps (more than an hour)
	$(BIN)/python -m pytest -m long tests/processes

flaky: N ?= 5
flaky: TESTS ?= tests/processes
flaky: CHART_TOOLS += versitygw
flaky: $(SETUP) chart-tools ## repeat tests beside busy loops, and count the failures of each (N=5 TESTS='tests/processes')
	$(if $(KUBECONFIG),$(WITH_CHART_TOOLS)) $(BIN)/python -m hack.flaky --rounds $(N) $(TESTS)

coverage: CHART_TOOLS += versitygw
coverage: $(SETUP) chart-tools ## measure which lines and branches of trainer/ the unit tests and the processes run
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --numprocesses 2 tests/unit
	$(BIN)/coverage run -m pytest --numprocesses 3 --dist worksteal -m 'not long' tests/processes
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# Helm, ct and helm-docs: built with Go once; without Go, those on PATH. ct runs other tools and needs absolute paths.
CHART_TOOLS := $(PYTHON) -m hack.cluster build helm ct helm-docs
WITH_CHART_TOOLS = PATH="$$($(CHART_TOOLS)):$(CURDIR)/$(BIN):$$PATH"
HELM_DOCS := helm-docs --chart-search-root charts --sort-values-order file --log-level warning

chart-tools:
	@$(CHART_TOOLS)

chart-lint: $(SETUP) chart-tools ## lint the chart with each file of its ci/ folder, lint all YAML, and check the chart's README
	$(WITH_CHART_TOOLS) ct lint --config ct.yaml
	$(BIN)/yamllint --strict --config-file .ct/lintconf.yaml .
	$(WITH_CHART_TOOLS) $(HELM_DOCS) --dry-run | diff charts/distributed-tensorflow/README.md - \
	  || { echo "the chart's README is out of date: run make chart-docs"; exit 1; }

chart-docs: $(SETUP) chart-tools ## generate the chart's README, the schema of `train` and the dashboard, from values.yaml and Python
	$(BIN)/python -m hack.chart.values
	$(BIN)/python -m hack.chart.dashboard
	$(WITH_CHART_TOOLS) $(HELM_DOCS)

# If KUBECONFIG is set, that cluster must have the images or be able to pull them. Otherwise build the images and start a
# cluster here.
e2e: $(SETUP) $(if $(KUBECONFIG),chart-tools,cluster-build build-images) ## test the images, and the chart on the cluster in KUBECONFIG or on a throw-away one (Linux, root, Go)
	@$(if $(KUBECONFIG)$(KEEP_CLUSTER),,trap '$(PYTHON) -m hack.cluster down; exit 130' INT TERM;) \
	$(E2E_WITH) KEEP_CLUSTER=1 $(BIN)/python -m pytest -m 'alone and not long' tests/e2e; alone=$$?; \
	$(E2E_WITH) $(BIN)/python -m pytest $(SIDE_BY_SIDE) -m 'not alone and not long' $(if $(KUBECONFIG),,tests/images) tests/e2e \
	  && exit $$alone
E2E_WITH = $(if $(KUBECONFIG),$(WITH_CHART_TOOLS))
# Two at a time use both CPUs most of the time.
SIDE_BY_SIDE := --numprocesses 2 --maxschedchunk 1

e2e-long: $(SETUP) cluster-build build-images ## test what CI skips: all other images, and the chart with them on the throw-away cluster (more than an hour)
	$(MAKE) build-images DATA=yes
	$(MAKE) build-images TENSORFLOW=cpu-mlflow
	$(PYTHON) -m hack.cluster build helm3
	$(BIN)/python -m pytest -m long tests/images tests/e2e

cluster-build: ## build the throw-away cluster's programs: minutes the first time, then no time
	$(PYTHON) -m hack.cluster build

# The others of this version that were built; that for GPUs is as large as all of them.
OTHERS_TO_LOAD = $$(docker image ls --format '{{.Repository}}:{{.Tag}}' | grep -v -e '-gpu$$' \
	| grep -F -e $(TRAINER_IMAGE):$(VERSION)-)
cluster-up: ## start a throw-away Kubernetes on this machine and print its KUBECONFIG; loads the images that were built (KEEP_CLUSTER=1 keeps it after e2e)
	$(PYTHON) -m hack.cluster up
	@for image in $(TRAINER_IMAGE):$(VERSION) $(SUPERVISOR_IMAGE):$(VERSION) $(OTHERS_TO_LOAD); do \
	  if docker image inspect $$image > /dev/null 2>&1; then $(PYTHON) -m hack.cluster load $$image; \
	  else echo "$$image is not on the node: run make build-images, then make cluster-up again"; fi; done

cluster-down: ## stop the throw-away Kubernetes and undo cluster-up
	$(PYTHON) -m hack.cluster down

TENSORFLOW ?= cpu
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' trainer/__init__.py)
# The commit without tags, with the suffix -dirty if files differ from it.
DESCRIBE := git describe --always --dirty --exclude='*'
TAGS = $(VERSION) $(shell $(DESCRIBE))
VARIANT = $(if $(DATA),-data)$(if $(filter-out cpu,$(TENSORFLOW)),-$(TENSORFLOW))
TRAINER_NAMES = $(addprefix $(TRAINER_IMAGE):,$(addsuffix $(VARIANT),$(TAGS)))
SUPERVISOR_NAMES = $(addprefix $(SUPERVISOR_IMAGE):,$(TAGS))
# Debian's docker command supports build secrets; newer ones need the buildx plug-in. Use the first on PATH that does.
CAN_BUILD = DOCKER_BUILDKIT=1 $$client build --help 2>&1 | grep -q -e --secret
CLIENT = $(or $(firstword $(shell for client in $$(which -a docker); do $(CAN_BUILD) && echo $$client; done)), \
	$(error no docker command on PATH supports BuildKit: install Docker's buildx plug-in))
CA ?= $(wildcard $(SSL_CERT_FILE))
SECRET = --secret id=ca,src=$(CA)

engine:
	@$(PYTHON) -m hack.cluster engine

# The package index is that of pip, as for `make setup`. A credential in its URL stays out of the images, not out of the log.
INDEX_URL ?= $(or $(PIP_INDEX_URL),$(shell $(PYTHON) -m pip config get global.index-url 2> /dev/null))
SOURCES = $(foreach name,BASE_IMAGE DEBIAN_MIRROR INDEX_URL,$(if $($(name)),--build-arg $(name)=$($(name))))

BUILD_COMMAND = $(CLIENT) build --file images/Dockerfile $(if $(PLATFORM),--platform $(PLATFORM)) $(if $(CA),$(SECRET)) $(SOURCES) \
	--label org.opencontainers.image.licenses=Apache-2.0 --label org.opencontainers.image.version=$(VERSION) \
	--label org.opencontainers.image.revision=$$($(DESCRIBE) --abbrev=40)
BUILD = DOCKER_BUILDKIT=1 $(BUILD_COMMAND)
PRINT_SIZE = @docker image inspect --format

build-images: engine ## build the images of trainer and supervisor (TENSORFLOW=gpu: with CUDA; cpu-mlflow: with MLflow's client; DATA=yes: with Lance; PLATFORM=linux/amd64: for nodes of another kind than this machine; BASE_IMAGE, DEBIAN_MIRROR, INDEX_URL, CA=FILE: docs/kubernetes.md)
	$(BUILD) --target supervisor $(addprefix --tag ,$(SUPERVISOR_NAMES)) .
	$(BUILD) --target trainer $(addprefix --tag ,$(TRAINER_NAMES)) --build-arg TENSORFLOW=$(TENSORFLOW) \
	  --build-arg DATA=$(DATA) .
	$(PRINT_SIZE) 'built $(SUPERVISOR_NAMES): {{.Size}} bytes for {{.Os}}/{{.Architecture}}' $(firstword $(SUPERVISOR_NAMES))
	$(PRINT_SIZE) 'built $(TRAINER_NAMES): {{.Size}} bytes for {{.Os}}/{{.Architecture}}' $(firstword $(TRAINER_NAMES))

package-model: $(SETUP) engine ## build an image that serves one model: make package-model MODEL=runs/NAME (NAME=digits: its name in URLs)
	@test -n '$(MODEL)' || { echo 'package-model: MODEL is not set: name the directory of a run, as in' \
	  'make package-model MODEL=runs/20261130-120459' >&2; exit 2; }
	@DOCKER_BUILDKIT=1 $(BIN)/python -m trainer.serving.package $(if $(NAME),--name '$(NAME)') '$(MODEL)' -- $(BUILD_COMMAND)

ALL_NAMES = $(SUPERVISOR_NAMES) $(TRAINER_NAMES)
push-images: ## push the images that were built: make push-images REGISTRY=registry.example.com/team (IMAGES='NAME:TAG …': only these)
	@test -n '$(REGISTRY)' || { echo 'push-images: REGISTRY is not set: name the registry, as in' \
	  'make push-images REGISTRY=registry.example.com/team' >&2; exit 2; }
	@set -e; pushed=; for name in $(or $(IMAGES),$(ALL_NAMES)); do \
	  if ! docker image inspect $$name > /dev/null 2>&1; then echo "not built, so not pushed: $$name"; continue; fi; \
	  docker tag $$name $(REGISTRY)/$$name; docker push $(REGISTRY)/$$name; pushed=yes; echo "pushed $(REGISTRY)/$$name"; done; \
	  test -n "$$pushed" || { echo 'push-images: no image is built: run make build-images first.' >&2; exit 2; }

release: $(SETUP) chart-tools engine ## build a release, and push it: make release VERSION=0.2.0 REGISTRY=registry.example.com/team (COSIGN_KEY=FILE; SIGN_KEY=NAME KEYRING=FILE: signed)
	@test -n '$(REGISTRY)' || { echo 'release: REGISTRY is not set: name the registry, as in' \
	  'make release VERSION=0.2.0 REGISTRY=registry.example.com/team' >&2; exit 2; }
	$(WITH_CHART_TOOLS) $(BIN)/python -m hack.release --version '$(VERSION)' --registry '$(REGISTRY)' \
	  $(if $(COSIGN_KEY),--cosign_key '$(COSIGN_KEY)') $(if $(SIGN_KEY),--sign_key '$(SIGN_KEY)') $(if $(KEYRING),--keyring '$(KEYRING)')

test-images: $(SETUP) ## test the images from build-images in locked-down containers
	$(BIN)/python -m pytest tests/images

lint: $(SETUP) ## run ruff, mypy and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: $(SETUP) ## fix and format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(SETUP) ## compare the trainer with classic code and tf.distribute, and update docs/performance.md (an hour)
	$(BIN)/python -m benchmarks

benchmark-kubernetes: $(SETUP) chart-tools ## compare rates inside and outside the cluster in KUBECONFIG, which must be on this machine
	$(WITH_CHART_TOOLS) $(BIN)/python -m benchmarks.in_kubernetes

# Without the KUBECONFIG of `make cluster-up`, only the runs of processes.
FAULTS_WITH = $(if $(KUBECONFIG),$(WITH_CHART_TOOLS)) $(BIN)/python -m
FAULTS_IMAGE = $(if $(IMAGE_TAG),--image_tag $(IMAGE_TAG))
FAULTS_CHOICE = $(if $(ONLY),--only $(ONLY)) $(if $(SHORT),--short) $(if $(AGAIN),--again) $(FAULTS_IMAGE)
goodput: $(SETUP) $(if $(KUBECONFIG),chart-tools) ## train with a fault each 15 s to 5 min, and update docs/faults.md (hours; ONLY='allreduce 15'; SHORT=1: ten minutes; AGAIN=1: those with a result too; in the cluster in KUBECONFIG too, if it is set)
	$(FAULTS_WITH) benchmarks.faults.goodput $(FAULTS_CHOICE)

scale: WORKERS ?= 1000
scale: ROUNDS ?= 1
scale: ADMISSIONS ?= 2
scale: $(SETUP) ## install a run on simulated nodes, and print what it costs (WORKERS='10 100 1000' ROUNDS=2 ADMISSIONS=20; Linux, root, Go; minutes each)
	$(BIN)/python -m benchmarks.scale --workers $(WORKERS) --rounds $(ROUNDS) --admissions $(ADMISSIONS)

soak: MINUTES ?= 30
SEED ?= 0
MODE ?= asynchronous
soak: $(SETUP) $(if $(KUBECONFIG),chart-tools) ## train under random faults, and print what they cost (MINUTES=30 SEED=0 MODE=asynchronous; HOURS=8: a fault a minute, with curves for docs/faults.md; in the cluster in KUBECONFIG, if it is set)
	$(FAULTS_WITH) benchmarks.faults.soak $(if $(HOURS),--hours $(HOURS),--minutes $(MINUTES)) --seed $(SEED) --mode $(MODE) \
	  $(if $(KUBECONFIG),--place cluster $(FAULTS_IMAGE))

test-readme: $(SETUP) engine ## run README's first commands on an empty Debian, in a container (minutes)
	$(BIN)/python -m pytest tests/readme

pictures: $(SETUP) ## make the pictures of README, in docs/pictures/ (a minute; installs Debian's Chromium)
	@$(BIN)/python -m hack.pictures

# What KServe and TensorFlow require, but do not import to serve a SavedModel.
NOT_SERVED := grpcio-tools h5py keras libclang markdown-it-py mdurl namex optree pygments rich setuptools
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url \
	--custom-compile-command 'make lock'
lock: $(SETUP) ## update constraints/ from pyproject.toml (UPGRADE=--upgrade: newer versions)
	$(COMPILE) $(UPGRADE) pyproject.toml --extra tensorflow --extra dev -o constraints/dev.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra tensorflow -o constraints/cpu.txt -c constraints/dev.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra gpu -o constraints/gpu.txt -c constraints/dev.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra data -o constraints/data.txt -c constraints/dev.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra tensorflow --extra mlflow -o constraints/cpu-mlflow.txt -c constraints/dev.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra supervisor -o constraints/supervisor.txt -c constraints/dev.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra serve -o constraints/model.txt $(addprefix --no-emit-package ,$(NOT_SERVED))
	$(COMPILE) $(UPGRADE) --group image -o constraints/image.txt -c constraints/dev.txt
	$(COMPILE) $(UPGRADE) --group uv -o constraints/uv.txt -c constraints/dev.txt

clean: ## remove the virtual environment and caches (keeps runs/)
	rm -rf $(VENV) .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
