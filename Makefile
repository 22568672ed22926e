# `make serve` and `make test` share one environment, .venv, and return quickly when it is up to date.
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
COMMA := ,
# Empty is as if unset: where it is set, every process would compile all that it imports again.
export PYTHONDONTWRITEBYTECODE :=
# GPU=1 takes faiss-gpu instead of faiss-cpu: both install into one folder, so the other is removed first.
FAISS := $(if $(GPU),gpu,cpu)
SERVE_EXTRAS := $(if $(GPU),[gpu])
TEST_EXTRAS := $(if $(GPU),[gpu$(COMMA)dev],[dev])
SERVING := $(VENV)/.serving-$(FAISS)
TESTING := $(VENV)/.testing-$(FAISS)

# Two jobs at once, each printed when it ends; an old make prints them mixed.
BOTH := $(MAKE) --no-print-directory --jobs 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# A file's tests stay in one process: they share its servers and models. Files come in the order of tests/conftest.py.
ON_ALL_CORES := --numprocesses logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: help serve test test-all check test-unmarked install lint format dist clean
.DEFAULT_GOAL := help

help:
	@echo "make serve     set up, add the sample book, serve on http://$(HOST):$(PORT)  (HOST=, PORT=, GPU=1, LM=1)"
	@echo "make test      set up, run the tests (no GPU needed)"
	@echo "make check     lint, types, import rules and the quick tests: the everyday loop"
	@echo "make test-all  also the slow tests"
	@echo "make install   set up alone, test tools included"
	@echo "make lint      ruff, mypy, import-linter"
	@echo "make format    ruff, writing"
	@echo "make dist      build the sdist and the wheel"

# LM=1 fetches a language model (1.1 GB) and answers with it; without room for it, serves without.
MODEL := qwen2.5-coder-1.5b

serve: $(SERVING)
	@$(if $(LM),if $(BIN)/coalesce models get $(MODEL); then set -- --generator local --model $(MODEL); \
	else echo "serving without a language model: answers are the books' own sentences"; fi;) \
	exec $(BIN)/coalesce serve --host "$(HOST)" --port "$(PORT)" "$$@"

test: install
	@$(BIN)/python -m pytest $(ON_ALL_CORES) -m "not slow"

test-all: install
	@$(BIN)/python -m pytest --timeout 3600 --hypothesis-profile thorough

check: install
	@$(BOTH) test-unmarked lint

test-unmarked:
	@$(BIN)/python -m pytest -q $(ON_ALL_CORES) -m "not integration and not browser and not gpu and not slow"

install: $(TESTING)

# pip brings faiss-cpu with the package; with GPU=1 faiss-gpu takes its place, and the other way round without.
# Python compiles what it imports, once (see the top): compiling all that pip brings would take a third of the installation.
define install_package
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Coalesce needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name another with: make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || { echo "making the environment $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the pinned packages (the first time takes some minutes)"
	@$(PIP) install --no-compile --constraint constraints.txt --editable "$(1)"
	@if [ "$(FAISS)" = gpu ]; then \
		$(PIP) uninstall --quiet --yes faiss-cpu; \
		$(PIP) install --quiet --force-reinstall --no-deps --constraint constraints.txt faiss-gpu; \
		$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "GPU=1 was asked for, but torch sees no CUDA device: check the driver with nvidia-smi, or run make serve without GPU=1")'; \
	elif $(PIP) show --quiet faiss-gpu 2>/dev/null; then \
		$(PIP) uninstall --quiet --yes faiss-gpu; \
		$(PIP) install --quiet --force-reinstall --no-deps --constraint constraints.txt faiss-cpu; \
	fi
	@rm -f $(VENV)/.serving-* $(VENV)/.testing-*
endef

$(SERVING): pyproject.toml constraints.txt
	$(call install_package,.$(SERVE_EXTRAS))
	@touch $@

$(TESTING): pyproject.toml constraints.txt
	$(call install_package,.$(TEST_EXTRAS))
	@touch $(SERVING) $@

lint: install
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: install
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

dist: install
	@$(BIN)/python -m build

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
