# `make demo` and `make test` need Python 3.11+, make and a C compiler; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
# Tests wait for half of their time, for processes and deadlines: one more worker than cores, and no more than memory has room for.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(len(os.sched_getaffinity(0)), 7) + 1)')

.PHONY: demo test site lint clean

demo: .venv/compiled
	$(BIN)/python tools/demo.py

test: .venv/ready
	$(MAKE) --jobs 2 .venv/compiled lint
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

site: .venv/compiled
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --site-dir build/site

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[dev,mpi]'
	touch $@

# Bytecode of what has been installed, which pip would make with one core, and before anything else. Some packages hold files of another Python.
.venv/compiled: .venv/ready
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	touch $@

clean:
	rm -rf .venv demo-run
