# Needs Python 3.11+ and make. Every target sets up its own virtual environment when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = pip install --quiet --progress-bar off --no-compile -c constraints.txt
# Every stage and test process imports torch and its like: compiled once, and not by each of them. Libraries stay quiet, and neither
# phone home nor unpickle.
unexport PYTHONDONTWRITEBYTECODE
export DVC_NO_ANALYTICS = 1
export MLFLOW_DISABLE_TELEMETRY = true
export MLFLOW_ALLOW_PICKLE_DESERIALIZATION = false
DVC = PATH="$(CURDIR)/$(BIN):$$PATH" dvc
ANY = $(or $(PAIR),.*)
LIST := $(VENV)/.stages
stages = grep '^$(1)' $(LIST)
pairs = $(call stages,report@$(ANY)$$) | sed 's/^report@//'
ONE = $(DVC) repro --single-item --keep-going "$$@"
TWICE = $(ONE) || { sleep 7; $(ONE); } || exit 1
# All lines in two, for as many processes: DVC takes seconds to start.
HALVES := awk '{half[NR % 2] = half[NR % 2] " " $$0} END {for (one in half) print half[one]}'
at_a_time = OMP_WAIT_POLICY=PASSIVE xargs -P $(1) $(2) sh -c '$(TWICE)' stage
# As many workers as cores, in the order that tests/conftest.py gives.
WORKERS := -n auto --dist loadfile --no-loadscope-reorder
TEST_ENV := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1

.DEFAULT_GOAL := help
.PHONY: help setup repro test check format test-families test-runtime soak gpu clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) pip
	$(BIN)/$(INSTALL) torch==2.13.0
	$(BIN)/$(INSTALL) -e '.[dev]'
	touch $@

setup: $(VENV)/.ready  ## Create .venv with everything

# What is not timed runs side by side: traces, each kind with its labels after it; fits; and what reads fits but no clock (of1, of2:
# verifiers and selection). A process that finds the repository locked tries once more; what fails is run again alone, and says why.
repro: setup  ## The whole pipeline on every pair of params.yaml, or on PAIR=NAME alone, then the report
	@$(DVC) stage list --name-only > $(LIST)
	@[ -z "$(PAIR)" ] || $(call stages,report@$(PAIR)$$) > /dev/null || { echo "params.yaml has no pair $(PAIR)"; exit 2; }
	$(DVC) repro $$($(call stages,\(latency\|prompts\)@$(ANY)$$))
	for pair in $$($(pairs)); do \
	  echo traces@$$pair-texts labels@$$pair-of0 labels@$$pair-of1; \
	  echo traces@$$pair-trees labels@$$pair-of2; \
	  echo traces@$$pair-guesses; \
	done | $(call at_a_time,2,-L 1) || \
	$(DVC) repro $$($(call stages,\(traces\|labels\)@$(ANY)-[a-z]*[0-9]*$$))
	$(call stages,fit@$(ANY)-) | $(HALVES) | $(call at_a_time,2,-L 1) || true
	{ $(call stages,replay@$(ANY)$$); $(call stages,measure@$(ANY)-of[12]$$); } | $(call at_a_time,2,-n 1) || true
	$(DVC) repro $(PAIR:%=report@%)
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
gpu:  ## On a CUDA device, with its own Python (PYTHON=...): the tests for devices, the benchmark of ten minutes, its report in docs/gpu
	@failed=0; \
	$(PYTHON) -m pytest tests/runtime/test_gpu.py || failed=1; \
	$(PYTHON) -m pipelines.gpu docs/gpu || failed=1; \
	for results in docs/gpu/*.json; do \
	  [ ! -e "$$results" ] || $(PYTHON) -m pipelines gpu.report "$$results" || failed=1; \
	done; \
	exit $$failed

format: setup  ## Format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove environments and caches (keeps data/)
	rm -rf $(VENV) .venv-runtime .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
