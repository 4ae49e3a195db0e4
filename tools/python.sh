#!/usr/bin/env bash
# Print the path of a Python that can run Headrace: 3.11 to 3.14, with PYTHON tried first.
set -euo pipefail

for name in ${PYTHON:-} python3.11 python3.12 python3.13 python3 python3.14 python; do
    # A name on PATH may be a shim without an interpreter behind it, so each is run.
    if found=$("$name" -c 'import sys; assert (3, 11) <= sys.version_info < (3, 15); print(sys.executable)' 2>/dev/null); then
        printf '%s\n' "$found"
        exit 0
    fi
done

cat >&2 <<'TEXT'
setup: no Python 3.11 to 3.14 was found on PATH. Install one, then run make again:
  Debian, Ubuntu   apt-get install python3.11 python3.11-venv   (or python3.12, python3.12-venv)
  Fedora, RHEL     dnf install python3.11
  macOS            brew install python@3.11
An interpreter elsewhere can be named: make setup PYTHON=/path/to/python3.11
TEXT
exit 1
