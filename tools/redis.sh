#!/usr/bin/env bash
# Make sure that redis-server is there, for the tests and measurements of remote stores; install it
# where this user may. Tests start servers of their own: one that the system runs is left alone.
set -euo pipefail

command -v redis-server >/dev/null && exit 0
echo "setup: no redis-server found; trying to install one" >&2

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

install_redis() {
    if command -v apt-get >/dev/null && may_install; then
        as_root apt-get update -qq || true
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends redis-server
    elif command -v dnf >/dev/null && may_install; then
        as_root dnf install -y -q redis || as_root dnf install -y -q valkey-compat-redis
    elif command -v brew >/dev/null; then
        brew install --quiet redis
    fi
}

install_redis >&2 </dev/null || true
command -v redis-server >/dev/null && exit 0

cat >&2 <<'TEXT'
setup: redis-server is missing and could not be installed from here; the tests in tests/servers fail without it:
  Debian, Ubuntu   sudo apt-get install redis-server
  Fedora, RHEL     sudo dnf install redis      (or valkey-compat-redis)
  macOS            brew install redis
TEXT
exit 1
