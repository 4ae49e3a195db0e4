#!/usr/bin/env bash
# Make sure that .venv/spark.jsa is there: an archive of the classes that Spark loads, with which
# each of the many JVMs that tests start needs half as much time. Tests run without it, too.
set -euo pipefail
cd "$(dirname "$0")/.."

archive=.venv/spark.jsa
[ "$archive" -nt .venv/.headrace-setup ] && exit 0

echo "setup: archiving Spark's classes for the tests, half a minute once" >&2
work=$PWD/$(mktemp -d .venv/classes.XXXXXX)
trap 'rm -rf "$work"' EXIT
# A JVM crashes where its archive is cut off, so it appears whole.
if JAVA_HOME=$(cat .venv/java-home) PYSPARK_PYTHON=$PWD/.venv/bin/python SPARK_LOCAL_IP=127.0.0.1 \
    SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit=$work/spark.jsa" \
    .venv/bin/python -m headrace.spark.class_archive "$work" >"$work/log" 2>&1 </dev/null &&
    mv "$work/spark.jsa" "$archive"; then
    exit 0
fi

tail -n 5 "$work/log" >&2
echo "setup: Spark's classes could not be archived; tests of Spark take longer without" >&2
exit 1
