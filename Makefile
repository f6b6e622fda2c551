# `make demo` and `make test` need Python 3.11+, make and a C compiler; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test site lint clean

demo: .venv/ready
	$(BIN)/python tools/demo.py

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

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
