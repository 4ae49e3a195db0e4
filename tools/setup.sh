#!/usr/bin/env bash
# Make .venv hold exactly what requirements.lock names, with Headrace installed from src.
# Safe to repeat: when nothing has changed it does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/.headrace-setup

# of_lock PACKAGE: its lines of the lock, with their hashes.
of_lock() {
    awk -v of="$1==" '/^[^ ]/ { found = index($0, of) == 1 } found' requirements.lock
}

digest() {
    cat requirements.lock pyproject.toml tools/setup.sh | cksum
    pwd -P
}

if [ -f "$stamp" ] && [ "$(digest)" = "$(cat "$stamp")" ] \
    && [ -x "$(cat .venv/java-home 2>/dev/null)/bin/java" ] && .venv/bin/python -c ''; then
    exit 0
fi

# Two verbs started at once share one installation.
if command -v flock >/dev/null && [ -z "${HEADRACE_SETUP_LOCKED:-}" ]; then
    HEADRACE_SETUP_LOCKED=1 exec flock . "$0" "$@"
fi

python=$(tools/python.sh)
if ! .venv/bin/python -m pip --version >/dev/null 2>&1 \
    || [ "$(tail -n 1 "$stamp" 2>/dev/null || pwd -P)" != "$(pwd -P)" ]; then
    rm -rf .venv
    echo "setup: making .venv with $("$python" --version)"
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        "$python" -m venv .venv
    elif command -v uv >/dev/null; then
        uv venv --quiet --seed --python "$python" .venv
    else
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        echo "setup: $python cannot make virtual environments: its ensurepip is missing." >&2
        echo "  Debian and Ubuntu keep it apart: apt-get install python$version-venv, then run make again" >&2
        exit 1
    fi
fi
rm -f "$stamp"

PYTHON_BIN=.venv/bin/python tools/java.sh >.venv/java-home.new
mv .venv/java-home.new .venv/java-home

echo "setup: installing $(grep -c '==' requirements.lock) locked packages, a few minutes the first time"
pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input --quiet)
# uv needs half of the time, for it compiles nothing: what is used is compiled when it is first
# imported. Where only pip is configured for what leads to the packages, pip installs them.
if ! { "${pip[@]}" install --require-hashes --requirement <(of_lock uv) &&
    .venv/bin/python -m uv pip install --quiet --python .venv/bin/python --require-hashes \
        --requirement requirements.lock; }; then
    echo "setup: uv could not install them; trying pip" >&2
    "${pip[@]}" install --use-pep517 --require-hashes --requirement requirements.lock
fi
"${pip[@]}" install --no-deps --no-build-isolation --editable .
digest >"$stamp"
echo "setup: ready, with Java in $(cat .venv/java-home)"
