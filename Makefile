# Two commands do everything on a fresh machine with Python 3.11+ and make:
#   make demo   the main job on an embedded default
#   make test   style, types, floors and every test
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: test demo lint format clean browser

# The stamp is touched only after a whole install, so an interrupted one is simply done again.
$(STAMP): pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints/cpu.txt torch
	$(BIN)/pip install -q -c constraints/cpu.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/sage-rlvr lab --out runs/lab

test: lint browser
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1 $(BIN)/pytest -n 2 --dist loadfile tests

# The report page is tested in Chromium: taken from Debian where we may, else those tests skip and say so.
browser:
	@command -v chromium >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && apt-get install -y -qq chromium chromium-driver >/dev/null; } || true

lint: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/ruff check --fix src tests benchmarks examples

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
