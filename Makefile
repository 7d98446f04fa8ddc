# make demo    a whole swarm on this machine, end to end
# make test    the tests; one that fails is played once more, and what it said the first time stands in the summary
# make fast    those that start no network daemons
# make long    the long tests: every kind of trouble, played with real processes
# make check   format, lint, types, layers, and pages that are written from the code
# make bench   the benchmarks
# make audit   known holes in the versions that we pin; needs the internet
#
# Each makes .venv first, once, with the versions of constraints.txt; Python compiles what is used of it.
# Another Python: make PYTHON=python3.12 test

# hundreds of processes start in the tests: each would compile the libraries again, for ten seconds of a core
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test fast long check bench audit

demo: .venv/.installed
	$(BIN)/dipaco-swarm demo

test: .venv/.installed
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder --reruns 1

fast: .venv/.installed
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not swarm"

long: .venv/.installed
	$(BIN)/pytest -m long

check: .venv/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m docs.build --check

bench: .venv/.installed
	$(BIN)/python -m benchmarks.inner
	$(BIN)/python -m benchmarks.reduce
	$(BIN)/python -m benchmarks.joining
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.quality --small

audit: .venv/.installed
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else \
		"dipaco-swarm needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is %d.%d; try: make PYTHON=python3.11 ..." % v[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	@touch $@
