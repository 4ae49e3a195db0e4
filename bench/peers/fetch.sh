#!/usr/bin/env bash
# Make sure that .venv/jars/peers has the jars and classes of Kafka Streams that bench/kafka.py runs
# beside Headrace: by the client of Maven repositories that comes with PySpark, and by javac.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/kafka.sh
version=$(awk '$2 == "kafka_2.13" { print $3 }' tools/kafka.jars)
broker=.venv/jars/kafka-$version
peers=.venv/jars/peers-$version
java=$(tools/java.sh)
if [ ! -d "$peers" ]; then
    fetched=$(mktemp -d .venv/jars/fetch.XXXXXX)
    trap 'rm -rf "$fetched"' EXIT
    cat >"$fetched/wanted.xml" <<END
<ivy-module version="2.0"><info organisation="headrace" module="peers"/><dependencies>
<dependency org="org.apache.kafka" name="kafka-streams" rev="$version" transitive="false"/>
<dependency org="org.rocksdb" name="rocksdbjni" rev="9.7.3" transitive="false"/>
</dependencies></ivy-module>
END
    spark=$(.venv/bin/python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
    "$java/bin/java" -jar "$spark"/jars/ivy-*.jar -warn -cache "$fetched/cache" -m2compatible \
        -ivy "$fetched/wanted.xml" -types jar bundle \
        -retrieve "$fetched/jars/[artifact]-[revision].[ext]" >&2 </dev/null
    mv -T "$fetched/jars" "$peers"
fi
mkdir -p "$peers/classes"
"$java/bin/javac" -cp "$broker/*:$peers/*" -d "$peers/classes" bench/peers/StreamsCount.java
