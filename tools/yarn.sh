#!/usr/bin/env bash
# Make sure that .venv/jars/yarn-VERSION has what YARN's ResourceManager needs beside the jars of
# tools/hdfs.sh and PySpark: the BouncyCastle of that version. What has another hash is not used.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.82
folder=${1:-.venv/jars}
jars=$folder/yarn-$version
names="bcprov bcpkix bcutil"
hashes="14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce bcprov
bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63 bcpkix
4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d bcutil"

tools/hdfs.sh "$folder"
[ -d "$jars" ] && exit 0
echo "setup: fetching what YARN needs, 10 MB" >&2
# What is cut off, or fetched by two at a time, is never in place: the folder appears whole.
fetched=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$fetched"' EXIT
{
    echo '<ivy-module version="2.0"><info organisation="headrace" module="tests"/><dependencies>'
    for name in $names; do
        echo "<dependency org=\"org.bouncycastle\" name=\"$name-jdk18on\" rev=\"$version\" transitive=\"false\"/>"
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
    >/dev/null </dev/null \
    && (cd "$fetched/jars" && sed "s/ \(.*\)/  \1-jdk18on-$version.jar/" <<<"$hashes" \
        | sha256sum --check --status --strict); then
    mv -T "$fetched/jars" "$jars" 2>/dev/null || true # another run was first
fi
[ -d "$jars" ] && exit 0

echo "setup: YARN's jars could not be fetched; tests/spark/test_yarn.py fails without them" >&2
exit 1
