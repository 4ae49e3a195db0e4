#!/usr/bin/env bash
# Make sure that Node is there, for the client of docs/guide/pipes.md that is written in it; install it
# where this user may.
set -euo pipefail

command -v node >/dev/null && exit 0
echo "setup: no node found; trying to install one" >&2

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

install_node() {
    if command -v apt-get >/dev/null && may_install; then
        as_root apt-get update -qq || true
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends nodejs
    elif command -v dnf >/dev/null && may_install; then
        as_root dnf install -y -q nodejs
    elif command -v brew >/dev/null; then
        brew install --quiet node
    fi
}

install_node >&2 </dev/null || true
command -v node >/dev/null && exit 0

cat >&2 <<'TEXT'
setup: node is missing and could not be installed from here; a test of tests/docs/test_pipes_page.py fails without it:
  Debian, Ubuntu   sudo apt-get install nodejs
  Fedora, RHEL     sudo dnf install nodejs
  macOS            brew install node
TEXT
exit 1
