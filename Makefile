# Two commands on a fresh machine with Python 3.11+: `make demo` and `make test`. Each makes the environment it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test format clean

demo: $(VENV)/.sim
	$(BIN)/gca simulate demo

test: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info

# constraints.txt keeps PyTorch at a release with a small CPU build; your own environment may use a newer one.
$(VENV)/.sim: pyproject.toml constraints.txt setup.py $(wildcard edge_client/kernel/*.[ch])
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gca needs Python 3.11 or newer; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[sim]'
	touch $@

$(VENV)/.dev: $(VENV)/.sim
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
