# Two commands matter: `make serve` and `make test`. Both use one environment, .venv, and return quickly when it is up to date.
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
# GPU=1 takes faiss-gpu instead of faiss-cpu; the two share one folder, so the other is removed first.
FAISS := $(if $(GPU),gpu,cpu)
STAMP := $(VENV)/.installed-$(FAISS)

.PHONY: serve test test-all install lint format clean
.DEFAULT_GOAL := help

help:
	@echo "make serve     set up, add the sample book, serve on http://$(HOST):$(PORT)  (HOST=, PORT=, GPU=1)"
	@echo "make test      set up, run the tests (no GPU needed)"
	@echo "make test-all  also the slow tests"
	@echo "make lint      ruff, mypy, import-linter"

serve: install
	@exec $(BIN)/coalesce serve --host "$(HOST)" --port "$(PORT)"

# The page's toolkit keeps its state in the process, so the browser tests have one of their own.
test: install
	@$(BIN)/python -m pytest -m "not slow and not browser"
	@$(BIN)/python -m pytest -m "browser and not slow"

test-all: install
	@$(BIN)/python -m pytest -m "not browser"
	@$(BIN)/python -m pytest -m browser

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Coalesce needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name another with: make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || { echo "making the environment $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the pinned packages (the first time takes some minutes)"
	@if [ "$(FAISS)" = gpu ]; then $(BIN)/python -m pip uninstall --quiet --yes faiss-cpu; else $(BIN)/python -m pip uninstall --quiet --yes faiss-gpu; fi 2>/dev/null || true
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --constraint constraints.txt --editable ".[$(FAISS),dev]"
	@if [ "$(FAISS)" = gpu ]; then \
		$(BIN)/python -m pip install --disable-pip-version-check --quiet --force-reinstall --no-deps --constraint constraints.txt faiss-gpu; \
		$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "GPU=1 was asked for, but torch sees no CUDA device: check the driver with nvidia-smi, or run make serve without GPU=1")'; \
	fi
	@rm -f $(VENV)/.installed-*
	@touch $(STAMP)

lint: install
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: install
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
