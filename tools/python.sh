#!/usr/bin/env bash
# Print the path of a Python that can run Headrace: 3.11 to 3.14, with PYTHON tried first. Of several
# with one name on PATH it is the first, unless another is quicker by a tenth: those that were
# compiled without the optimisations of distributions take up to a fifth longer.
set -euo pipefail

wanted='import sys; assert (3, 11) <= sys.version_info < (3, 15)'
# The CPU time of some calls, the least of several tries, and who took it; one that lacks what
# a virtual environment needs is none.
timed='
import time
from pathlib import PurePosixPath
import ensurepip, lzma, sqlite3, ssl, venv

def work(n):
    return n if n < 2 else work(n - 1) + work(n - 2)

def taken():
    begin = time.process_time()
    work(18)
    for n in range(500):
        str(PurePosixPath("a") / str(n)), dict(zip("abc", range(n, n + 3)))
    return time.process_time() - begin

print(min(taken() for _ in range(9)), sys.executable)
'
quickest='NR == 1 || $1 < 0.9 * least { least = $1; path = substr($0, index($0, " ") + 1) } END { print path }'

for name in ${PYTHON:-} python3.11 python3.12 python3.13 python3 python3.14 python; do
    # A name on PATH may be a shim without an interpreter behind it, so each is run.
    if found=$("$name" -c "$wanted; print(sys.executable)" 2>/dev/null); then
        if [ "$name" != "${PYTHON:-}" ]; then
            chosen=$(type -ap "$name" | while read -r one; do
                "$one" -c "$wanted$timed" 2>/dev/null || true
            done | awk "$quickest")
            [ "${chosen:-$found}" = "$found" ] ||
                echo "setup: $chosen is quicker than $found; PYTHON=$found takes that" >&2
        fi
        printf '%s\n' "${chosen:-$found}"
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
