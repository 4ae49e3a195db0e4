#!/usr/bin/env bash
# Make sure that .venv/jars/registry-VERSION has a schema registry, which tests start; it is fetched
# by the client of Maven repositories that comes with PySpark. What has another hash is not used.
set -euo pipefail
cd "$(dirname "$0")/.."

name=apicurio-registry-app
version=2.6.13.Final
hash=3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba
folder=${1:-.venv/jars}
programs=$folder/registry-$version

[ -e "$programs/$name-$version-runner.jar" ] && exit 0
echo "setup: fetching a schema registry, 142 MB" >&2
mkdir -p "$folder"
# What is cut off, or fetched by two at a time, is never in place: the folder appears whole.
fetched=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$fetched"' EXIT
cat >"$fetched/wanted.xml" <<END
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="headrace" module="tests"/>
  <dependencies><dependency org="io.apicurio" name="$name" rev="$version" transitive="false">
    <artifact name="$name" type="tar.gz" ext="tar.gz" m:classifier="all"/>
  </dependency></dependencies>
</ivy-module>
END
python=${PYTHON_BIN:-.venv/bin/python}
spark=$("$python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
java=$(PYTHON_BIN=$python tools/java.sh)/bin/java
if "$java" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
    -Dsun.net.client.defaultConnectTimeout=10000 -Dsun.net.client.defaultReadTimeout=30000 \
    -jar "$spark"/jars/ivy-*.jar -warn -cache "$fetched/cache" -m2compatible \
    -ivy "$fetched/wanted.xml" -types tar.gz -retrieve "$fetched/[artifact].[ext]" \
    >/dev/null </dev/null && echo "$hash  $fetched/$name.tar.gz" | sha256sum --check --status --strict; then
    mkdir "$fetched/programs"
    tar -xzf "$fetched/$name.tar.gz" -C "$fetched/programs"
    mv -T "$fetched/programs" "$programs" 2>/dev/null || true # another run was first
fi
[ -e "$programs/$name-$version-runner.jar" ] && exit 0

echo "setup: the schema registry could not be fetched; tests/servers/test_kafka_formats.py fails without it" >&2
exit 1
