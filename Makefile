# Every command of this project; `make help` lists them. CI calls these and nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

# What can be set: make VARIABLE=value, or in the environment.
PYTHON ?= python3
RUN_ARGS ?=
PYTEST_ARGS ?=
TEST_JOBS ?= 3
TEST_WORKERS ?= 2
BENCH_ARGS ?=
CHAOS_ARGS ?=
SOAK_ARGS ?=
FUZZ_ARGS ?=
IMAGE_PREFIX ?= sandpod
IMAGE_TAG ?= dev
KIND_CLUSTER ?= sandpod-test
export PYTHON IMAGE_PREFIX IMAGE_TAG KIND_CLUSTER

BIN := .venv/bin
# The test cluster has a kubeconfig of its own, so that no command here ever meets another cluster.
CLUSTER_ENV := KUBECONFIG=$(CURDIR)/.build/kubeconfig
# helm and kubectl live for a moment: they need not collect garbage as often as a server.
export GOGC ?= 400
# Where there is no BuildKit, the classic builder has to reach the package registries through the host's network.
DOCKER_BUILD ?= $(if $(shell docker buildx version 2>/dev/null),docker build,DOCKER_BUILDKIT=0 docker build --network=host)
IMAGES := gateway operator sandbox
IMAGES_TEST := ruby busybox nginx

.PHONY: help
help: ## Lists these commands
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  make %-22s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

##### On any machine

.PHONY: run
run: ## Starts the gateway on this machine: local sandboxes, no cluster, http://127.0.0.1:8000/mcp
	@tools/setup.sh run
	@$(BIN)/sandpod setup $(RUN_ARGS) || true
	@exec $(BIN)/sandpod serve --backend local $(RUN_ARGS)

.PHONY: test
test: setup ## Runs every test that needs no cluster, TEST_JOBS kinds of them at a time; PYTEST_ARGS chooses some
	@$(if $(PYTEST_ARGS),$(BIN)/pytest $(PYTEST_ARGS),$(MAKE) --no-print-directory -j$(TEST_JOBS) -O test-contract test-unit test-runner)

.PHONY: test-unit
test-unit: setup ## Runs the tests of single parts
	@$(BIN)/pytest tests/unit

.PHONY: test-contract
test-contract: setup ## Runs the tests of the gateway with real sandboxes on this machine
	@$(BIN)/pytest --numprocesses $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder tests/contract --ignore tests/contract/runner

.PHONY: test-runner
test-runner: setup ## Runs the tests of the runner, by itself and in real sandboxes on this machine
	@$(BIN)/pytest tests/contract/runner

.PHONY: test-clients
test-clients: setup .build/clients/.done ## Runs the examples of other libraries, with a stand-in for the model, and tries the REST API
	@$(BIN)/pytest tests/clients

.build/clients/.done: requirements/clients.lock tests/clients/programs/package-lock.json | setup
	@tools/clients.sh

.PHONY: setup
setup: ## Makes .venv with all that development needs, pinned by requirements/dev.lock
	@tools/setup.sh dev

.PHONY: check
check: setup ## Checks style, types, layers, the length of modules and the documentation
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/line_limits.py
	$(BIN)/python tools/pages.py --check
	$(BIN)/zensical build --strict

.PHONY: docs
docs: setup ## Writes the generated parts of README and docs/, and builds the site into .build/site
	$(BIN)/python tools/pages.py
	$(BIN)/zensical build --strict

.PHONY: lint
lint: check ## The same as check

.PHONY: generate
generate: setup ## Writes the generated files anew: CRDs, manifests, the values' schema, parts of README and docs/
	$(BIN)/python tools/generate.py
	$(BIN)/python tools/pages.py

.PHONY: verify
verify: setup ## Fails when a generated file is not what `make generate` writes
	$(BIN)/python tools/generate.py --check

.PHONY: lock
lock: ## Writes requirements/*.lock anew from pyproject.toml; UPGRADE=1 takes newer versions
	tools/lock.sh

.PHONY: vendor
vendor: ## Copies the console's JavaScript libraries from npm, in the versions of tools/console/package-lock.json
	@$(BIN)/python tools/vendor.py

.PHONY: wheel
wheel: setup ## Builds the wheels that the images install, the client's and the server's, into dist/
	@rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist client
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

.PHONY: sbom
sbom: setup ## Writes what the local server and each image consist of, with licences, into .build/sbom (CycloneDX)
	tools/sbom.sh

.PHONY: bench-local
bench-local: setup ## Measures the local gateway against the budgets
	PYTHONPATH=tests:tools $(BIN)/python -m bench.bench local $(BENCH_ARGS)

.PHONY: bench-packages
bench-packages: setup ## Installs the most used packages of PyPI, and compares each file with what pip makes of them
	PYTHONPATH=tests:tools $(BIN)/python -m bench.packages $(BENCH_ARGS)

.PHONY: fuzz
fuzz: setup .build/fuzz/tool/.done ## Fuzzes for an hour what takes bytes from outside; FUZZ_ARGS="--minutes 10"
	@PYTHONPATH=tests:$$(echo .build/fuzz/tool/lib/python3*/site-packages) $(BIN)/python -m fuzz.fuzz $(FUZZ_ARGS)

.build/fuzz/tool/.done: requirements/fuzz.lock | setup
	@rm -rf .build/fuzz/tool
	@tools/install.sh .build/fuzz/tool $< .venv
	@touch $@

##### With Docker, kind, kubectl and helm

.PHONY: test-cluster
test-cluster: setup cluster-tools ## Builds images, makes a kind cluster, installs the chart and runs all tests that need them
	@$(MAKE) --no-print-directory images images-test cluster install test-end-to-end

