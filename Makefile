# `make demo` and `make test` need Python 3.11+, make and a C compiler; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
# Tests wait for half of their time, for processes and deadlines: one more worker than cores, and no more than memory has room for.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(len(os.sched_getaffinity(0)), 7) + 1)')

.PHONY: demo test site lint clean

demo: .venv/ready
	$(BIN)/python tools/demo.py

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

site: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --site-dir build/site

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,mpi]'
	touch $@

clean:
	rm -rf .venv demo-run
