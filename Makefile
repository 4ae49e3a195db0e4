# The verbs of this project. Every one makes sure of .venv first, so each works on a fresh clone.
#   make demo [MODE=stream|bounded]   the main job on a year of real flights; UI=1 shows a dashboard
#   make test [SUITES=...] [ARGS=...] all suites, or SUITES=tests/unit; ARGS go to pytest: ARGS=-x;
#                                     PROCESSES=0 runs them one after the other
#   make check                        format, lint, types, layer order
#   make soak [SUITES=...] [ARGS=...] the unlikely: long schedules, full products, many examples
#   make wheel                        dist/headrace-*.whl, which pip installs anywhere
#   make test-wheels [PYTHONS=...]    that wheel in empty environments of each Python
#   make test-matrix [SPARKS=...]     tests on each PySpark that is supported; Delta and Iceberg
#   make notes [VERSION=...]          release notes of changes/; with a version, into CHANGELOG.md
#   make fmt | docs | bench | steady | jar | lock | clean
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup servers demo test wheel test-wheels test-matrix soak check fmt docs notes bench steady jar lock clean
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
# Java's place is read when a recipe runs, for setup may have just written it. Bytecode is kept: each
# of the many processes that tests start would compile all modules again.
RUN = PYTHONDONTWRITEBYTECODE= JAVA_HOME="$$(cat .venv/java-home)" PYSPARK_PYTHON="$(CURDIR)/$(PY)" $(PY)

# Threads of Polars and Arrow in processes that have a core each would wait for one another; workers
# of Spark have one each as well.
RUN_TESTS = POLARS_MAX_THREADS=1 OMP_NUM_THREADS=1 $(RUN)

# Not folder by folder: the process that shares the tests out would load each one's conftest. Which
# files run first: tests/sharing.py.
SUITES := tests --ignore=tests/matrix
# Processes that share the tests out, a file at a time: one more than the cores of our machines, for
# many tests wait; tests/sharing.py sees to that. 0: one after the other, in this process.
PROCESSES := 3

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -n 11

setup:
	@tools/setup.sh

demo: setup
	@$(RUN) -m headrace.cli.main demo $(if $(MODE),--mode $(MODE)) $(if $(UI),--ui) $(ARGS)

# What tests need besides Python's packages; a test of what could not be had says so. Package managers
# of the system run one after the other.
servers: setup
	@for one in bytecode spark_classes kafka delta registry yarn; do tools/$$one.sh & done; \
		for one in redis postgres node chromium; do tools/$$one.sh; done; wait; true

test: servers
	@$(RUN_TESTS) -m pytest -n $(PROCESSES) --no-loadscope-reorder $(SUITES) $(ARGS)

wheel: setup
	@rm -f dist/headrace-*.whl
	@HEADRACE_REPOSITORY="$(REPOSITORY)" $(PY) -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/headrace-*.whl

PYTHONS := 3.11 3.12 3.13
test-wheels: wheel
	@$(RUN) tools/test_wheels.py $(PYTHONS)

SPARKS := 4.0 4.1 4.2 4.3
test-matrix: setup
	@$(RUN) tools/test_matrix.py $(SPARKS)

# Hours: every schedule, the whole crash matrix, fifty times the examples; one test may take an hour.
soak: SUITES := $(if $(filter command line,$(origin SUITES)),$(SUITES),tests/sim tests/model tests/contract tests/spark)
soak: PROCESSES := 2
soak: setup
	@SOAK=all $(RUN_TESTS) -m pytest -n $(PROCESSES) --no-loadscope-reorder \
		--timeout=3600 -o faulthandler_timeout=3600 $(SUITES) $(ARGS)

check: setup
	@$(PY) -m ruff format --check --quiet . || { echo "check: run make fmt" >&2; exit 1; }
	@$(PY) -m ruff check --quiet .
	@$(PY) -m mypy
	@$(PY) -m pytest --quiet tests/docs/test_layers.py

fmt: setup
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

docs: setup
	@PYTHONPATH=src $(PY) tools/reference.py
	@PYTHONPATH=src $(PY) tools/commands.py
	@PYTHONPATH=src $(PY) tools/monitoring.py

notes: setup
	@$(PY) tools/notes.py $(VERSION)

bench: setup
	@$(RUN) -m headrace.cli.main bench readwrite $(ARGS)

steady: setup
	@$(RUN) bench/soak.py $(ARGS)

jar: setup
	@$(RUN) tools/spark_jar.py

lock: setup
	@$(PY) -m uv pip compile pyproject.toml --extra demo --extra dev --universal \
		--generate-hashes --no-emit-index-url --no-header --quiet \
		--output-file requirements.lock $(ARGS)
	@tools/setup.sh

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
