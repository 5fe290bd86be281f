# Two commands do everything on a fresh machine with Python 3.11+ and make:
#   make demo   the main job on an embedded default
#   make test   style, types, floors and every test
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VERL_VENV ?= .venv-verl
VERL_STAMP := $(VERL_VENV)/.installed
VLLM_VENV ?= .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
CODE := src tests tests_verl tests_vllm benchmarks examples docs_tools

.PHONY: test test-verl test-vllm mutants demo docs reference results lint format clean browser

# The stamp is touched only after a whole install, so an interrupted one is simply done again. Modules are compiled as they are
# imported: of some 56,000 in the three environments most never are.
$(STAMP): pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile -c constraints/cpu.txt torch
	$(BIN)/pip install -q --no-compile -c constraints/cpu.txt -e '.[dev]'
	touch $@

# verl pins another transformers: it has an environment of its own, and our plug-in lives in it without our dependencies.
$(VERL_STAMP): pyproject.toml constraints/verl.txt
	$(PYTHON) -m venv $(VERL_VENV)
	$(VERL_VENV)/bin/pip install -q --no-compile -c constraints/verl.txt torch
	$(VERL_VENV)/bin/pip install -q --no-compile -c constraints/verl.txt verl==0.9.1 TransferQueue cachetools uvicorn fastapi pytest
	$(VERL_VENV)/bin/pip install -q --no-compile --no-deps -e .
	touch $@

# vLLM's CPU build, the real engine on any Linux: it too has an environment of its own.
$(VLLM_STAMP): pyproject.toml constraints/vllm.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install -q --no-compile -c constraints/vllm.txt torch
	$(VLLM_VENV)/bin/pip install -q --no-compile --no-deps -r constraints/vllm.txt
	$(VLLM_VENV)/bin/pip install -q --no-compile --no-deps -e .
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

# Two at a time, installs too: each of them keeps one core busy, and only our own tests take two.
test:
	$(MAKE) -j 2 lint test-vllm test-verl browser
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 12 tests

test-verl: $(VERL_STAMP)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(VERL_VENV)/bin/python -m pytest -q tests_verl

ifeq ($(shell uname -s),Linux)
test-vllm: $(VLLM_STAMP)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1 $(VLLM_VENV)/bin/python -m pytest -q tests_vllm
else
test-vllm:
	@echo "tests_vllm is skipped: vLLM's CPU build is for Linux"
endif

# Mistakes made on purpose in copies of the source, each of which some test must notice (tests/mutants/). Minutes; not part of test.
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
	rm -rf $(VENV) $(VERL_VENV) $(VLLM_VENV) build dist .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
