#!/usr/bin/env bash
# Make sure that .venv/jars/delta-VERSION has Delta's jars for Spark, with which a test reads a
# table; they are fetched by the client of Maven repositories that comes with PySpark.
set -euo pipefail
cd "$(dirname "$0")/.."

# Made for Spark 4.2; there is none yet for the Spark that requirements.lock has.
version=4.4.0
names=(delta-spark_4.2_2.13 delta-storage delta-kernel-api delta-kernel-defaults delta-kernel-unitycatalog)
folder=${1:-.venv/jars}
jars=$folder/delta-$version

all_in() {
    for name in "${names[@]}"; do
        [ -e "$1/$name-$version.jar" ] || return 1
    done
}

all_in "$jars" && exit 0
echo "setup: fetching Delta's jars for Spark" >&2
mkdir -p "$folder"
# What is cut off, or fetched by two at a time, is never in place: the folder appears whole.
fetched=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$fetched"' EXIT
{
    echo '<ivy-module version="2.0"><info organisation="headrace" module="tests"/><dependencies>'
    for name in "${names[@]}"; do
        echo "<dependency org=\"io.delta\" name=\"$name\" rev=\"$version\" transitive=\"false\"/>"
    done
    echo '</dependencies></ivy-module>'
} >"$fetched/wanted.xml"
python=${PYTHON_BIN:-.venv/bin/python}
spark=$("$python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
java=$(PYTHON_BIN=$python tools/java.sh)/bin/java
if "$java" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
    -Dsun.net.client.defaultConnectTimeout=10000 -Dsun.net.client.defaultReadTimeout=30000 \
    -jar "$spark"/jars/ivy-*.jar -warn -cache "$fetched/cache" -m2compatible \
    -ivy "$fetched/wanted.xml" -types jar -retrieve "$fetched/jars/[artifact]-[revision].[ext]" \
    >&2 </dev/null && all_in "$fetched/jars"; then
    all_in "$jars" || rm -rf "$jars"
    mv -T "$fetched/jars" "$jars" 2>/dev/null || true # another run was first
fi
all_in "$jars" && exit 0

echo "setup: Delta's jars could not be fetched; the test that reads a table of Delta by Spark fails without them" >&2
exit 1
