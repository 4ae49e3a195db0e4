#!/usr/bin/env bash
# Make sure that .venv/jars has archives of the classes that Kafka, HDFS and the schema registry load,
# with which each Java that tests start for them needs half as much time. Tests run without, too.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
for name in kafka registry hadoop-namenode hadoop-datanode; do
    [ ".venv/jars/$name.jsa" -nt .venv/.headrace-setup ] || missing+=("$name")
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "setup: archiving the classes of Kafka, HDFS and the registry for the tests, once" >&2
work=$PWD/$(mktemp -d .venv/classes.XXXXXX)
trap 'rm -rf "$work"' EXIT
# A JVM crashes where its archive is cut off, so each appears whole.
if JAVA_HOME=$(cat .venv/java-home) .venv/bin/python tools/server_classes.py "$work" \
    >"$work/log" 2>&1 </dev/null && mv "$work"/archives/*.jsa .venv/jars/; then
    exit 0
fi

tail -n 5 "$work/log" >&2
echo "setup: classes could not be archived; tests of Kafka and HDFS take longer without" >&2
exit 1
