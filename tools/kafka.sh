#!/usr/bin/env bash
# Make sure that .venv/jars/kafka-VERSION has the jars of a Kafka broker, which tests start; they are
# fetched by the client of Maven repositories that comes with PySpark. tools/kafka.jars names each
# jar with its SHA-256; one that differs is not used.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(awk '$2 == "kafka_2.13" { print $3 }' tools/kafka.jars)
folder=${1:-.venv/jars}
jars=$folder/kafka-$version

all_in() {
    [ -d "$1" ] && awk '{ print $4 "  " $2 "-" $3 ".jar" }' tools/kafka.jars \
        | (cd "$1" && sha256sum --check --status --strict 2>/dev/null)
}

all_in "$jars" && exit 0
echo "setup: fetching the jars of a Kafka broker" >&2
mkdir -p "$folder"
# What is cut off, or fetched by two at a time, is never in place: the folder appears whole.
fetched=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$fetched"' EXIT
{
    echo '<ivy-module version="2.0"><info organisation="headrace" module="tests"/><dependencies>'
    while read -r group name revision _; do
        echo "<dependency org=\"$group\" name=\"$name\" rev=\"$revision\" transitive=\"false\"/>"
    done <tools/kafka.jars
    echo '</dependencies></ivy-module>'
} >"$fetched/wanted.xml"
python=${PYTHON_BIN:-.venv/bin/python}
spark=$("$python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
java=$(PYTHON_BIN=$python tools/java.sh)/bin/java
if "$java" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
    -Dsun.net.client.defaultConnectTimeout=10000 -Dsun.net.client.defaultReadTimeout=30000 \
    -jar "$spark"/jars/ivy-*.jar -warn -cache "$fetched/cache" -m2compatible \
    -ivy "$fetched/wanted.xml" -types jar bundle -retrieve "$fetched/jars/[artifact]-[revision].[ext]" \
    >&2 </dev/null && all_in "$fetched/jars"; then
    all_in "$jars" || rm -rf "$jars"
    mv -T "$fetched/jars" "$jars" 2>/dev/null || true # another run was first
fi
all_in "$jars" && exit 0

echo "setup: the jars of a Kafka broker could not be fetched; the tests of Kafka in tests/servers fail without them" >&2
exit 1
