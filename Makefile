# Three commands do everything on a fresh machine with Python 3.11+ and make:
#   make demo       the main job on an embedded default
#   make test       style, types, floors and the fast tests
#   make test-all   the same with the slow tests, and those with verl and vLLM: what CI runs
PYTHON ?= python3
UV ?= $(shell command -v uv 2>/dev/null)  # make UV= installs with pip all the same; uv does not read pip's own settings
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VERL_VENV ?= .venv-verl
VERL_STAMP := $(VERL_VENV)/.installed
VLLM_VENV ?= .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
# Python's own cache of compiled modules, in each environment, whatever the shell says: without it every process that a test starts
# compiles torch and all the others anew, and spends twice the time on it.
unexport PYTHONDONTWRITEBYTECODE
CODE := src tests tests_verl tests_vllm benchmarks examples docs_tools

ifneq ($(strip $(UV)),)
new_venv = $(UV) venv -q --allow-existing --seed --python $(PYTHON) $(1)
install = $(UV) pip install -q --python $(1)/bin/python
else
new_venv = $(PYTHON) -m venv $(1)
install = $(1)/bin/pip install -q --no-compile
endif

COMPILED := $(VENV)/.compiled

.PHONY: test test-all other-tests test-slow test-verl test-vllm mutants demo docs reference results lint format clean browser

# The stamp is touched only after a whole install, so an interrupted one is simply done again. Modules are compiled as they are
# imported: of some 56,000 in the three environments most never are.
$(STAMP): pyproject.toml constraints/cpu.txt
	$(call new_venv,$(VENV))
	$(call install,$(VENV)) -c constraints/cpu.txt torch
	$(call install,$(VENV)) -c constraints/cpu.txt -e '.[dev]'
	touch $@

# verl pins another transformers: it has an environment of its own, and our plug-in lives in it without our dependencies.
$(VERL_STAMP): pyproject.toml constraints/verl.txt
	$(call new_venv,$(VERL_VENV))
	$(call install,$(VERL_VENV)) -c constraints/verl.txt torch
	$(call install,$(VERL_VENV)) -c constraints/verl.txt verl==0.9.1 TransferQueue cachetools uvicorn fastapi pytest
	$(call install,$(VERL_VENV)) --no-deps -e .
	touch $@

# vLLM's CPU build, the real engine on any Linux: it too has an environment of its own.
$(VLLM_STAMP): pyproject.toml constraints/vllm.txt
	$(call new_venv,$(VLLM_VENV))
	$(call install,$(VLLM_VENV)) -c constraints/vllm.txt torch
	$(call install,$(VLLM_VENV)) --no-deps -r constraints/vllm.txt
	$(call install,$(VLLM_VENV)) --no-deps -e .
	touch $@

# What the tests import, and the tests with pytest's asserts, compiled on the core that mypy leaves free: else each worker of the
# tests would compile it all.
$(COMPILED): $(STAMP)
	HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1 $(BIN)/pytest -qq --collect-only -n 0 tests >/dev/null
	touch $@

demo: $(STAMP)
	HF_HUB_OFFLINE=1 $(BIN)/sage-rlvr demo

docs: $(STAMP)
	$(BIN)/mkdocs build --strict --site-dir build/site

# Flags, settings and refusals as the code has them, into docs/reference.
reference: $(STAMP)
	$(BIN)/python -m docs_tools.reference

# The pages of results and their figures, from the committed records: no change in git unless those changed.
results: $(STAMP)
	$(BIN)/python benchmarks/results.py

TESTS := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 12

ONLY_FAST := -m "not slow"

# What each change is checked by. What is slow (real processes with imports of their own, several at once, whole grids) has a
# faster test of the same here, and runs in test-all.
test:
	$(MAKE) -j 3 lint browser $(COMPILED)
	$(TESTS) $(ONLY_FAST) tests

# The slow ones in the same run: one collection, and what a file's tests share is made once. Beside them, one after the other, vLLM's
# and verl's environments and tests: whoever waits, for the network or another process, leaves the processor to the rest. What those
# tests say comes when they have ended.
test-all:
	$(MAKE) -j 2 test other-tests ONLY_FAST=

other-tests:
	@mkdir -p build; $(MAKE) -j 1 -k test-vllm test-verl >build/other-tests.log 2>&1; code=$$?; cat build/other-tests.log; exit $$code

test-slow: $(STAMP)
	$(TESTS) -m slow tests

test-verl: $(VERL_STAMP)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(VERL_VENV)/bin/python -m pytest -q tests_verl

ifeq ($(shell uname -s),Linux)
test-vllm: $(VLLM_STAMP)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1 $(VLLM_VENV)/bin/python -m pytest -q tests_vllm
else
test-vllm:
	@echo "tests_vllm is skipped: vLLM's CPU build is for Linux"
endif

# Mistakes made on purpose in copies of the source, each of which some test must notice (tests/mutants/). Minutes; not part of test-all.
mutants: $(STAMP) $(VERL_STAMP)
	$(BIN)/python -m tests.mutants.run tests $(ONLY)
	$(VERL_VENV)/bin/python -m tests.mutants.run tests_verl $(ONLY)

# The report page is tested in Chromium: taken from Debian where we may, else those tests skip and say so.
browser:
	@command -v chromium >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && apt-get install -y -qq chromium chromium-driver >/dev/null; } || true

lint: $(STAMP)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

clean:
	rm -rf $(VENV) $(VERL_VENV) $(VLLM_VENV) .uv build dist .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
