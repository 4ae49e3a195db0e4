# The verbs of this project. Every one makes sure of .venv first, so each works on a fresh clone.
#   make demo [MODE=stream|bounded]   the main job on a year of real flights
#   make test [SUITES=...] [ARGS=...] all suites, or SUITES=tests/unit; ARGS go to pytest: ARGS=-x
#   make check                        format, lint, types, layer order
#   make fmt | docs | bench | soak | lock | clean
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test check fmt docs bench soak lock clean
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
# Read when a recipe runs, for setup may have just written it.
RUN = JAVA_HOME="$$(cat .venv/java-home)" PYSPARK_PYTHON="$(CURDIR)/$(PY)" $(PY)

# Cheap suites first; those that do not exist are left out.
SUITES := $(wildcard $(addprefix tests/,docs unit contract model sim servers spark cluster))

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -n 5

setup:
	@tools/setup.sh

demo: setup
	@$(RUN) -m headrace.cli.main demo $(if $(MODE),--mode $(MODE)) $(ARGS)

test: setup
	@tools/redis.sh || true
	@tools/postgres.sh || true
	@$(RUN) -m pytest $(SUITES) $(ARGS)

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

bench: setup
	@$(RUN) -m headrace.cli.main bench readwrite $(ARGS)

soak: setup
	@$(RUN) bench/soak.py $(ARGS)

lock: setup
	@$(PY) -m uv pip compile pyproject.toml --extra demo --extra dev --universal \
		--generate-hashes --no-emit-index-url --no-header --quiet \
		--output-file requirements.lock $(ARGS)
	@tools/setup.sh

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
