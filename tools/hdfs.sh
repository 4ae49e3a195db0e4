#!/usr/bin/env bash
# Make sure that .venv/jars/hdfs-VERSION has HDFS's NameNode and DataNode, which tests start with the
# other jars of PySpark; fetched by the client of Maven repositories that comes with PySpark. What has
# another hash is not used.
set -euo pipefail
cd "$(dirname "$0")/.."

name=hadoop-client-minicluster
version=3.5.0
hash=06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c
folder=${1:-.venv/jars}
jars=$folder/hdfs-$version

[ -e "$jars/$name-$version.jar" ] && exit 0
echo "setup: fetching HDFS, 56 MB" >&2
mkdir -p "$folder"
# What is cut off, or fetched by two at a time, is never in place: the folder appears whole.
fetched=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$fetched"' EXIT
cat >"$fetched/wanted.xml" <<END
<ivy-module version="2.0"><info organisation="headrace" module="tests"/><dependencies>
  <dependency org="org.apache.hadoop" name="$name" rev="$version" transitive="false"/>
</dependencies></ivy-module>
END
python=${PYTHON_BIN:-.venv/bin/python}
spark=$("$python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
java=$(PYTHON_BIN=$python tools/java.sh)/bin/java
if "$java" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
    -Dsun.net.client.defaultConnectTimeout=10000 -Dsun.net.client.defaultReadTimeout=30000 \
    -jar "$spark"/jars/ivy-*.jar -warn -cache "$fetched/cache" -m2compatible \
    -ivy "$fetched/wanted.xml" -types jar -retrieve "$fetched/jars/[artifact]-[revision].[ext]" \
    >/dev/null </dev/null \
    && echo "$hash  $fetched/jars/$name-$version.jar" | sha256sum --check --status --strict; then
    mv -T "$fetched/jars" "$jars" 2>/dev/null || true # another run was first
fi
[ -e "$jars/$name-$version.jar" ] && exit 0

echo "setup: HDFS could not be fetched; tests/servers/test_hdfs_storage.py fails without it" >&2
exit 1
