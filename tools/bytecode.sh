#!/usr/bin/env bash
# Compile Headrace, its libraries and its tests once, and make the tables that Hypothesis draws texts
# from: else each of the processes that share the tests out does.
[ -e .venv/bytecode ] && exit 0
python=(env PYTHONDONTWRITEBYTECODE= .venv/bin/python)
"${python[@]}" -m pytest -qq --collect-only -p no:cacheprovider tests --ignore=tests/matrix >/dev/null 2>&1
"${python[@]}" -c 'from hypothesis import strategies; strategies.text().validate()' && touch .venv/bytecode
