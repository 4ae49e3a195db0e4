#!/usr/bin/env bash
# Make sure that .venv/jars has Delta's jars for Spark, with which a test reads a table; they are
# fetched by the client of Maven repositories that comes with PySpark. Without them it is left out.
set -euo pipefail
cd "$(dirname "$0")/.."

# Made for Spark 4.2; there is none yet for the Spark that requirements.lock has.
version=4.4.0
names=(delta-spark_4.2_2.13 delta-storage delta-kernel-api delta-kernel-defaults delta-kernel-unitycatalog)
folder=${1:-.venv/jars}

found() {
    for name in "${names[@]}"; do
        [ -e "$folder/$name-$version.jar" ] || return 1
    done
}

found && exit 0
echo "setup: fetching Delta's jars for Spark" >&2
mkdir -p "$folder"
wanted=$(mktemp)
trap 'rm -f "$wanted"' EXIT
{
    echo '<ivy-module version="2.0"><info organisation="headrace" module="tests"/><dependencies>'
    for name in "${names[@]}"; do
        echo "<dependency org=\"io.delta\" name=\"$name\" rev=\"$version\" transitive=\"false\"/>"
    done
    echo '</dependencies></ivy-module>'
} >"$wanted"
python=${PYTHON_BIN:-.venv/bin/python}
spark=$("$python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
java=$(PYTHON_BIN=$python tools/java.sh)/bin/java
"$java" -Dsun.net.client.defaultConnectTimeout=10000 -Dsun.net.client.defaultReadTimeout=30000 \
    -jar "$spark"/jars/ivy-*.jar -warn -cache "$folder/cache" -m2compatible -ivy "$wanted" \
    -types jar -retrieve "$folder/[artifact]-[revision].[ext]" >&2 </dev/null || true
found && exit 0

echo "setup: Delta's jars could not be fetched; the test that reads a table of Delta by Spark is left out" >&2
exit 1
