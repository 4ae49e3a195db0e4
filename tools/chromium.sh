#!/usr/bin/env bash
# Make sure that a Chromium is there, which tests/browser drives; install the system's own where this
# user may. Playwright's download of browsers is not used.
set -euo pipefail

found() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
}

found >/dev/null && exit 0
echo "setup: no chromium found; trying to install one" >&2

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

install_chromium() {
    if command -v apt-get >/dev/null && may_install; then
        as_root apt-get update -qq || true
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core
    elif command -v dnf >/dev/null && may_install; then
        as_root dnf install -y -q chromium dejavu-sans-fonts
    fi
}

install_chromium >&2 </dev/null || true
found >/dev/null && exit 0

cat >&2 <<'TEXT'
setup: chromium is missing and could not be installed from here; the tests in tests/browser fail without it:
  Debian           sudo apt-get install chromium
  Fedora, RHEL     sudo dnf install chromium
TEXT
exit 1
