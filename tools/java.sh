#!/usr/bin/env bash
# Print the home of a Java 17 or later for Spark; install one where this user may.
# Nothing is printed but the path; what happens is told on standard error.
set -euo pipefail

# major BINARY: the feature version of a java binary, 0 when it does not run.
major() {
    local version
    version=$("$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\)[.0-9]*.*/\1/p' | head -n 1) || true
    printf '%s\n' "${version:-0}"
}

# home_of BINARY: the folder that Spark wants as JAVA_HOME.
home_of() {
    local binary
    binary=$("$PYTHON_BIN" -c 'import os, sys; print(os.path.realpath(sys.argv[1]))' "$1")
    dirname "$(dirname "$binary")"
}

find_java() {
    local binary
    for binary in \
        ${JAVA_HOME:+"$JAVA_HOME/bin/java"} \
        "$(command -v java || true)" \
        /usr/lib/jvm/*/bin/java \
        /opt/homebrew/opt/openjdk*/bin/java \
        /usr/local/opt/openjdk*/bin/java \
        /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java; do
        if [ -x "$binary" ] && [ "$(major "$binary")" -ge 17 ]; then
            home_of "$binary"
            return 0
        fi
    done
    return 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

# The first package that the system knows, of those given.
install_java() {
    if command -v apt-get >/dev/null && may_install; then
        as_root apt-get update -qq || true
        local package
        for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
            as_root env DEBIAN_FRONTEND=noninteractive \
                apt-get install -y -qq --no-install-recommends "$package" && return 0
        done
    elif command -v dnf >/dev/null && may_install; then
        as_root dnf install -y -q java-17-openjdk-headless && return 0
        as_root dnf install -y -q java-21-openjdk-headless && return 0
    elif command -v brew >/dev/null; then
        brew install --quiet openjdk@17 && return 0
    fi
    return 1
}

PYTHON_BIN=${PYTHON_BIN:-python3}
find_java && exit 0
echo "setup: no Java 17 or later found; trying to install one" >&2
install_java >&2 </dev/null || true
find_java && exit 0

cat >&2 <<'TEXT'
setup: Spark needs Java 17 or later, and it could not be installed from here. Install it, then run make again:
  Debian, Ubuntu   sudo apt-get install openjdk-17-jre-headless   (or openjdk-21-jre-headless)
  Fedora, RHEL     sudo dnf install java-17-openjdk-headless      (or java-21-openjdk-headless)
  macOS            brew install openjdk@17
A Java elsewhere can be named: make setup JAVA_HOME=/path/to/jdk
TEXT
exit 1
