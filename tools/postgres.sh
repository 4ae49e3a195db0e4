#!/usr/bin/env bash
# Make sure that the programs of a PostgreSQL server are there, for the tests of sinks; install them
# where this user may. Tests start servers of their own: one that the system runs is left alone.
set -euo pipefail

found() {
    command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}

found && exit 0
echo "setup: no PostgreSQL server found; trying to install one" >&2

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

install_postgres() {
    if command -v apt-get >/dev/null && may_install; then
        as_root apt-get update -qq || true
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends postgresql
    elif command -v dnf >/dev/null && may_install; then
        as_root dnf install -y -q postgresql-server
    elif command -v brew >/dev/null; then
        brew install --quiet postgresql
    fi
}

install_postgres >&2 </dev/null || true
found && exit 0

cat >&2 <<'TEXT'
setup: PostgreSQL is missing and could not be installed from here; the tests in tests/servers fail without it:
  Debian, Ubuntu   sudo apt-get install postgresql
  Fedora, RHEL     sudo dnf install postgresql-server
  macOS            brew install postgresql
TEXT
exit 1
