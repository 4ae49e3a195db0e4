#!/usr/bin/env bash
# Make sure that a Chromium is there, which tests/browser drives; install the system's own where this
# user may. Playwright's download of browsers is not used.
set -euo pipefail

found() {
    command -v chromium-headless-shell || command -v chromium || command -v chromium-browser ||
        command -v google-chrome
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

has_lean() {
    command -v apt-cache >/dev/null && apt-cache show chromium-headless-shell >/dev/null 2>&1
}

# The one that has no windows takes a fifth less CPU, so it is installed beside another as well.
command -v chromium-headless-shell >/dev/null && exit 0
found >/dev/null && ! { may_install && has_lean; } && exit 0
echo "setup: no chromium without windows found; trying to install one" >&2

install_chromium() {
    if command -v apt-get >/dev/null && may_install; then
        as_root apt-get update -qq || true
        for package in chromium-headless-shell chromium; do
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
                --no-install-recommends "$package" fonts-dejavu-core && return
        done
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