.PHONY: test-cluster-contract
test-cluster-contract: setup ## Runs in that cluster what all kinds of sandboxes must do
	@$(CLUSTER_ENV) tools/cluster.sh contract $(PYTEST_ARGS)

.PHONY: test-end-to-end
test-end-to-end: setup ## Runs all tests that need that cluster, most of them side by side
	@$(MAKE) --no-print-directory test-e2e-alone
	@$(MAKE) --no-print-directory -j3 -O test-e2e-together test-e2e-objects test-e2e-operator test-cluster-contract
	@# After the others: an alert looks back for seconds here, which a busy machine may sleep through.
	@$(MAKE) --no-print-directory test-e2e-watched

.PHONY: test-e2e-together
test-e2e-together: setup ## Runs the tests of all parts together, as installed in that cluster
	@$(CLUSTER_ENV) tools/cluster.sh e2e-together $(PYTEST_ARGS)

.PHONY: test-e2e-objects
test-e2e-objects: setup .build/clients/.done ## Runs the tests of the chart, of what it installs in that cluster's API server, and of a release of their own
	@$(CLUSTER_ENV) tools/cluster.sh e2e-objects $(PYTEST_ARGS)

.PHONY: test-e2e-watched
test-e2e-watched: setup ## Runs the tests that break things and see that alerts and `sandpod verify` say so
	@$(CLUSTER_ENV) tools/cluster.sh e2e-watched $(PYTEST_ARGS)

.PHONY: test-e2e-operator
test-e2e-operator: setup ## Runs the tests that bring an operator and namespaces of their own to that cluster
	@$(CLUSTER_ENV) tools/cluster.sh e2e-operator $(PYTEST_ARGS)

.PHONY: test-e2e-alone
test-e2e-alone: setup ## Runs the tests that stop something of the whole cluster, and bring it back
	@$(CLUSTER_ENV) tools/cluster.sh e2e-alone $(PYTEST_ARGS)

.PHONY: cluster-tools
cluster-tools: ## Finds Docker, kind, kubectl and helm, or says what is missing
	@tools/cluster.sh tools

.PHONY: images
images: wheel $(IMAGES:%=image-%) ## Builds the three images

.PHONY: images-test
images-test: $(IMAGES_TEST:%=image-test-%) ## Builds the images without a runner that the tests use

.PHONY: $(IMAGES_TEST:%=image-test-%)
$(IMAGES_TEST:%=image-test-%): image-test-%:
	$(DOCKER_BUILD) --tag $(IMAGE_PREFIX)/test-$*:$(IMAGE_TAG) --target $* tests/e2e/images

.PHONY: $(IMAGES:%=image-%)
$(IMAGES:%=image-%): image-%:
	$(DOCKER_BUILD) --tag $(IMAGE_PREFIX)/$*:$(IMAGE_TAG) --file containers/$*/Dockerfile .

.PHONY: cluster-node
cluster-node: ## Makes the kind cluster KIND_CLUSTER unless it is there
	@$(CLUSTER_ENV) tools/cluster.sh node

.PHONY: cluster
cluster: cluster-node ## The same, and loads the images into it
	@$(CLUSTER_ENV) tools/cluster.sh load

.PHONY: install
install: setup ## Installs the chart into that cluster, with two API keys in .build/keys.json
	@$(CLUSTER_ENV) tools/cluster.sh install

.PHONY: bench
bench: setup ## Measures the gateway in that cluster against the budgets, with what the chart imports before programs do
	@$(CLUSTER_ENV) tools/cluster.sh install --values tests/bench/values.yaml
	@$(CLUSTER_ENV) PYTHONPATH=tests:tools $(BIN)/python -m bench.bench cluster $(BENCH_ARGS)

.PHONY: benchmarks
benchmarks: setup ## Makes the last results of `make bench` those of docs/benchmarks.md
	cp .build/bench.json docs/benchmarks.json
	$(BIN)/python tools/pages.py

.PHONY: bench-scale
bench-scale: setup ## Measures how operator and claims scale, in that cluster, with pods that are only said to run
	@$(CLUSTER_ENV) PYTHONPATH=tests:tools $(BIN)/python -m bench.scale $(BENCH_ARGS)

.PHONY: bench-claims
bench-claims: setup ## Lets 100,000 claims race in that cluster while everything goes wrong, and proves what came of them
	@$(CLUSTER_ENV) PYTHONPATH=tests:tools $(BIN)/python -m bench.claims $(BENCH_ARGS)

.PHONY: chaos
chaos: setup ## Lets 100 rounds of faults rage in that cluster under load; CHAOS_ARGS="--rounds 5 --seed 7"; KIND_WORKERS=1 makes a second node
	@$(CLUSTER_ENV) tools/cluster.sh chaos
	@$(CLUSTER_ENV) tools/cluster.sh rage $(CHAOS_ARGS)

.PHONY: soak
soak: setup ## Measures for two hours in that cluster whether anything grows under load; SOAK_ARGS="--minutes 10"
	@$(CLUSTER_ENV) tools/cluster.sh soak $(SOAK_ARGS)

.PHONY: cluster-story
cluster-story: ## Prints what there is to look at in that cluster after a failed test
	@$(CLUSTER_ENV) tools/cluster.sh story

.PHONY: cluster-down
cluster-down: ## Deletes the kind cluster KIND_CLUSTER
	@$(CLUSTER_ENV) tools/cluster.sh down

.PHONY: clean
clean: ## Removes all that these commands made here: environment, builds, caches (not the cluster)
	rm -rf .venv .build .cache dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find client operator gateway containers tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
